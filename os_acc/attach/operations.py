# SPDX-License-Identifier: Apache-2.0

"""An operator's release and adoption of single devices, without Nova.

Each operation acts on one device, with the same intent, lock and read-back as a plug or
an unplug.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from types import MappingProxyType

from oslo_log import log
from oslo_utils import uuidutils

from os_acc import exception
from os_acc.attach import plugin_steps, verification
from os_acc.attach.manager import Manager
from os_acc.host import attributes, vfio
from os_acc.inventory.discovery import Inventory
from os_acc.objects.device import RejectReason
from os_acc.objects.instance import consumer_uuid
from os_acc.objects.lease import (
    HelperRecord,
    Lease,
    LeaseState,
    Owner,
    PriorBinding,
)
from os_acc.objects.mdev import DeviceAddress, MdevSlot, function_of
from os_acc.objects.numa import NUMAPolicy, PolicySources
from os_acc.objects.pci import PciAddress
from os_acc.objects.region import Programming, card_key
from os_acc.objects.request import AttachTarget
from os_acc.objects.vfio_driver import GUEST_DRIVERS, VFIO_PCI
from os_acc.plugins import base
from os_acc.privsep import record
from os_acc.privsep.functions import is_driver_name
from os_acc.store.locks import consumer_lock

LOG = log.getLogger(__name__)

_NOTHING: Mapping[PciAddress, str] = MappingProxyType({})
#: The policies of the lost lease are unknown, and its guest may have been started with
#: this device: without a policy of the guest's own, it may start again.
_ADOPTED = PolicySources(device=NUMAPolicy.PREFERRED)


def release_device(
    manager: Manager,
    address: DeviceAddress,
    driver: str | None,
    *,
    siblings: Mapping[PciAddress, str] = _NOTHING,
    force: bool = False,
) -> None:
    """Give a quarantined or an unknown device back to the host.

    :param address: a function, or the slot of a mediated device. Without a lease, a
        mediated device is not os_acc's.
    :param driver: the driver to restore for an unknown device, '' for none; only for
        a device without a lease and without a record of the privileged helper.
    :param siblings: the same for the functions of its IOMMU group that are also
        prepared for a guest.
    :param force: delete a quarantined lease even if its device still cannot be given
        back.
    :raises NotFound: there is no device to release at this address.
    :raises OsAccError: the error of the host; no record is deleted.
    """
    if not isinstance(address, MdevSlot):
        _check_address(address)
    deadline = time.monotonic() + manager.settings.unplug_timeout
    store = manager.store.until(deadline)
    if address in store.damaged_claims():
        store.forget_damaged(address)
        # Only the helper's record protects the device now.
        manager.catalog.reconciler.invalidate()
        manager.discover(deadline)
        return
    records = manager.catalog.reconciler.records(deadline)
    lease = store.lease_of(address)
    if isinstance(address, MdevSlot):
        if lease is None:
            raise exception.NotFound(
                f"{address} is not leased", kind=exception.ObjectKind.DEVICE
            )
    elif lease is None:
        inventory = manager.discover(deadline)
        if address in records and address not in inventory.host.functions:
            manager.catalog.reconciler.disclaim(
                records[address].lease, [address], store, deadline
            )
            return
        found = _Unknown(manager, inventory, address, records, deadline)
        lease = found.lease(driver, siblings)
        if found.recorded is not None:
            lease = manager.catalog.reconciler.claim(
                lease, found.recorded.lease, store, deadline
            )
    with manager.locks.hold([consumer_lock(lease.consumer)], deadline):
        _release(manager, address, lease, deadline, force=force)


def _release(
    manager: Manager,
    address: DeviceAddress,
    seen: Lease,
    deadline: float,
    *,
    force: bool,
) -> None:
    store = manager.store.until(deadline)
    lease = store.lease_of(address)
    if lease is None:
        (lease,) = store.add([seen])
    elif lease.uuid != seen.uuid or lease.state is LeaseState.HELD:
        raise _conflict(lease)
    for failed, error in manager.life.release([lease], deadline).failed:
        current = store.lease_of(failed.address)
        # An unknown device in use was not touched, and stays unknown.
        untouched = current is not None and not current.provider
        if current is not None and (
            force or (untouched and isinstance(error, exception.DeviceInUse))
        ):
            store.delete([current])
        if not force:
            raise error
        if failed.functions:
            _forget_record(manager, failed, deadline)


def _conflict(lease: Lease) -> exception.Conflict:
    if lease.provider or lease.state is LeaseState.HELD:
        message = f"{lease.address} is leased to {lease.consumer}"
        hint = f"unplug the instance: os-acc unplug {lease.consumer}"
    else:
        # The release of an unknown device makes up a consumer for its lease.
        message = f"another operation gives {lease.address} back to the host"
        hint = "wait until it has ended, then see 'os-acc device list'"
    return exception.Conflict(
        message, hint=hint, reason=exception.ConflictReason.CONSUMER
    )


def _forget_record(manager: Manager, lease: Lease, deadline: float) -> None:
    """Remove the helper's record of functions that have left vfio-pci."""
    try:
        manager.catalog.reconciler.disclaim(
            lease.uuid, lease.functions, manager.store.until(deadline), deadline
        )
    except exception.OsAccError as error:
        LOG.warning("cannot remove the helper's record of %s: %s", lease.address, error)


