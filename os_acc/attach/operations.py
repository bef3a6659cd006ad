# SPDX-License-Identifier: Apache-2.0

"""What an operator does with single devices, past Nova.

Each of these acts on one device, says what it expects of it, and goes
through the same intent, lock and read-back as a plug or an unplug.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from types import MappingProxyType

from oslo_log import log
from oslo_utils import uuidutils

from os_acc import exception
from os_acc.attach import verification
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
from os_acc.objects.pci import PciAddress
from os_acc.objects.request import AttachTarget
from os_acc.privsep import record
from os_acc.privsep.functions import is_driver_name
from os_acc.store.locks import consumer_lock

LOG = log.getLogger(__name__)

_NOTHING: Mapping[PciAddress, str] = MappingProxyType({})


def release_device(
    manager: Manager,
    address: PciAddress,
    driver: str | None,
    *,
    siblings: Mapping[PciAddress, str] = _NOTHING,
    force: bool = False,
) -> None:
    """Give a quarantined or an unknown device back to the host.

    :param driver: the driver that an unknown device is to go to, '' for
        none; only for a device without a lease and without a record of the
        privileged helper.
    :param siblings: the same for those functions of its IOMMU group that
        are prepared for a guest as well.
    :param force: forget a quarantined lease even where its device still
        cannot be given back.
    :raises NotFound: there is nothing to release at this address.
    :raises OsAccError: as the host refused it; nothing is forgotten.
    """
    _check_address(address)
    deadline = time.monotonic() + manager.settings.unplug_timeout
    store = manager.store.until(deadline)
    if address in store.damaged_claims():
        store.forget_damaged(address)
        # From now on it is the helper's record alone that keeps it from others.
        manager.catalog.reconciler.doubt()
        manager.discover(deadline)
        return
    records = manager.catalog.reconciler.records(deadline)
    lease = store.lease_of(address)
    if lease is None:
        stock = manager.discover(deadline)
        if address in records and address not in stock.host.functions:
            manager.catalog.reconciler.disclaim(
                records[address].lease, [address], store, deadline
            )
            return
        found = _Unknown(manager, stock, address, records, deadline)
        lease = found.lease(driver, siblings)
        if found.recorded is not None:
            lease = manager.catalog.reconciler.claim(
                lease, found.recorded.lease, store, deadline
            )
    with manager.locks.hold([consumer_lock(lease.consumer)], deadline):
        _release(manager, address, lease, deadline, force=force)


def _release(
    manager: Manager,
    address: PciAddress,
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
        raise exception.Conflict(
            f"{address} is leased to {lease.consumer}",
            hint="unplug that instance instead: os-acc unplug <uuid>",
            reason=exception.ConflictReason.CONSUMER,
        )
    for failed, error in manager.life.release([lease], deadline).failed:
        current = store.lease_of(failed.address)
        # An unknown device that is in use was not touched: it stays unknown.
        untouched = current is not None and not current.provider
        if current is not None and (
            force or (untouched and isinstance(error, exception.DeviceInUse))
        ):
            store.delete([current])
        if not force:
            raise error
        _forget_record(manager, failed, deadline)


def _forget_record(manager: Manager, lease: Lease, deadline: float) -> None:
    """Let the helper forget as well what is on vfio-pci no more."""
    try:
        manager.catalog.reconciler.disclaim(
            lease.uuid, lease.members, manager.store.until(deadline), deadline
        )
    except exception.OsAccError as error:
        LOG.warning("%s stays on the helper's record: %s", lease.address, error)


def adopt_device(
    manager: Manager,
    address: PciAddress,
    consumer: str,
    driver: str | None,
    *,
    siblings: Mapping[PciAddress, str] = _NOTHING,
) -> Lease:
    """Record who has a device that is prepared for a guest without a lease.

    :param driver: the driver to which it goes back one day, '' for none.
    :param siblings: the same for those functions of its IOMMU group that
        are prepared for a guest as well.
    :raises NotFound: it is not on vfio-pci, or not named for os_acc.
    :raises AlreadyLeased: a lease has it.
    :raises Conflict: the consumer has something unfinished.
    """
    _check_address(address)
    consumer = consumer_uuid(consumer)
    deadline = time.monotonic() + manager.settings.plug_timeout
    store = manager.store.until(deadline)
    records = manager.catalog.reconciler.records(deadline)
    stock = manager.discover(deadline)
    found = _Unknown(manager, stock, address, records, deadline)
    draft = dataclasses.replace(found.lease(driver, siblings), consumer=consumer)
    with manager.locks.hold([consumer_lock(consumer)], deadline):
        held = store.leases(consumer)
        if any(each.state is not LeaseState.HELD for each in held):
            raise exception.Conflict(
                f"consumer {consumer} has accelerators that are not ready",
                hint="unplug it, or release those that are quarantined, first",
                reason=exception.ConflictReason.CONSUMER,
            )
        if held:
            # One consumer has one request: it joins what is there.
            draft = dataclasses.replace(draft, request=held[0].request)
        if store.lease_of(address) is None:
            # First the helper's record: a lease that it does not know would be
            # given back to nothing.
            before = found.recorded.lease if found.recorded else ""
            draft = manager.catalog.reconciler.claim(draft, before, store, deadline)
        (lease,) = store.add([dataclasses.replace(draft, state=LeaseState.HELD)])
        return lease


def _check_address(address: object) -> None:
    if not isinstance(address, PciAddress):
        raise exception.InvalidInput(
            f"{exception.show(address)} is no PciAddress",
            hint="a PCI address looks like 0000:3b:02.1",
        )


def _is_ours(stock: Inventory, address: PciAddress) -> bool:
    """Whether the operator gave it to os_acc, and to nobody else."""
    for refused in stock.refused:
        if refused.address == address:
            return refused.reason is not RejectReason.NOVA_CLAIMS
    return any(
        address in handle.members
        for provider in stock.providers.values()
        for handle in provider.device.handles
    )


def _driver(address: PciAddress, name: str | None) -> str:
    if name is None:
        raise exception.InvalidInput(
            f"nothing is recorded of the driver that {address} had",
            hint="name it: --driver NAME, or for another function of the group "
            "--sibling ADDRESS=NAME; '' for none",
        )
    if not is_driver_name(name):
        raise exception.InvalidInput(
            f"{exception.show(name)} is not the name of a driver"
        )
    return name


class _Unknown:
    """A device without a lease, as its group stands now.

    :ivar recorded: what the privileged helper has on record of it, if it does.
    :raises NotFound: there is nothing to give back or to adopt.
    """

    def __init__(
        self,
        manager: Manager,
        stock: Inventory,
        address: PciAddress,
        records: Mapping[PciAddress, HelperRecord],
        deadline: float,
    ) -> None:
        self._manager, self._host, self._deadline = manager, stock.host, deadline
        self._address, self._records = address, records
        self._function = stock.host.function(address)
        self.recorded = records.get(address)
        # The configuration may have changed since the helper took it for us.
        if self.recorded is None:
            self._check_prepared(stock)

    def lease(self, driver: str | None, siblings: Mapping[PciAddress, str]) -> Lease:
        """A lease that gives it back."""
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
        )

    def _check_prepared(self, stock: Inventory) -> None:
        if not _is_ours(stock, self._address):
            raise exception.NotFound(
                f"{self._address} is not for os_acc to touch",
                hint="name it in [os_acc] device_spec, and not in Nova's own options",
                kind=exception.ObjectKind.DEVICE,
            )
        if not vfio.is_vfio_driver(self._function.driver):
            raise exception.NotFound(
                f"{self._address} is not prepared for a guest: it is with "
                f"{self._function.driver or 'no driver'}",
                kind=exception.ObjectKind.DEVICE,
            )

    @property
    def _is_the_guests(self) -> bool:
        if self.recorded is not None and not _is_damaged(self.recorded):
            return self.recorded.is_the_guests
        return vfio.is_vfio_driver(self._function.driver)

    def _members(self) -> tuple[PciAddress, ...]:
        """The functions of its group that are taken: they go together."""
        members = self._host.group_of(self._address).members
        return tuple(each for each in members if self._is_member(each))

    def _is_member(self, address: PciAddress) -> bool:
        function = self._host.functions.get(address)
        if function is None:
            return False
        there = self._records.get(address)
        if there is not None and self.recorded is not None:
            return there.lease == self.recorded.lease
        return self._is_the_guests and vfio.is_vfio_driver(function.driver)

    def _prior(self, address: PciAddress, driver: str | None) -> PriorBinding:
        (now,) = verification.read_prior(self._manager.root, [address], self._deadline)
        if not self._is_the_guests:
            return now
        there = self._records.get(address)
        if (
            there is None
            or _is_damaged(there)
            or (vfio.is_vfio_driver(there.driver) and driver != there.driver)
        ):
            name = _driver(address, driver) or None
            return dataclasses.replace(now, driver=name, driver_override=None)
        if driver not in (None, there.driver or ""):
            raise exception.InvalidInput(
                f"{address} goes back to {there.driver or 'no driver'}, says the "
                "privileged helper's record",
                hint="name no driver for it; give it to another one afterwards",
            )
        return dataclasses.replace(
            now, driver=there.driver, driver_override=there.driver_override
        )


def _is_damaged(there: HelperRecord) -> bool:
    return there.lease == record.UNREADABLE
