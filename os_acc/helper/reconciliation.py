# SPDX-License-Identifier: Apache-2.0

"""Holds the privileged helper's record of what it has taken against the store.

A function that the helper has taken without a lease here belongs to a consumer
whose lease is lost. It is not offered until an operator adopts or releases it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from oslo_log import log

from os_acc.helper import client
from os_acc.objects.lease import HelperRecord, Lease, RecordedState
from os_acc.objects.pci import PciAddress
from os_acc.store.leases import Store

LOG = log.getLogger(__name__)

_T = TypeVar("_T")


class Reconciler:
    """Knows for which store the helper has been asked; thread-safe.

    The helper is asked where the store is new to this process, where its record
    did not agree with the store the last time, and after :meth:`doubt`.
    """

    def __init__(self, helper: client.Helper) -> None:
        self._helper = helper
        self._agreed = ""

    def doubt(self) -> None:
        """Have the helper asked at the next look: it knows something else."""
        self._agreed = ""

    def claim(
        self, lease: Lease, instead_of: str, store: Store, deadline: float
    ) -> Lease:
        """Have the helper record a new lease of a device that is taken already.

        :param instead_of: the lease that the helper has on record for it, or ''.
        :returns: the lease, for the store.
        :raises DeviceClaimed: by now it is another lease.
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
        """Have the helper forget functions that are not restored."""
        _in_time(
            lambda epoch: self._helper.forget(lease, addresses, epoch, deadline), store
        )

    def records(self, deadline: float) -> Mapping[PciAddress, HelperRecord]:
        """What the helper has on record, with a lease here or without."""
        return {each.address: each for each in self._helper.recorded(deadline)}

    def standing(self, store: Store, deadline: float) -> RecordedState:
        """The leases, and what is taken without one.

        :raises StoreReplaced: the store was replaced in these milliseconds.
        :raises HelperUnavailable, HelperLost: the helper does not say.
        """
        found = store.standing()
        if found.store == self._agreed and not found.claimed:
            return found
        before = self._helper.recorded(deadline)
        found = store.standing()
        claimed = _without_lease(before, found)
        if claimed:
            # An unplug may have ended meanwhile: then the record is gone, too.
            after = _without_lease(self._helper.recorded(deadline), found)
            claimed = dict(claimed.items() & after.items())
        if claimed != found.claimed:
            for address, lease in sorted(claimed.items()):
                LOG.error(
                    "%s is taken for lease %s, which is lost; it is not offered "
                    "until an operator adopts or releases it",
                    address,
                    lease,
                )
            store.keep_recorded(claimed, found.store)
            found = store.standing()
        self._agreed = found.store
        return found


def _without_lease(
    records: tuple[HelperRecord, ...], standing: RecordedState
) -> dict[PciAddress, str]:
    leased = standing.leased.union(standing.unreadable)
    return {each.address: each.lease for each in records if each.address not in leased}


def _in_time(step: Callable[[int], _T], store: Store) -> _T:
    """Take a privileged step that belongs to no recorded lease."""
    try:
        return step(store.next_epoch())
    except client.EpochRefused as error:
        return step(store.next_epoch(error.accepted))