def adopt_device(
    manager: Manager,
    address: PciAddress,
    consumer: str,
    driver: str | None,
    *,
    siblings: Mapping[PciAddress, str] = _NOTHING,
) -> Lease:
    """Record a lease of a device that is prepared for a guest without a lease.

    :param driver: the driver to restore later, '' for none.
    :param siblings: the same for the functions of its IOMMU group that are also
        prepared for a guest.
    :raises NotFound: the device is not on vfio-pci, or not in ``device_spec``.
    :raises AlreadyLeased: the device has a lease.
    :raises Conflict: the consumer has a lease that is not ``held``.
    """
    _check_address(address)
    consumer = consumer_uuid(consumer)
    deadline = time.monotonic() + manager.settings.plug_timeout
    store = manager.store.until(deadline)
    records = manager.catalog.reconciler.records(deadline)
    inventory = manager.discover(deadline)
    found = _Unknown(manager, inventory, address, records, deadline)
    planned = dataclasses.replace(
        found.lease(driver, siblings), consumer=consumer, policies=_ADOPTED
    )
    with manager.locks.hold([consumer_lock(consumer)], deadline):
        held = store.leases(consumer)
        if any(each.state is not LeaseState.HELD for each in held):
            raise exception.Conflict(
                f"consumer {consumer} has unfinished or quarantined accelerators",
                hint="unplug it, or release the quarantined accelerators, then retry",
                reason=exception.ConflictReason.CONSUMER,
            )
        if held:
            # A consumer has one request: the device joins it.
            planned = dataclasses.replace(planned, request=held[0].request)
        if store.lease_of(address) is None:
            # The helper's record comes first: without it, a release of the lease
            # would restore no driver.
            before = found.recorded.lease if found.recorded else ""
            planned = manager.catalog.reconciler.claim(planned, before, store, deadline)
        (lease,) = store.add([dataclasses.replace(planned, state=LeaseState.HELD)])
        return _with_device(manager, lease, deadline)


def _with_device(manager: Manager, lease: Lease, deadline: float) -> Lease:
    """Record the plugin of an adopted device and a release that it may be owed, its
    region, and whether its guest can program it.

    The host cannot read the region of a whole card that a guest has.
    """
    store = manager.store.until(deadline)
    device = next(
        (
            provider.device
            for provider in manager.discover(deadline).providers.values()
            for handle in provider.device.handles
            if handle.address == lease.address
        ),
        None,
    )
    plugin = manager.plugins.get(device.plugin) if device else None
    if device is None or plugin is None:
        return lease
    # The lost lease may have owed a release, which does no harm where none is due.
    (owing,) = plugin_steps.owing(
        manager.plugins, [dataclasses.replace(lease, plugin=plugin.name)]
    )
    if not _reads_regions(plugin):
        if owing.owes_release:
            (lease,) = store.replace([owing])
        return lease
    lease, programming = owing, None
    if device.region is not None:
        programming = Programming(device.region, None, boot_id=lease.boot_id)
    lease = dataclasses.replace(lease, programming=programming)
    if device.region is None and lease.is_the_guests:
        card = function_of(device.address)
        assert card is not None
        assert device.identity is not None
        store.mark_region_guest_writable(card_key(card, device.identity))
    elif (region := lease.guest_writable) is not None:
        store.mark_region_guest_writable(region.key)
    (lease,) = store.replace([lease])
    manager.discover(deadline)
    return lease


