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

from os_acc import exception
from os_acc.attach import device_state, plugin_steps, unknown_device
from os_acc.attach.erasure import with_peers
from os_acc.attach.manager import Manager
from os_acc.attach.unknown_device import UnknownDevice
from os_acc.inventory.discovery import Inventory
from os_acc.objects.device import Device, Erasure
from os_acc.objects.drivers import is_vfio_driver
from os_acc.objects.instance import consumer_uuid
from os_acc.objects.lease import Action, HelperRecord, Lease, LeaseState
from os_acc.objects.mdev import DeviceAddress, MdevSlot, function_of
from os_acc.objects.numa import NUMAPolicy, PolicySources
from os_acc.objects.pci import PciAddress
from os_acc.objects.region import Programming, card_key
from os_acc.objects.request_group import AttachTarget
from os_acc.plugins import base
from os_acc.store import state_files
from os_acc.store.locks import UNKNOWN_LOCK, consumer_lock

LOG = log.getLogger(__name__)

_RELEASE_FAILED = (
    "repair the cause, then release it again; with --force only its lease is deleted"
)
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

    :param address: a function, or the slot of a mediated device. Without a lease and
        without a record of the privileged helper, a mediated device is not os_acc's.
    :param driver: the driver to restore for an unknown device, '' for none; only for
        a device without a lease and without a record of the privileged helper.
    :param siblings: the same for the functions of its IOMMU group that are also
        prepared for a guest.
    :param force: delete a quarantined lease even if its device still cannot be given
        back, or erased.
    :raises NotFound: there is no device to release at this address.
    :raises Conflict: another node of the host has it, and not ``force``.
    :raises LockTimeout: another command releases or adopts a device meanwhile.
    :raises OsAccError: the error of the host; no record is deleted.
    """
    _check_address(address)
    deadline = time.monotonic() + manager.settings.unplug_timeout
    store = manager.store.until(deadline)
    if address in store.damaged_claims():
        store.forget_damaged(address)
        # The helper's record keeps the device, if it has to be erased or released.
        manager.catalog.reconciler.invalidate()
        manager.discover(deadline)
        return
    with manager.locks.hold([UNKNOWN_LOCK], deadline):
        lease = _leased(manager, address, driver, siblings, deadline, force=force)
    if lease is None:
        return
    if lease.erasure:
        _erase_again(manager, lease, deadline, force=force)
        return
    with manager.locks.hold([consumer_lock(lease.consumer)], deadline):
        _release(manager, address, lease, deadline, force=force)


def _leased(
    manager: Manager,
    address: DeviceAddress,
    driver: str | None,
    siblings: Mapping[PciAddress, str],
    deadline: float,
    *,
    force: bool,
) -> Lease | None:
    """Return the lease of a device, a new one if it has none; None: it needs none."""
    store = manager.store.until(deadline)
    records = manager.catalog.reconciler.records(deadline)
    recorded, lease = records.get(address), store.lease_of(address)
    if lease is not None:
        if (
            isinstance(address, MdevSlot)
            and recorded is not None
            and unknown_device.is_damaged(recorded)
        ):
            # The steps of its plugin need a record of the lease.
            manager.catalog.reconciler.repair_slot(lease, address, store, deadline)
        return lease
    if state_files.forget_refusal(manager.settings.state_path, address):
        # The next plug asks its plugin again.
        manager.discover(deadline)
        return None
    if not force:
        unknown_device.check_node(manager, recorded)
    if isinstance(address, MdevSlot):
        lease = _lost_slot(manager, address, records, deadline, force=force)
    else:
        lease = _unknown_function(
            manager, address, driver, siblings, records, deadline, force=force
        )
    if lease is not None:
        (lease,) = store.add([lease])
    return lease


def _unknown_function(
    manager: Manager,
    address: PciAddress,
    driver: str | None,
    siblings: Mapping[PciAddress, str],
    records: Mapping[DeviceAddress, HelperRecord],
    deadline: float,
    *,
    force: bool,
) -> Lease | None:
    """Return a lease for the release of a function; None: it has left the host."""
    store, reconciler = manager.store.until(deadline), manager.catalog.reconciler
    inventory = manager.discover(deadline)
    if address in records and address not in inventory.host.functions:
        _check_erased(records[address], force=force)
        reconciler.disclaim(records[address].lease, [address], store, deadline)
        return None
    found = UnknownDevice(manager, inventory, address, records, deadline)
    lease = _with_actions(
        manager, found.lease(driver, siblings), found.recorded, deadline
    )
    if not force:
        unknown_device.check_ended(manager.root, lease, found.recorded, store.leases())
    if found.recorded is None:
        return lease
    return _claimed(manager, lease, found.recorded.lease, deadline)


def _lost_slot(
    manager: Manager,
    slot: MdevSlot,
    records: Mapping[DeviceAddress, HelperRecord],
    deadline: float,
    *,
    force: bool,
) -> Lease | None:
    """Return a lease for the release of a slot whose own lease is lost.

    If its record is damaged, the plugin that offers its type has to release it.

    :returns: None: its mediated device, and what its plugin has changed, went with the
        parent; its record is removed.
    :raises NotFound: the privileged helper has no record of the slot.
    :raises DeviceInUse: its record is damaged, and a guest may have its mediated
        device.
    """
    store, reconciler = manager.store.until(deadline), manager.catalog.reconciler
    inventory = manager.discover(deadline)
    lease = unknown_device.slot_lease(manager.root, inventory.host, slot, records)
    if unknown_device.is_damaged(records[slot]):
        if not force:
            recorded = [each.lease for each in records.values()]
            unknown_device.check_accounted_for(
                manager.root, slot, store.leases(), recorded
            )
        if (device := _offered(inventory, lease)) is not None:
            lease = dataclasses.replace(lease, plugin=device.plugin)
        (lease,) = plugin_steps.with_actions(manager.plugins, [lease])
        reconciler.repair_slot(lease, slot, store, deadline)
    if device_state.is_in_place(manager.root, lease):
        return lease
    reconciler.disclaim_slot(lease, slot, store, deadline)
    return None


def _erase_again(
    manager: Manager, lease: Lease, deadline: float, *, force: bool
) -> None:
    """Start a failed erasure again; the service continues it."""
    if lease.state is not LeaseState.QUARANTINED:
        raise _conflict(lease)
    try:
        manager.life.eraser.restart(lease, deadline)
    except exception.OsAccError:
        if not force or not _free_with_data(manager, lease.uuid, deadline):
            raise


def _free_with_data(manager: Manager, uuid: str, deadline: float) -> bool:
    """Free a device whose erasure has failed for good; return whether it is free.

    Under the lock, the service erases it no more; a failure that can pass has not
    quarantined it.
    """
    store, is_free = manager.store.until(deadline), False
    with manager.locks.hold([consumer_lock(uuid)], deadline):
        for lease in store.leases(uuid):
            if lease.state is LeaseState.QUARANTINED:
                _forget_record(manager, lease, deadline)
                store.delete([lease])
                LOG.warning(
                    "%s is free, and not erased after instance %s",
                    *(lease.address, lease.consumer_title),
                )
                is_free = True
    return is_free


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
        # The service, or another command, has given it back meanwhile.
        return
    if lease.uuid != seen.uuid or lease.state is LeaseState.HELD:
        raise _conflict(lease)
    for failed, error in manager.life.release([lease], deadline).failed:
        current = store.lease_of(failed.address)
        # An unknown device in use was not touched, and stays unknown.
        untouched = current is not None and not current.provider
        # Only its plugin's release fails, which does not give up the guest's data.
        is_back = current is not None and device_state.is_back(manager.root, current)
        to_erase = is_back and failed.needs_erase
        if current is not None and (
            force or (untouched and isinstance(error, exception.DeviceInUse))
        ):
            store.delete([current], to_erase=to_erase)
        if force and not to_erase:
            _forget_record(manager, failed, deadline)
        if failed.slot is not None:
            # While a guest has it, only the helper's record protects it now.
            manager.catalog.reconciler.invalidate()
            manager.catalog.reconciler.recorded_state(store, deadline)
        if not force:
            error.hint = "; ".join(filter(None, (error.hint, _RELEASE_FAILED)))
            raise error


def _conflict(lease: Lease) -> exception.Conflict:
    if lease.erasure:
        message = f"{lease.address} is being erased"
        hint = "the service continues; see 'os-acc device show'"
    else:
        message = f"{lease.address} is leased to {lease.consumer}"
        hint = f"unplug the instance: os-acc unplug {lease.consumer}"
    return exception.Conflict(
        message, hint=hint, reason=exception.ConflictReason.CONSUMER
    )


def _forget_record(manager: Manager, lease: Lease, deadline: float) -> None:
    """Remove the helper's record of functions that have left vfio-pci, or of a slot."""
    reconciler, store = manager.catalog.reconciler, manager.store.until(deadline)
    try:
        if lease.functions:
            for uuid in lease.recorded_uuids:
                reconciler.disclaim(uuid, lease.functions, store, deadline)
        elif lease.slot is not None and lease.needs_release:
            reconciler.disclaim_slot(lease, lease.slot, store, deadline)
    except exception.OsAccError as error:
        LOG.warning("cannot remove the helper's record of %s: %s", lease.address, error)


