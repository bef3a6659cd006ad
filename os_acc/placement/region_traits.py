# SPDX-License-Identifier: Apache-2.0

"""Traits of FPGA regions.

Each trait is published in the form of the os_acc specification and in that of
Cyborg 17, so that flavors written for either match the region.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Final

from os_acc.objects.device import Device
from os_acc.objects.recorded_state import RecordedState
from os_acc.objects.region import Region, functions_held

PROGRAMMABLE: Final = "CUSTOM_PROGRAMMABLE"
_NAME: Final = "_".join(f"[0-9A-F]{{{digits}}}" for digits in (8, 4, 4, 4, 12))

_VENDORS: Final = {
    0x8086: "INTEL",
    0x1172: "INTEL",
    0x10EE: "XILINX",
    0x1BD4: "INSPUR",
}


def vendor_name(vendor: int) -> str:
    """Return the vendor's part of a trait name, by PCI vendor ID."""
    return _VENDORS.get(vendor, f"{vendor:04X}")


def described(device: Device, recorded_state: RecordedState) -> Device:
    """Return the device with its region's traits; unchanged without a region.

    :param recorded_state: the leases, and the regions whose contents are unverified.
    """
    if device.region is None:
        return device
    found = frozenset(_traits(device, device.region, recorded_state))
    return dataclasses.replace(device, traits=device.traits | found)


def may_change(trait: str) -> bool:
    """Return whether a trait depends on a region's contents or leases."""
    return trait == PROGRAMMABLE or (
        trait.startswith("CUSTOM_FPGA_") and "_FUNCTION_" in trait
    )


def published_of(device: Device, traits: Iterable[str]) -> frozenset[str]:
    """Return the traits that depend on the region's contents or leases.

    They are os_acc's, also without a record: no other service knows them. Traits
    that os_acc cannot publish for this region belong to others.
    """
    region = device.region
    if region is None or (region.interface_id is None and region.function_id is None):
        return frozenset()
    vendor = vendor_name(region.identity.vendor)
    function = re.compile(
        rf"CUSTOM_FPGA_{vendor}_FUNCTION_{_NAME}"
        rf"|CUSTOM_FPGA_FUNCTION_ID_{vendor}_[0-9A-F]{{32}}"
    )
    found = frozenset(each for each in traits if function.fullmatch(each))
    if region.interface_id is None:
        return found
    return found | frozenset({PROGRAMMABLE}.intersection(traits))


def function_traits(region: Region, functions: Iterable[str]) -> frozenset[str]:
    """Return the traits of a region with these functions (canonical UUIDs)."""
    vendor = vendor_name(region.identity.vendor)
    return frozenset(
        name
        for each in functions
        for name in (
            f"CUSTOM_FPGA_{vendor}_FUNCTION_{_name(each)}",
            f"CUSTOM_FPGA_FUNCTION_ID_{vendor}_{_hexadecimal(each)}",
        )
    )


def interface_traits(region: Region) -> frozenset[str]:
    """Return the traits of a region with this region's interface ID."""
    if region.interface_id is None:
        return frozenset()
    vendor = vendor_name(region.identity.vendor)
    return frozenset(
        {
            f"CUSTOM_FPGA_{vendor}_REGION_{_name(region.interface_id)}",
            f"CUSTOM_FPGA_REGION_{vendor}_{_hexadecimal(region.interface_id)}",
        }
    )


def _traits(
    device: Device, region: Region, recorded_state: RecordedState
) -> Iterator[str]:
    yield f"CUSTOM_FPGA_{vendor_name(region.identity.vendor)}"
    if region.interface_id is not None:
        yield from interface_traits(region)
        # A request for this trait programs the region.
        if not (
            any(lease.uses_region(region) for lease in recorded_state.leases)
            or recorded_state.taken.intersection(region.pci_functions)
        ):
            yield PROGRAMMABLE
    is_trusted = recorded_state.unverified_regions.trusts(region)
    if is_trusted and recorded_state.rebuilding(region) is None:
        yield from function_traits(region, _offered(device, region, recorded_state))


def _offered(
    device: Device, region: Region, recorded_state: RecordedState
) -> frozenset[str]:
    """Return the functions of a region that another guest can be given.

    A function of a region with several is not offered without a free PCI function
    that reaches it: Placement counts the units of a provider, not their functions.
    """
    if not region.functions:
        return functions_held(region)
    return frozenset(
        function
        for address, function in region.functions
        for handle in device.handles
        if handle.address == address
        and not handle.fault
        and recorded_state.taken.isdisjoint(handle.members)
    )


def _name(uuid: str) -> str:
    return uuid.upper().replace("-", "_")


def _hexadecimal(uuid: str) -> str:
    return uuid.upper().replace("-", "")
