# SPDX-License-Identifier: Apache-2.0

"""Invariants of host and store after each step of a history."""

from __future__ import annotations

import collections
import dataclasses
import sys

from hypothesis.stateful import invariant

from os_acc.attach import operator_actions
from os_acc.objects.lease import LeaseState
from os_acc.placement import capacity
from os_acc.testing import WriteOutcome
from tests.stress import observation
from tests.stress.model import CONSUMERS, ERASED, Model
from tests.stress.observation import Sight
from tests.stress.second_service import SecondService
from tests.unit import acme

VFIO = "vfio-pci"
#: The store may be lost at every n-th step.
_STEPS_PER_LOSS = 2


@dataclasses.dataclass(slots=True)
class Counts:
    """The steps that were carried out, and the checks that held.

    :ivar steps: the steps after which all invariants held.
    :ivar deeds: number of executions of each step.
    """

    steps: int = 0
    histories: int = 0
    deeds: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter
    )


class Truths(Model):
    """The checks after each step, and at the end of a history.

    :param counts: counts the complete histories.
    """

    def __init__(self, directory: str, second: SecondService, counts: Counts) -> None:
        super().__init__(directory, second)
        self._counts = counts
        self._steps = self._done = self._idle = 0

    def may_lose_its_store(self) -> bool:
        """Return whether this step may lose the store.

        A loss takes as long as a dozen other steps, and discards the state that the
        history has built up.
        """
        return self._steps % _STEPS_PER_LOSS == 0 < self._steps

    @invariant()
    def all_is_as_it_has_to_be(self) -> None:
        self._check()
        self._steps += 1
        done = self.deeds.total()
        self._idle += done == self._done
        self._done = done

    def _check(self) -> None:
        now = observation.take(self.manager, self.kernel, self.seen)
        self.leases = now.leases
        self.seen += len(now.writes)
        self._no_device_has_two_consumers(now)
        self._no_group_is_split(now)
        self._what_is_not_leased_is_as_it_was(now)
        self._what_was_returned_agrees_with_the_store(now)
        self._no_lease_is_without_its_device(now)
        self._guests_keep_their_devices(now)
        self._what_is_erased_is_kept_from_all(now)

    def _no_device_has_two_consumers(self, now: Sight) -> None:
        assert sum(len(lease.members) for lease in now.leases) == len(now.members)

    def _no_group_is_split(self, now: Sight) -> None:
        owners: dict[int, set[str]] = {}
        for lease in now.leases:
            for address in map(str, lease.members):
                if address in self.free:
                    owners.setdefault(now.groups[address], set()).add(lease.consumer)
        assert all(len(names) == 1 for names in owners.values()), owners

    def _what_is_not_leased_is_as_it_was(self, now: Sight) -> None:
        for address in now.states.keys() - now.members:
            state, free = now.states[address], self.free[address]
            assert state == free, f"{state}, it was {free}"

    def _what_was_returned_agrees_with_the_store(self, now: Sight) -> None:
        held: dict[str, list[str]] = {}
        for lease in now.held:
            held.setdefault(lease.consumer, []).append(str(lease.address))
        returned = {each: sorted(self.holds[each]) for each in self.holds}
        assert {each: sorted(held[each]) for each in held} == returned

    def _no_lease_is_without_its_device(self, now: Sight) -> None:
        for lease in now.held:
            for address in map(str, lease.members):
                if address not in self.unready:
                    assert now.states[address].driver == VFIO
                    assert now.groups[address] == lease.handle.iommu_group

    def _guests_keep_their_devices(self, now: Sight) -> None:
        for address in self.guests:
            assert now.states[address].driver == VFIO
            assert address in now.members
        for write in now.writes:
            assert write.outcome != WriteOutcome.BLOCKED, write

    def _what_is_erased_is_kept_from_all(self, now: Sight) -> None:
        """Check that data of a consumer is in no free device, and erased in none's."""
        for address in ERASED:
            if address in now.states and acme.has_data(self.bench.root, address):
                assert address in now.members, f"{address} is free, with data"
        over = [lease for lease in now.leases if lease.erasure]
        if not over:
            return
        inventory = self.manager.discover()
        capacities = capacity.capacities(
            tuple(inventory.providers.values()), inventory.recorded_state
        )
        reserved = {
            each.uuid: sum(units.reserved for units in each.units.values())
            for each in capacities
        }
        for lease in over:
            assert lease.consumer not in CONSUMERS
            assert reserved[lease.provider] == 1, f"{lease.address} is not reserved"
            assert self.guests.keys().isdisjoint(map(str, lease.members)), lease
            if lease.state is LeaseState.QUARANTINED:
                continue
            assert lease.state is LeaseState.ERASING
            for address in now.states.keys() & set(map(str, lease.members)):
                assert now.states[address] == self.free[address]

    def teardown(self) -> None:
        # A failure within the history is the one to report.
        failed = isinstance(sys.exc_info()[1], Exception)
        try:
            if not failed:
                self._end()
                self._counts.histories += 1
                self._counts.steps += self._steps
                self._counts.deeds += self.deeds
                self._counts.deeds["steps that found nothing to do"] += self._idle
        finally:
            super().teardown()

    def _end(self) -> None:
        """End all instances, release devices as the operator; nothing is lost."""
        self.kernel.lift()
        self.faulty = False
        for address in self.guests:
            self.kernel.let_go(address)
        self.guests.clear()
        self._start_again()
        for lease in self._quarantined():
            if not lease.erasure:
                operator_actions.release_device(self.manager, lease.address, None)
        for consumer in CONSUMERS:
            self.manager.unplug({"uuid": consumer})
        while self.pulled:
            self._put_in()
        self._erase_all()
        self.holds.clear()
        self._check()
        assert not self.leases
        assert self.free.keys() == self.there
        assert self._offered() == self.offered