def adopt_device(
    manager: Manager,
    address: DeviceAddress,
    consumer: str,
    driver: str | None,
    *,
    siblings: Mapping[PciAddress, str] = _NOTHING,
) -> Lease:
    """Record a lease of a device that is prepared for a guest without a lease.

    :param address: a function, or a slot that the privileged helper has on record.
    :param driver: the driver to restore later, '' for none.
    :param siblings: the same for the functions of its IOMMU group that are also
        prepared for a guest.
    :raises NotFound: no driver offers the device to guests, or it is not in
        ``device_spec``; or the mediated device of the slot's record does not exist.
    :raises AlreadyLeased: the device has a lease.
    :raises Conflict: the consumer has a lease that is not ``held``, another node of the
        host has the device, or it is that of a lease, moved by a reboot.
    """
    _check_address(address)
    consumer = consumer_uuid(consumer)
    deadline = time.monotonic() + manager.settings.plug_timeout
    store = manager.store.until(deadline)
    with manager.locks.hold([consumer_lock(consumer), UNKNOWN_LOCK], deadline):
        records = manager.catalog.reconciler.records(deadline)
        unknown_device.check_node(manager, records.get(address))
        inventory = manager.discover(deadline)
        if isinstance(address, MdevSlot):
            host = inventory.host
            planned = unknown_device.slot_lease(manager.root, host, address, records)
            if device_state.is_back(manager.root, planned):
                raise exception.NotFound(
                    f"the mediated device of {address} does not exist",
                    hint=f"no guest has it: run 'os-acc device release {address}'",
                    kind=exception.ObjectKind.DEVICE,
                )
        else:
            found = UnknownDevice(manager, inventory, address, records, deadline)
            planned = found.lease(driver, siblings)
            others = [each for each in store.leases() if address not in each.members]
            unknown_device.check_ended(manager.root, planned, found.recorded, others)
            planned = _with_actions(manager, planned, found.recorded, deadline)
        planned = dataclasses.replace(planned, consumer=consumer, policies=_ADOPTED)
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
        if store.lease_of(address) is None and planned.slot is None:
            # The helper's record comes first: without it, a release of the lease
            # would restore no driver. That of a slot has this lease already.
            before = records[address].lease if address in records else ""
            planned = _claimed(manager, planned, before, deadline)
        (lease,) = store.add([dataclasses.replace(planned, state=LeaseState.HELD)])
        return _with_device(manager, lease, deadline)


