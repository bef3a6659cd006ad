# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""Long random histories of one host, with everything that can happen to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from os_acc import exception, operations
from os_acc.manager import Manager
from os_acc.testing import Outcome
from tests.stress import processes
from tests.stress.bench import unfinished
from tests.stress.killer import Way
from tests.stress.model import Model, choose

VFIO = "vfio-pci"
CONSUMERS = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(1, 5)]
ATTRIBUTES = ["driver_override", "unbind", "drivers_probe", "reset"]

consumers = st.sampled_from(CONSUMERS)
pick = st.integers(0, 20)
picks = st.lists(st.integers(0, 20), min_size=1, max_size=3)


class Histories(Model):
    """What may happen, and what has to be true after each step."""

    # -- what callers do -----------------------------------------------------

    @rule(consumer=consumers, picks=picks)
    def plug(self, consumer: str, picks: list[int]) -> None:
        request = self._request(picks)
        if request is None:
            return
        must = not self.faulty and self._is_blank(consumer) and self._has_room(request)
        try:
            entries = self.manager.plug({"uuid": consumer}, *request)
        except exception.OsAccError:
            if must:
                raise
            self._failed(consumer)
        else:
            self._plugged(consumer, request, entries)

    @rule(pick=pick, by_request=st.booleans())
    def plug_again(self, pick: int, by_request: bool) -> None:
        consumer = choose(self.holds, pick)
        if consumer is None:
            return
        request = self.requests[consumer] if by_request else (None, None)
        must = not self.faulty and self.unready.isdisjoint(self._members(consumer))
        try:
            entries = self.manager.plug({"uuid": consumer}, *request)
        except exception.OsAccError:
            if must:
                raise
            self._failed(consumer)
        else:
            self._plugged(consumer, self.requests[consumer], entries)

    @rule(consumer=consumers)
    def unplug(self, consumer: str) -> None:
        leases = self._leases(consumer, quarantined=False)
        must = not self.faulty and self.guests.keys().isdisjoint(
            self._members(consumer)
        )
        try:
            assert self.manager.unplug({"uuid": consumer}) == len(leases)
        except exception.DevicesUnreleased as error:
            if must:
                raise
            count = len(error.released) + len(error.unreleased)
            assert count == len(leases)
        except exception.OsAccError:
            if must:
                raise
        self._forget(consumer)

    @rule(old=consumers, new=consumers)
    def rekey(self, old: str, new: str) -> None:
        must = (
            not self.faulty
            and old in self.holds
            and not unfinished(self._leases(old))
            and not self._leases(new)
        )
        try:
            self.manager.rekey(old, new)
        except exception.OsAccError:
            if must:
                raise
            return
        assert not self._leases(old)
        if old in self.holds:
            self.holds[new] = self.holds.pop(old)
            self.requests[new] = self.requests.pop(old)

    @rule(
        consumer=consumers,
        other=consumers,
        picks=picks,
        others=picks,
        leaves=st.booleans(),
    )
    def with_a_second_process(
        self,
        consumer: str,
        other: str,
        picks: list[int],
        others: list[int],
        leaves: bool,
    ) -> None:
        """Two services on one host, at the same time."""
        theirs = self._request(others)
        if consumer == other:
            other = CONSUMERS[CONSUMERS.index(consumer) - 1]
        if theirs is None:
            return

        def work() -> list[Any] | None:
            manager = self.bench.boot()
            try:
                if leaves:
                    manager.unplug({"uuid": other})
                    return None
                return manager.plug({"uuid": other}, *theirs)
            except exception.OsAccError:
                return None

        child = processes.Child(work)
        self.plug_beside(consumer, picks)
        ended = child.wait()
        assert not ended.trouble, ended.trouble
        if ended.value is not None:
            self._plugged(other, theirs, ended.value)
        elif leaves:
            self._forget(other)
        else:
            self._failed(other)

    # -- what happens to processes -------------------------------------------

    @rule(
        consumer=consumers,
        other=consumers,
        picks=picks,
        action=st.sampled_from(["plug", "unplug", "rekey", "restart"]),
        at=st.integers(1, 60),
        way=st.sampled_from([Way.CLIENT, Way.WORKER, Way.GROUP]),
        again=st.booleans(),
    )
    def crash(
        self,
        consumer: str,
        other: str,
        picks: list[int],
        action: str,
        at: int,
        way: Way,
        again: bool,
    ) -> None:
        """A process is killed at its n-th touch; another one goes on."""
        request = self._request(picks)
        if request is None:
            return
        had = {each: len(self._leases(each)) for each in (consumer, other)}
        actions: dict[str, Callable[[Manager], object]] = {
            "plug": lambda manager: manager.plug({"uuid": consumer}, *request),
            "unplug": lambda manager: manager.unplug({"uuid": consumer}),
            "rekey": lambda manager: manager.rekey(consumer, other),
            "restart": lambda _manager: self.bench.manager(),
        }
        self._killed(lambda: actions[action](self.manager), at, way)
        if again:
            self.restart()
        self._look_after_crash(consumer, other, request, had)

    @rule()
    def restart(self) -> None:
        """The service starts again; guests run on."""
        self.manager = self.bench.manager()
        for lease in unfinished(self.manager.store.leases()):
            names = {str(address) for address in lease.members}
            assert self.faulty or names & set(self.guests), lease
        for consumer in tuple(self.holds):
            self._sync(consumer)

    # -- what happens to the host --------------------------------------------

    @rule(pick=pick)
    def pull_out(self, pick: int) -> None:
        """Somebody pulls out a card, or one function of it; leased or not."""
        vfs = {address for address in self.free if self._is_vf(address)}
        held = {address[:7] for address in self.guests}
        inside = [a for a in self.free.keys() - vfs if a[:7] not in held]
        address = choose(inside, pick)
        if address is None or len(self.pulled) == 3:
            return
        below = {address, *vfs}
        spec = self.kernel.hot_unplug(address)
        self.pulled.append(spec)
        left = {each.address for each in self.kernel.snapshot()}
        gone = below - left
        self.unready |= gone | self._beside(gone)
        for each in gone:
            self.free.pop(each, None)

    @rule()
    def put_in(self) -> None:
        """What was pulled out comes back, maybe in another IOMMU group."""
        if self.pulled:
            self.kernel.hot_plug(self.pulled.pop())
            self._learn()

    @rule()
    def reboot(self) -> None:
        self.kernel.reboot()
        self.guests.clear()
        self.free.clear()
        self._learn()
        leases = self.manager.store.leases()
        self.unready |= {str(a) for lease in leases for a in lease.members}
        self.restart()

    @rule(pick=pick)
    def guest_starts(self, pick: int) -> None:
        consumer = choose(self.holds, pick)
        if consumer is None:
            return
        for number, address in enumerate(self.holds[consumer]):
            if address in self.unready or address in self.guests:
                continue
            self.kernel.hold(address, 5000 + 10 * len(self.guests) + number)
            self.guests[address] = consumer

    @rule(pick=pick)
    def guest_ends(self, pick: int) -> None:
        address = choose(self.guests, pick)
        if address is not None:
            self.kernel.let_go(address)
            del self.guests[address]

    @rule(
        pick=pick,
        anywhere=st.booleans(),
        attribute=st.sampled_from(ATTRIBUTES),
        effect=st.sampled_from(["fail", "ignore", "kill"]),
        nth=st.integers(1, 3),
    )
    def fault(
        self, pick: int, anywhere: bool, attribute: str, effect: str, nth: int
    ) -> None:
        """One of the next writes goes wrong."""
        address = None if anywhere else choose(self.free, pick)
        getattr(self.kernel, effect)(address, attribute, nth=nth)
        self.faulty = True

    @rule()
    def lift(self) -> None:
        """All is well again; what is quarantined waits for the operator."""
        self.kernel.lift()
        self.faulty = False

    @rule(pick=pick)
    def operator_releases(self, pick: int) -> None:
        found = {str(lease.address): lease for lease in self._quarantined()}
        address = choose(found, pick)
        if address is None:
            return
        lease = found[address]
        try:
            operations.release_device(self.manager, lease.address, None)
        except exception.OsAccError:
            if not self.faulty:
                raise

    # -- what has to be true -------------------------------------------------

    @invariant()
    def no_device_has_two_consumers(self) -> None:
        members = [
            address
            for lease in self.manager.store.leases()
            for address in lease.members
        ]
        assert len(members) == len(set(members))

    @invariant()
    def no_group_is_split(self) -> None:
        owners: dict[int, set[str]] = {}
        for lease in self.manager.store.leases():
            for address in map(str, lease.members):
                if address in self.free:
                    group = self.kernel.group(address)
                    assert group is not None
                    owners.setdefault(group, set()).add(lease.consumer)
        assert all(len(names) == 1 for names in owners.values()), owners

    @invariant()
    def what_is_not_leased_is_as_it_was(self) -> None:
        leased = self._all_members()
        for now in self.kernel.snapshot():
            if now.address not in leased:
                free = self.free[now.address]
                assert now == free, f"{now}, it was {free}"

    @invariant()
    def what_was_returned_agrees_with_the_store(self) -> None:
        for consumer, addresses in self.holds.items():
            held = self._held(consumer)
            assert sorted(str(lease.address) for lease in held) == sorted(addresses)
            for lease in held:
                for address in map(str, lease.members):
                    if address not in self.unready:
                        assert self.kernel.state(address).driver == VFIO

    @invariant()
    def guests_keep_their_devices(self) -> None:
        leased = self._all_members()
        for address in self.guests:
            assert self.kernel.state(address).driver == VFIO
            assert address in leased
        writes = self.kernel.writes()
        for write in writes[self.seen :]:
            assert write.outcome != Outcome.BLOCKED, write
        self.seen = len(writes)

    def teardown(self) -> None:
        try:
            self._end()
        finally:
            super().teardown()

    def _end(self) -> None:
        """All instances end; the operator tidies up; the host is as it was."""
        self.kernel.lift()
        self.faulty = False
        for address in self.guests:
            self.kernel.let_go(address)
        self.guests.clear()
        self.restart()
        for lease in self._quarantined():
            operations.release_device(self.manager, lease.address, None)
        for consumer in CONSUMERS:
            self.manager.unplug({"uuid": consumer})
        assert self.manager.store.leases() == ()
        self.what_is_not_leased_is_as_it_was()


TestHistories = Histories.TestCase
