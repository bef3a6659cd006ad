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

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)

from os_acc import exception, operations
from os_acc.manager import Manager
from os_acc.objects.lease import Lease, LeaseState
from os_acc.privsep import kernel as privsep_kernel
from os_acc.testing import FunctionSpec, FunctionState, HostSpec, Outcome, hosts
from tests.stress import bench as benches
from tests.stress import processes
from tests.stress.bench import Bench, unfinished
from tests.stress.killer import Way
from tests.stress.recorder import Point, Recorder

VFIO = "vfio-pci"
CONSUMERS = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(1, 5)]
ATTRIBUTES = ["driver_override", "unbind", "drivers_probe", "reset"]

Request = tuple[dict[str, Any], dict[str, str]]

consumers = st.sampled_from(CONSUMERS)
pick = st.integers(0, 20)
picks = st.lists(st.integers(0, 20), min_size=1, max_size=3)


def host() -> HostSpec:
    """Twelve functions: cards with siblings, VFs, PFs, with and without driver."""
    return HostSpec(
        (
            *hosts.gpu("0000:17", 0),
            hosts.nic("0000:3b", 0, name="ens1f0", vfs=4, boot_vfs=2),
            hosts.fpga("0000:5e", 0),
            hosts.fpga("0000:5f", 0),
            hosts.nic("0000:af", 1, name="ens2f0"),
            *hosts.gpu("0000:b1", 1, card=2),
            hosts.qat_gen4("0000:d8", 1),
            hosts.nvme_disk("0000:d9", 1, 1),
        )
    )


def choose(options: Iterable[str], pick: int) -> str | None:
    """One of the options, where there are any.

    Races between processes decide what there is to choose from, but must not
    decide what is drawn: Hypothesis wants to draw the same each time.
    """
    found = sorted(options)
    return found[pick % len(found)] if found else None