def _claimed(manager: Manager, lease: Lease, before: str, deadline: float) -> Lease:
    """Have the helper record a lease instead of another one; return it as on record.

    A list of records withholds the plugins of a device that shows no serial number.
    """
    store, reconciler = manager.store.until(deadline), manager.catalog.reconciler
    lease = reconciler.claim(lease, before, store, deadline)
    recorded = reconciler.records(deadline).get(lease.address)
    return _with_actions(manager, lease, recorded, deadline)


def _offered(inventory: Inventory, lease: Lease) -> Device | None:
    """Return the device of a lease, as its plugin describes it."""
    return next(
        (
            provider.device
            for provider in inventory.providers.values()
            for handle in provider.device.handles
            if handle.address == lease.address
        ),
        None,
    )


def _with_actions(
    manager: Manager, planned: Lease, recorded: HelperRecord | None, deadline: float
) -> Lease:
    """Return a lease with the actions, erase or release, that its device needs.

    A device without a lease is unknown, and no plugin describes it. The privileged
    helper's record names the plugin, which may offer the device no more.
    """
    if recorded is not None and recorded.releaser:
        # ``release`` is called for the device of a guest.
        planned = dataclasses.replace(
            planned.needing(Action.RELEASE),
            plugin=recorded.releaser,
            wanted=dataclasses.replace(planned.wanted, attach_target=AttachTarget.VM),
        )
    device = _offered(manager.catalog.assuming(planned, deadline), planned)
    if not is_vfio_driver(planned.driver) and not planned.needs_release:
        # Only its plugin can end that the driver offers it to guests.
        if device is None:
            raise exception.NotFound(
                f"no plugin offers {planned.address}, which stays on {planned.driver}",
                hint="enable the plugin of its vendor, or end the offer by hand",
                kind=exception.ObjectKind.DEVICE,
            )
        planned = dataclasses.replace(planned, plugin=device.plugin).needing(
            Action.RELEASE
        )
    eraser = recorded.eraser if recorded else ""
    if device is not None and device.erasure is Erasure.PLUGIN:
        eraser = device.plugin
    if not eraser:
        return planned
    planned = dataclasses.replace(planned, plugin=eraser).needing(Action.ERASE)
    return with_peers(manager.root, planned)


