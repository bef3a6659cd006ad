# SPDX-License-Identifier: Apache-2.0

"""Devices without a lease, as an operator releases or adopts them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from oslo_utils import uuidutils

from os_acc import exception
from os_acc.attach import verification
from os_acc.attach.manager import Manager
from os_acc.host import attributes, mdev, vfio
from os_acc.host.pci import Host
from os_acc.inventory.discovery import Inventory
from os_acc.objects.device import AttachHandle, RejectReason
from os_acc.objects.drivers import NVIDIA, VFIO_PCI, is_vfio_driver
from os_acc.objects.lease import (
    Action,
    HelperRecord,
    Lease,
    LeaseState,
    Owner,
    PriorBinding,
)
from os_acc.objects.mdev import DeviceAddress, MdevSlot
from os_acc.objects.pci import PciAddress, PciFunction, physfns
from os_acc.objects.request_group import AttachTarget, GroupAllocation
from os_acc.privsep import record
from os_acc.privsep.request import is_driver_name


class UnknownDevice:
    """A device without a lease, and the present state of its IOMMU group.

    :ivar recorded: the privileged helper's record of the device, if any.
    :raises NotFound: there is no device to give back or to adopt.
    """

    def __init__(
        self,
        manager: Manager,
        inventory: Inventory,
        address: PciAddress,
        records: Mapping[DeviceAddress, HelperRecord],
        deadline: float,
    ) -> None:
        self._manager, self._host, self._deadline = manager, inventory.host, deadline
        self._address, self._records = address, records
        self._function = inventory.host.function(address)
        self.recorded = records.get(address)
        # The configuration may have changed since the helper took the device.
        if self.recorded is None:
            self._check_prepared(inventory)

    def lease(self, driver: str | None, siblings: Mapping[PciAddress, str]) -> Lease:
        """Return a lease whose release gives the device back."""
        address, members = self._address, self._members()
        target = AttachTarget.VM if self._is_the_guests else AttachTarget.NONE
        return Lease(
            uuid=uuidutils.generate_uuid(),
            consumer=uuidutils.generate_uuid(),
            owner=Owner.COMMAND,
            state=LeaseState.RELEASING,
            wanted=GroupAllocation("", "", "", 1, attach_target=target),
            handle=AttachHandle(
                address,
                members,
                self._host.group_of(self._function).number,
                self._function.numa_node,
                driver=self._vfio_driver(),
                vgpu_type=self._vgpu_type(),
            ),
            prior=tuple(
                self._prior(each, driver if each == address else siblings.get(each))
                for each in members
            ),
            request="",
            boot_id=attributes.boot_id(self._manager.root),
            physfns=physfns(self._host.function(each) for each in members),
        )

    def _vfio_driver(self) -> str:
        driver = self._function.driver
        if self._vgpu_type():
            return NVIDIA
        is_present = self._is_offered(self._function)
        return driver if driver and is_present else VFIO_PCI

    def _is_offered(self, function: PciFunction) -> bool:
        """Return whether a driver offers a function to guests, or has to."""
        return is_vfio_driver(function.driver) or vfio.is_offered(
            self._manager.root, function.address, function.driver
        )

    def _vgpu_type(self) -> int:
        """Return the type of vGPU that the guest has, for the next reboot."""
        if self._function.driver != NVIDIA:
            return 0
        return mdev.vgpu_type(self._manager.root, self._address) or 0

    def _check_prepared(self, inventory: Inventory) -> None:
        if not _is_ours(inventory, self._address):
            raise exception.NotFound(
                f"{self._address} is not assigned to os_acc",
                hint="name it in [os_acc] device_spec, and not in Nova's options",
                kind=exception.ObjectKind.DEVICE,
            )
        if not self._is_offered(self._function):
            raise exception.NotFound(
                f"{self._address} is not prepared for a guest: it is bound to "
                f"{self._function.driver or 'no driver'}",
                kind=exception.ObjectKind.DEVICE,
            )

    @property
    def _is_the_guests(self) -> bool:
        if self.recorded is not None and not is_damaged(self.recorded):
            return self.recorded.is_the_guests
        return self._is_offered(self._function)

    def _members(self) -> tuple[PciAddress, ...]:
        """Return the prepared functions of the group, which are released together."""
        members = self._host.group_of(self._function).members
        return tuple(each for each in members if self._is_member(each))

    def _is_member(self, address: PciAddress) -> bool:
        function = self._host.functions.get(address)
        if function is None:
            return False
        entry = self._records.get(address)
        if entry is not None and self.recorded is not None:
            return entry.lease == self.recorded.lease
        return self._is_the_guests and self._is_offered(function)

    def _prior(self, address: PciAddress, driver: str | None) -> PriorBinding:
        (now,) = verification.read_prior(self._manager.root, [address], self._deadline)
        if not self._is_the_guests or not is_vfio_driver(self._vfio_driver()):
            if driver not in (None, now.driver or ""):
                raise exception.InvalidInput(
                    f"{address} stays on {now.driver or 'no driver'}; a release does "
                    f"not bind it to {driver or 'no driver'}",
                    hint="omit its driver; bind it to another one after the release",
                )
            return now
        entry = self._records.get(address)
        if (
            entry is None
            or is_damaged(entry)
            or (is_vfio_driver(entry.driver) and driver != entry.driver)
        ):
            name = _driver(address, driver) or None
            return dataclasses.replace(now, driver=name, driver_override=None)
        if driver not in (None, entry.driver or ""):
            raise exception.InvalidInput(
                f"the privileged helper has recorded {entry.driver or 'no driver'} as "
                f"the prior driver of {address}, not {driver or 'no driver'}",
                hint="omit its driver; bind it to another one after the release",
            )
        return dataclasses.replace(
            now, driver=entry.driver, driver_override=entry.driver_override
        )


def _is_ours(inventory: Inventory, address: PciAddress) -> bool:
    """Return whether the operator assigned the device to os_acc, not to Nova."""
    for refused in inventory.refused:
        if refused.address == address:
            return refused.reason is not RejectReason.NOVA_CLAIMS
    return any(
        address in handle.members
        for provider in inventory.providers.values()
        for handle in provider.device.handles
    )


def _driver(address: PciAddress, name: str | None) -> str:
    if name is None:
        raise exception.InvalidInput(
            f"the prior driver of {address} is not recorded",
            hint="pass --driver NAME, or for another function of the group "
            "--sibling ADDRESS=NAME; '' for none",
        )
    if not is_driver_name(name):
        raise exception.InvalidInput(
            f"{exception.show(name)} is not the name of a driver"
        )
    return name


def is_damaged(entry: HelperRecord) -> bool:
    """Return whether the helper cannot read its record of a device."""
    return entry.lease == record.UNREADABLE


def slot_lease(
    root: str,
    host: Host,
    slot: MdevSlot,
    records: Mapping[DeviceAddress, HelperRecord],
) -> Lease:
    """Return a lease whose release gives a slot back that the helper has on record.

    Its UUID is that of the lost lease, and thus of its mediated device; with a damaged
    record it is a new one.

    :raises NotFound: the helper has no record of the slot.
    """
    recorded = records.get(slot)
    if recorded is None:
        raise exception.NotFound(
            f"{slot} is not leased", kind=exception.ObjectKind.DEVICE
        )
    parent = host.functions.get(slot.type.function) if slot.type.function else None
    is_lost = not is_damaged(recorded)
    return Lease(
        uuid=recorded.lease if is_lost else uuidutils.generate_uuid(),
        consumer=uuidutils.generate_uuid(),
        owner=Owner.COMMAND,
        state=LeaseState.RELEASING,
        wanted=GroupAllocation("", "", "", 1),
        handle=AttachHandle(slot, (slot,), None, parent.numa_node if parent else None),
        prior=(),
        request="",
        boot_id=attributes.boot_id(root),
        physfns=physfns([parent] if parent else []),
        parent=parent.identity if parent else None,
        plugin=recorded.releaser,
        outstanding=(Action.RELEASE,) if recorded.releaser else (),
    )


def check_accounted_for(
    root: str, slot: MdevSlot, leases: Collection[Lease], recorded: Collection[str]
) -> None:
    """Check that no mediated device may be that of a slot with a damaged record.

    :param recorded: the leases of the helper's other records.
    :raises DeviceInUse: one of the slot's type has neither a lease nor a record.
    """
    known = {*recorded, *(each.uuid for each in leases)}
    found = [
        each.uuid
        for each in mdev.read_mdevs(root)
        if each.type == slot.type and each.uuid not in known
    ]
    if found:
        raise exception.DeviceInUse(
            f"the record of {slot} is damaged, and its guest may have one of these "
            f"mediated devices: {', '.join(found)}",
            address=str(slot),
            hint="write 1 to the attribute 'remove' of each that no guest has, then "
            "retry",
        )


def check_node(manager: Manager, recorded: HelperRecord | None) -> None:
    """Check that no other node of the host has a device without a lease here.

    :raises Conflict: one has, by the privileged helper's record.
    """
    if recorded and recorded.node not in ("", manager.settings.node_name):
        raise exception.Conflict(
            f"{recorded.address} is leased by compute node {recorded.node} of this "
            f"host, not by {manager.settings.node_name}",
            hint="run the command with the configuration of that node; if it exists no "
            "more, 'os-acc device release --force' takes the device",
            reason=exception.ConflictReason.CONSUMER,
        )


def check_ended(
    root: str, device: Lease, recorded: HelperRecord | None, leases: Iterable[Lease]
) -> None:
    """Check that a device cannot be that of a present lease, moved by a reboot.

    :param device: as it is released or adopted.
    :raises Conflict: it is, by the privileged helper's record; or it has to be erased,
        and may be, since it shows no serial number.
    """
    this_boot = attributes.boot_id(root)
    hidden = {each.identity.numbers for each in device.prior if not each.identity.drive}
    for lease in leases:
        is_named = recorded and recorded.lease in lease.recorded_uuids
        may_be = (
            device.needs_erase
            and not lease.erasure
            and lease.needs_erase
            and lease.boot_id != this_boot
            and hidden.intersection(each.identity.numbers for each in lease.prior)
        )
        if is_named or may_be:
            raise exception.Conflict(
                f"{device.address} {'may be' if hidden else 'is'} the device of "
                f"instance {lease.consumer_title}, which was {lease.address}",
                hint="unplug the instance first; or, if it shows no serial number, "
                "bind it to its driver of the host",
            )