class Histories(RuleBasedStateMachine):
    """One host, its library, and what has to be true of them.

    :ivar holds: what each consumer has, by the entries that it was given.
    :ivar requests: how it asked for that.
    :ivar asked: the same, by the uuid of each lease.
    :ivar guests: functions that a running guest holds, with its consumer.
    :ivar unready: functions that are leased, but not as a guest needs them:
        after a reboot, or after they were pulled out.
    :ivar free: how each function is when nobody has it.
    :ivar pulled: what was pulled out and may be plugged in again.
    :ivar faulty: whether a fault may be waiting for a write.
    """

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.place = tempfile.mkdtemp(prefix="os-acc-", dir=memory)
        self.bench = Bench(os.path.join(self.place, "bench"))
        self.kernel = self.bench.build(host())
        self.before = privsep_kernel.current
        privsep_kernel.current = self.kernel
        self.manager: Manager = self.bench.manager()
        self.holds: dict[str, list[str]] = {}
        self.requests: dict[str, Request] = {}
        self.asked: dict[str, Request] = {}
        self.guests: dict[str, str] = {}
        self.unready: set[str] = set()
        self.pulled: list[FunctionSpec] = []
        self.faulty = False
        self.seen = 0
        self.free: dict[str, FunctionState] = {}
        self._learn()

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
            privsep_kernel.current = self.before
            shutil.rmtree(self.place)

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

    # -- the model -----------------------------------------------------------

    def plug_beside(self, consumer: str, picks: Sequence[int]) -> None:
        """Plug while somebody else does as well: there may be no room."""
        request = self._request(picks)
        if request is None:
            return
        try:
            entries = self.manager.plug({"uuid": consumer}, *request)
        except exception.OsAccError:
            self._failed(consumer)
        else:
            self._plugged(consumer, request, entries)

    def _request(self, picks: Sequence[int]) -> Request | None:
        places = [str(each.device.address) for each in self.manager.providers()]
        if not places:
            return None
        chosen = [places[pick % len(places)] for pick in picks]
        return benches.request(self.manager, chosen)

    def _has_room(self, request: Request) -> bool:
        leased = self._all_members()
        wanted = request[0]["allocations"]
        for provider in self.manager.providers():
            free = [
                handle
                for handle in provider.device.handles
                if leased.isdisjoint(map(str, handle.members))
            ]
            resources = wanted.get(provider.uuid, {}).get("resources", {})
            if sum(resources.values()) > len(free):
                return False
        return True

    def _plugged(self, consumer: str, request: Request, entries: list[Any]) -> None:
        addresses = [entry["pci_id"] for entry in entries]
        if consumer in self.holds:
            assert sorted(addresses) == sorted(self.holds[consumer])
        self.holds[consumer] = addresses
        self.requests[consumer] = request
        self.asked.update((entry["uuid"], request) for entry in entries)
        self.unready -= self._members(consumer)
        recorded = self.manager.attached({"uuid": consumer})[consumer]
        bound = [entry for entry in recorded if entry["state"] == "Bound"]
        assert sorted(bound, key=_uuid) == sorted(entries, key=_uuid)

    def _failed(self, consumer: str) -> None:
        """A plug that failed has changed nothing that the consumer had."""
        held = sorted(str(lease.address) for lease in self._held(consumer))
        assert held == sorted(self.holds.get(consumer, []))
        # Making ready again may have stopped half-way.
        if self.faulty or not self.unready.isdisjoint(self._members(consumer)):
            self.unready |= self._members(consumer) - set(self.guests)

    def _forget(self, consumer: str) -> None:
        self.holds.pop(consumer, None)
        self.requests.pop(consumer, None)
        self.unready &= self._all_members()

    def _sync(self, consumer: str) -> None:
        """Believe the store of a consumer whose process was killed."""
        held = [str(lease.address) for lease in self._held(consumer)]
        if held:
            self.holds[consumer] = held
        else:
            self._forget(consumer)

    def _look_after_crash(
        self, consumer: str, other: str, request: Request, had: dict[str, int]
    ) -> None:
        wanted = len(request[0]["mappings"])
        for each in {consumer, other}:
            held = self._held(each)
            if not self.faulty:
                assert len(held) in {0, had[consumer], had[other], wanted}
            for lease in held:
                self.asked.setdefault(lease.uuid, request)
                self.requests[each] = self.asked[lease.uuid]
            self._sync(each)

    def _killed(self, action: Callable[[], object], at: int, way: Way) -> None:
        def run() -> None:
            client, touches = os.getpid(), itertools.count(1)

            def at_touch(point: Point, _what: str) -> None:
                if next(touches) < at or point.in_worker != (way is Way.WORKER):
                    return
                if way is Way.GROUP:
                    os.killpg(0, signal.SIGKILL)
                os.kill(os.getpid() if point.in_worker else client, signal.SIGKILL)

            Recorder(self.place, at_touch, lambda _point, _go: None).install(
                self.kernel
            )
            try:
                action()
            except exception.OsAccError:
                return

        def reaped() -> None:
            processes.become_reaper()
            ended = processes.call(run)
            processes.reap()
            assert not ended.trouble, ended.trouble

        ended = processes.call(reaped)
        assert not ended.trouble, ended.trouble

    def _learn(self) -> None:
        """How functions are that nobody has taken yet."""
        for state in self.kernel.snapshot():
            self.free.setdefault(state.address, state)

    def _is_blank(self, consumer: str) -> bool:
        return not self._leases(consumer)

    def _leases(self, consumer: str, *, quarantined: bool = True) -> tuple[Lease, ...]:
        return tuple(
            lease
            for lease in self.manager.store.leases(consumer)
            if quarantined or lease.state is not LeaseState.QUARANTINED
        )

    def _held(self, consumer: str) -> list[Lease]:
        leases = self.manager.store.leases(consumer)
        return [lease for lease in leases if lease.state is LeaseState.HELD]

    def _quarantined(self) -> list[Lease]:
        leases = self.manager.store.leases()
        return [lease for lease in leases if lease.state is LeaseState.QUARANTINED]

    def _members(self, consumer: str) -> set[str]:
        leases = self.manager.store.leases(consumer)
        return {str(address) for lease in leases for address in lease.members}

    def _all_members(self) -> set[str]:
        leases = self.manager.store.leases()
        return {str(address) for lease in leases for address in lease.members}

    def _beside(self, addresses: set[str]) -> set[str]:
        """What is leased together with one of these."""
        return {
            str(address)
            for lease in self.manager.store.leases()
            if addresses & set(map(str, lease.members))
            for address in lease.members
        }

    def _is_vf(self, address: str) -> bool:
        path = self.kernel.path("sys/bus/pci/devices", address, "physfn")
        return os.path.lexists(path)


def _uuid(entry: dict[str, Any]) -> str:
    return str(entry["uuid"])


TestHistories = Histories.TestCase
