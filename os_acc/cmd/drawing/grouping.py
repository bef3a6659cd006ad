# SPDX-License-Identifier: Apache-2.0

"""Which VFs are told of in one line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from os_acc.cmd.device_states import DeviceStatus
from os_acc.cmd.drawing import labels
from os_acc.cmd.drawing.snapshot import HostSnapshot
from os_acc.objects.pci import PciAddress

# Of so many instances each has a line of its own below one card.
_HOLDERS = 8


def alike(
    scene: HostSnapshot, vfs: Sequence[PciAddress], apart: Collection[PciAddress]
) -> list[list[PciAddress]]:
    """The VFs of one card, together where they differ in nothing but their places.

    Where many instances have some, these are told of together as well.

    :param apart: that each have a line of their own.
    """
    leases = [device.lease for vf in vfs if (device := scene.states.get(vf))]
    by_holder = len({lease.consumer for lease in leases if lease}) <= _HOLDERS
    found: dict[object, list[PciAddress]] = {}
    for vf in vfs:
        key = vf if vf in apart else _key(scene, vf, by_holder=by_holder)
        found.setdefault(key, []).append(vf)
    return list(found.values())


def _key(scene: HostSnapshot, vf: PciAddress, *, by_holder: bool) -> object:
    """What VFs have in common of which one line tells."""
    function, device = scene.functions[vf], scene.states.get(vf)
    common = (labels.driver(function), function.iommu_group is None)
    if device is None:
        return common
    told = (*common, device.state, device.resource_class, device.reason)
    if device.lease is None:
        return told
    # Who is in trouble is named.
    is_named = by_holder or device.state is not DeviceStatus.LEASED
    consumer = device.lease.consumer if is_named else ""
    return (*told, device.lease.attach_target, consumer)