def _check_erased(recorded: HelperRecord, *, force: bool) -> None:
    """Check that a device that has left the host has no data of a guest."""
    if unknown_device.is_damaged(recorded):
        raise exception.DeviceGone(
            f"{recorded.address} has left the host, and its record is damaged",
            hint="put it in again, then release it; a reboot removes the record",
        )
    if recorded.eraser and not force:
        raise exception.DeviceGone(
            f"{recorded.address} has left the host, and the plugin {recorded.eraser} "
            f"has not erased it after lease {recorded.lease}",
            hint="put it in again, then release it; or pass --force if it never comes "
            "back",
        )


def _with_device(manager: Manager, lease: Lease, deadline: float) -> Lease:
    """Record the plugin of an adopted device and a release that may be outstanding, its
    region, and whether its guest can program it.

    The host cannot read the region of a whole card that a guest has.
    """
    store = manager.store.until(deadline)
    device = _offered(manager.discover(deadline), lease)
    plugin = manager.plugins.get(device.plugin) if device else None
    # The helper's record of a slot has named its plugin.
    if lease.slot is not None or device is None or plugin is None:
        return lease
    # The lost lease may have needed a release; one that is not due does no harm.
    (marked,) = plugin_steps.with_actions(
        manager.plugins, [dataclasses.replace(lease, plugin=device.plugin)]
    )
    if type(plugin).read_region is base.PluginBase.read_region:
        if marked.needs_release:
            (lease,) = store.replace([marked])
        return lease
    if device.region is not None:
        programming = Programming(device.region, None, boot_id=lease.boot_id)
        marked = dataclasses.replace(marked, programming=programming)
        if (region := marked.guest_writable) is not None:
            store.mark_region_guest_writable(region.key)
    elif marked.is_the_guests:
        card = function_of(device.address)
        assert card is not None
        assert device.identity is not None
        store.mark_region_guest_writable(card_key(card, device.identity))
    (lease,) = store.replace([marked])
    manager.discover(deadline)
    return lease


def _check_address(address: object) -> None:
    if not isinstance(address, PciAddress | MdevSlot):
        raise exception.InvalidInput(
            f"{exception.show(address)} is neither a PciAddress nor a MdevSlot",
            hint="a PCI address looks like 0000:3b:02.1",
        )
