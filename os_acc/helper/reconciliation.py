# SPDX-License-Identifier: Apache-2.0

"""Reconcile the privileged helper's records with the store.

A function or slot that the helper has taken without a lease here belongs to a
consumer whose lease is lost. It is not offered until an operator adopts or releases it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from oslo_log import log

from os_acc.helper import client
from os_acc.objects.lease import HelperRecord, Lease
from os_acc.objects.mdev import DeviceAddress, MdevSlot, in_order
from os_acc.objects.pci import PciAddress
from os_acc.objects.records import RecordedState
from os_acc.privsep import mdev
from os_acc.store.leases import Store

LOG = log.getLogger(__name__)

_T = TypeVar("_T")


class Reconciler:
    """Compares the helper's records with the store when necessary; thread-safe.

    The helper is queried if the store is new to this process, if its records
    disagreed with the store the last time, and after :meth:`invalidate`.
    """

    def __init__(self, helper: client.Helper) -> None:
        self._helper = helper
        self._agreed = ""

    def invalidate(self) -> None:
        """Query the helper the next time, because its records may have changed."""
        self._agreed = ""

    def claim(
        self, lease: Lease, instead_of: str, store: Store, deadline: float
    ) -> Lease:
        """Have the helper record a new lease of a device that is already taken.

        :param instead_of: the lease that the helper has on record for it, or ''.
        :returns: the lease with its epoch, for the store.
        :raises DeviceClaimed: another lease has claimed it meanwhile.
        """

        def reserve(epoch: int) -> Lease:
            fresh = dataclasses.replace(lease, epoch=epoch)
            self._helper.reserve(fresh, deadline, instead_of=instead_of)
            return fresh

        return _in_time(reserve, store)

    def disclaim(
        self,
        lease: str,
        addresses: Sequence[PciAddress],
        store: Store,
        deadline: float,
    ) -> None:
        """Have the helper remove records of functions that are not restored."""
        _in_time(
            lambda epoch: self._helper.forget(lease, addresses, epoch, deadline), store
        )

    def disclaim_slot(
        self, lease: Lease, slot: MdevSlot, store: Store, deadline: float
    ) -> None:
        """Have the helper remove the record of a slot that no plugin releases.

        The mediated device of the lease is removed, too, unless a process holds it.
        """

        def forget(epoch: int) -> None:
            fresh = dataclasses.replace(lease, epoch=epoch)
            self._helper.remove_mdev(fresh, slot, deadline, is_removed=True)

        _in_time(forget, store)

    def repair_slot(
        self, lease: Lease, slot: MdevSlot, store: Store, deadline: float
    ) -> None:
        """Have the helper replace its damaged record of a slot.

        It is removed if no plugin has to release the slot, or the parent is gone.
        """

        def repair(epoch: int) -> None:
            fresh = dataclasses.replace(lease, epoch=epoch)
            self._helper.create_mdev(fresh, slot, deadline, mdev.repair_record)

        _in_time(repair, store)

    def records(self, deadline: float) -> Mapping[DeviceAddress, HelperRecord]:
        """Return all records of the helper, with or without a lease here."""
        return {each.address: each for each in self._helper.recorded(deadline)}

    def recorded_state(
        self, store: Store, deadline: float, found: RecordedState | None = None
    ) -> RecordedState:
        """Return the leases, and the functions and slots claimed without a lease.

        :param found: the records as read just now; None: they are read.
        :raises StoreReplaced: the store was replaced during this call.
        :raises HelperUnavailable, HelperLost: the helper does not answer.
        """
        found = found or store.recorded_state()
        if found.store == self._agreed and not found.helper_claims:
            return found
        before = self._helper.recorded(deadline)
        found = store.recorded_state()
        claimed = _without_lease(before, found)
        if claimed:
            # An unplug may have ended meanwhile, which also removes the record.
            after = _without_lease(self._helper.recorded(deadline), found)
            claimed = dict(claimed.items() & after.items())
        if claimed != found.helper_claims:
            known = {uuid for each in found.leases for uuid in each.recorded_uuids}
            lost = [each for each in claimed if claimed[each] not in known]
            for address in sorted(lost, key=in_order):
                LOG.error(
                    "%s is claimed for the lost lease %s, so it is not offered: run "
                    "'os-acc device adopt' or 'os-acc device release'",
                    address,
                    claimed[address],
                )
            store.record_helper_claims(claimed, found.store)
            found = store.recorded_state()
        if _are_in_place(before, found):
            self._agreed = found.store
        return found


def _without_lease(
    records: tuple[HelperRecord, ...], recorded: RecordedState
) -> dict[DeviceAddress, str]:
    leased = recorded.leased.union(recorded.damaged_claims)
    return {each.address: each.lease for each in records if each.address not in leased}


def _are_in_place(records: tuple[HelperRecord, ...], recorded: RecordedState) -> bool:
    """Return whether each record of a leased function is that of its lease.

    A reboot may have moved the device of another lease to it.
    """
    owners = {
        address: lease.recorded_uuids
        for lease in recorded.leases
        for address in lease.members
    }
    return all(
        each.lease in owners.get(each.address, (each.lease,)) for each in records
    )


def _in_time(step: Callable[[int], _T], store: Store) -> _T:
    """Run a privileged step that belongs to no recorded lease."""
    try:
        return step(store.next_epoch())
    except client.EpochRefused as error:
        return step(store.next_epoch(error.accepted))
