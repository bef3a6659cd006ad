# SPDX-License-Identifier: Apache-2.0

"""F2 and M1 cards on a simulated host, for tests."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

from os_acc.testing import (
    AttributeSpec,
    FunctionSpec,
    SimulatedFunction,
    SriovSpec,
)

from acme_accelerator import hardware, m1, privsep

#: UUIDs of the card's interface, and of the function that runs after power-on.
INTERFACE = "5ac1f2d0-6c0e-4b0e-9f7e-2f1c7a55e0f2"
POWER_ON = "0d3a1c52-9b1e-4f7b-8f43-61d0f3f5a001"


def card(address: str, *, vfs: int = 2, numa_node: int = 0) -> FunctionSpec:
    """Return an F2 card, by the address of its PF."""
    return FunctionSpec(
        address,
        hardware.VENDOR,
        hardware.PF_PRODUCT,
        class_code=0x120000,
        driver="acme",
        numa_node=numa_node,
        sriov=SriovSpec(vfs, hardware.VF_PRODUCT, driver="acme", offset=1),
        attributes=(
            ("acme_interface_id", INTERFACE),
            ("acme_firmware", "12"),
            ("acme_temperature", "48"),
        ),
    )


def set_attribute(root: str | os.PathLike[str], pf: str, name: str, text: str) -> None:
    """Change what the driver reports of a card."""
    device = Path(root, "sys/bus/pci/devices", pf)
    (device / f"acme_{name}").write_text(text)


def set_functions(root: str | os.PathLike[str], pf: str, *functions: str) -> None:
    """Let these functions run in the region of a card, and no others."""
    node = Path(hardware.node(os.fspath(root), pf))
    node.parent.mkdir(parents=True, exist_ok=True)
    node.write_bytes(b"".join(uuid.UUID(each).bytes for each in functions) + bytes(16))


def m1_card(address: str, *, is_stuck: bool = False) -> FunctionSpec:
    """Return an M1 card, by the address of its function.

    :param is_stuck: whether it accepts each mode and keeps the one that it has.
    """
    store = _ignore if is_stuck else _store
    return FunctionSpec(
        address,
        m1.VENDOR,
        m1.PRODUCT,
        class_code=0x120000,
        driver="acme",
        numa_node=0,
        driver_attributes=(AttributeSpec("acme_mode", "host", store, stays=True),),
    )


def _store(function: SimulatedFunction, text: str) -> None:
    mode = text.removesuffix("\n")
    if mode not in privsep.MODES:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    function.write("acme_mode", mode)


def _ignore(function: SimulatedFunction, text: str) -> None:
    del function, text
