# SPDX-License-Identifier: Apache-2.0

"""Regions whose function the operator accepts as reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from os_acc.host.view import Host
from os_acc.objects.device import Device
from os_acc.objects.device_spec import DeviceSpec
from os_acc.objects.lease import RecordedState
from os_acc.objects.pci import PciAddress


def accepting(
    recorded: RecordedState, devices: Iterable[Device], spec: DeviceSpec, host: Host
) -> RecordedState:
    """Return the records with the regions that are tagged ``trust_guest_contents``."""
    if not any(entry.trust_guest_contents for entry in spec.entries):
        return recorded
    accepted = frozenset(
        device.region.key
        for device in devices
        if device.region is not None and _is_tagged(device, spec, host)
    )
    regions = dataclasses.replace(recorded.unverified_regions, accepted=accepted)
    return dataclasses.replace(recorded, unverified_regions=regions)


def _is_tagged(device: Device, spec: DeviceSpec, host: Host) -> bool:
    functions = (
        host.functions.get(address)
        for handle in device.handles
        for address in handle.members
        if isinstance(address, PciAddress)
    )
    return any(
        spec.trusts_guests(function, host.netdevs, host.functions)
        for function in functions
        if function is not None
    )
