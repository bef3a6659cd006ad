# SPDX-License-Identifier: Apache-2.0

"""The measured hosts: cards with virtual functions."""

from __future__ import annotations

from os_acc.testing import FunctionSpec, HostSpec, SriovSpec

#: The number of functions of a card: the PF and its VFs.
CARD = 16
_BUSES = 128
_FIRST_BUS = 0x10


def of(functions: int) -> HostSpec:
    """Build a host with this number of functions, on cards of sixteen."""
    if functions % CARD:
        raise ValueError(f"{functions} functions are no whole cards of {CARD}")
    return HostSpec(tuple(_card(index) for index in range(functions // CARD)))


def vfs(functions: int) -> list[str]:
    """Return the addresses of all VFs of such a host."""
    return [
        card.vf_address(index)
        for card in of(functions).functions
        for index in range(CARD - 1)
    ]


def _card(index: int) -> FunctionSpec:
    domain, bus = divmod(index, _BUSES)
    return FunctionSpec(
        f"{domain:04x}:{bus + _FIRST_BUS:02x}:00.0",
        vendor=0x8086,
        product=0x4940,
        class_code=0x0B4000,
        driver="4xxx",
        numa_node=index % 2,
        sriov=SriovSpec(CARD - 1, 0x4941, "4xxxvf", offset=1, boot_vfs=CARD - 1),
    )
