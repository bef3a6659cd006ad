# SPDX-License-Identifier: Apache-2.0

"""An M1 card for os_acc's simulated host."""

from __future__ import annotations

import errno
import os

from acme_accelerator.plugin import PRODUCT, VENDOR
from acme_accelerator.privsep import MODES
from os_acc.testing import AttributeSpec, FunctionSpec, SimulatedFunction


def card(address: str, *, is_stuck: bool = False) -> FunctionSpec:
    """Return a card, by the address of its function.

    :param is_stuck: whether it accepts each mode and keeps the one that it has.
    """
    store = _ignore if is_stuck else _store
    return FunctionSpec(
        address,
        VENDOR,
        PRODUCT,
        class_code=0x120000,
        driver="acme",
        numa_node=0,
        driver_attributes=(AttributeSpec("acme_mode", "host", store, stays=True),),
    )


def _store(function: SimulatedFunction, text: str) -> None:
    mode = text.removesuffix("\n")
    if mode not in MODES:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    function.write("acme_mode", mode)


def _ignore(function: SimulatedFunction, text: str) -> None:
    del function, text