def _reads_regions(plugin: base.PluginBase) -> bool:
    return type(plugin).read_region is not base.PluginBase.read_region


def _check_address(address: object) -> None:
    if not isinstance(address, PciAddress):
        raise exception.InvalidInput(
            f"{exception.show(address)} is not a PciAddress",
            hint="a PCI address looks like 0000:3b:02.1",
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


class _Unknown:
    """A device without a lease, and the present state of its IOMMU group.

    :ivar recorded: the privileged helper's record of the device, if any.
    :raises NotFound: there is no device to give back or to adopt.
    """

    def __init__(
        self,
        manager: Manager,
        inventory: Inventory,
        address: PciAddress,
        records: Mapping[PciAddress, HelperRecord],
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
        return Lease(
            uuid=uuidutils.generate_uuid(),
            consumer=uuidutils.generate_uuid(),
            owner=Owner.COMMAND,
            state=LeaseState.RELEASING,
            group="",
            provider="",
            resource_class="",
            address=address,
            iommu_group=self._host.group_of(address).number,
            numa_node=self._function.numa_node,
            prior=tuple(
                self._prior(each, driver if each == address else siblings.get(each))
                for each in members
            ),
            request="",
            boot_id=attributes.boot_id(self._manager.root),
            physfns=verification.physfns(self._host.function(each) for each in members),
            attach_target=(
                AttachTarget.VM if self._is_the_guests else AttachTarget.NONE
            ),
            driver=self._vfio_driver(),
        )

    def _vfio_driver(self) -> str:
        driver = self._function.driver
        return driver if driver in GUEST_DRIVERS else VFIO_PCI

    def _check_prepared(self, inventory: Inventory) -> None:
        if not _is_ours(inventory, self._address):
            raise exception.NotFound(
                f"{self._address} is not assigned to os_acc",
                hint="name it in [os_acc] device_spec, and not in Nova's options",
                kind=exception.ObjectKind.DEVICE,
            )
        if not vfio.is_vfio_driver(self._function.driver):
            raise exception.NotFound(
                f"{self._address} is not prepared for a guest: it is bound to "
                f"{self._function.driver or 'no driver'}",
                kind=exception.ObjectKind.DEVICE,
            )

    @property
    def _is_the_guests(self) -> bool:
        if self.recorded is not None and not _is_damaged(self.recorded):
            return self.recorded.is_the_guests
        return vfio.is_vfio_driver(self._function.driver)

    def _members(self) -> tuple[PciAddress, ...]:
        """Return the prepared functions of the group, which are released together."""
        members = self._host.group_of(self._address).members
        return tuple(each for each in members if self._is_member(each))

    def _is_member(self, address: PciAddress) -> bool:
        function = self._host.functions.get(address)
        if function is None:
            return False
        entry = self._records.get(address)
        if entry is not None and self.recorded is not None:
            return entry.lease == self.recorded.lease
        return self._is_the_guests and vfio.is_vfio_driver(function.driver)

    def _prior(self, address: PciAddress, driver: str | None) -> PriorBinding:
        (now,) = verification.read_prior(self._manager.root, [address], self._deadline)
        if not self._is_the_guests:
            return now
        entry = self._records.get(address)
        if (
            entry is None
            or _is_damaged(entry)
            or (vfio.is_vfio_driver(entry.driver) and driver != entry.driver)
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


def _is_damaged(entry: HelperRecord) -> bool:
    return entry.lease == record.UNREADABLE
