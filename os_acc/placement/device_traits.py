# SPDX-License-Identifier: Apache-2.0

"""The traits that os_acc publishes for devices: their NUMA cells, and FPGA regions.

Nova's scheduler does not know the cells of accelerators; os-traits has no names for
them. Each trait of a region is published in the form of the os_acc specification and in
that of Cyborg 17, so that flavors written for either match the region.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Final

from os_acc.objects.device import Device
from os_acc.objects.records import RecordedState
from os_acc.objects.region import Region, functions_held

PROGRAMMABLE: Final = "CUSTOM_PROGRAMMABLE"
_CELL: Final = "CUSTOM_NUMA_CELL_"
_NAMES_CELL: Final = re.compile(rf"{_CELL}(0|[1-9][0-9]{{0,8}})")
_NAME: Final = "_".join(f"[0-9A-F]{{{digits}}}" for digits in (8, 4, 4, 4, 12))

_VENDORS: Final = {
    0x8086: "INTEL",
    0x1172: "INTEL",
    0x10EE: "XILINX",
    0x1BD4: "INSPUR",
}


def _vendor(region: Region) -> str:
    """Return the vendor's part of a trait name."""
    vendor = region.identity.vendor
    return _VENDORS.get(vendor, f"{vendor:04X}")


def described(device: Device, recorded_state: RecordedState) -> Device:
    """Return the device with the traits of its NUMA cells and of its region.

    A device without a cell in the kernel's view gets none for it.

    :param recorded_state: the leases, and the regions whose contents are unverified.
    """
    nodes = {handle.numa_node for handle in device.handles} or {device.numa_node}
    found = {f"{_CELL}{node}" for node in nodes if node is not None}
    if device.region is not None:
        found.update(_traits(device, device.region, recorded_state))
    return dataclasses.replace(device, traits=device.traits | found)


def cells_of(traits: Iterable[str]) -> frozenset[int]:
    """Return the ids of the NUMA cells that these traits name."""
    found = map(_NAMES_CELL.fullmatch, traits)
    return frozenset(int(match[1]) for match in found if match)


def may_change(trait: str) -> bool:
    """Return whether a trait depends on a region's contents or leases."""
    return trait == PROGRAMMABLE or (
        trait.startswith("CUSTOM_FPGA_") and "_FUNCTION_" in trait
    )


def published_of(device: Device, traits: Iterable[str]) -> frozenset[str]:
    """Return the traits that name cells, or depend on a region's contents or leases.

    They are os_acc's, also without a record: no other service knows them, and a device
    may have moved meanwhile. Traits that os_acc cannot publish for this region belong
    to others.
    """
    region = device.region
    patterns = [_NAMES_CELL.pattern]
    if region and (region.interface_id or region.function_id):
        vendor = _vendor(region)
        patterns += [
            rf"CUSTOM_FPGA_{vendor}_FUNCTION_{_NAME}",
            rf"CUSTOM_FPGA_FUNCTION_ID_{vendor}_[0-9A-F]{{32}}",
        ]
    if region and region.interface_id:
        patterns.append(PROGRAMMABLE)
    return frozenset(filter(re.compile("|".join(patterns)).fullmatch, traits))


def function_traits(region: Region, functions: Iterable[str]) -> frozenset[str]:
    """Return the traits of a region with these functions (canonical UUIDs)."""
    vendor = _vendor(region)
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
    vendor = _vendor(region)
    return frozenset(
        {
            f"CUSTOM_FPGA_{vendor}_REGION_{_name(region.interface_id)}",
            f"CUSTOM_FPGA_REGION_{vendor}_{_hexadecimal(region.interface_id)}",
        }
    )


def _traits(
    device: Device, region: Region, recorded_state: RecordedState
) -> Iterator[str]:
    yield f"CUSTOM_FPGA_{_vendor(region)}"
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
