# SPDX-License-Identifier: Apache-2.0

"""Long random histories of one host, with all its events, break no invariant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from importlib import metadata

import hypothesis
import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from stevedore import ExtensionManager

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.attach.manager import Manager
from os_acc.objects.lease import LeaseState
from os_acc.plugins import loader
from tests import run_figures
from tests.stress import lost_store, observation, plugin_flows
from tests.stress.invariants import Counts
from tests.stress.kills import Way
from tests.stress.lost_store import Kind, Loss
from tests.stress.model import CONSUMERS, ERASED, SECONDS, choose
from tests.stress.numa_swaps import NumaSwaps
from tests.stress.second_service import SecondService
from tests.stress.simulated_host import unfinished
from tests.unit import acme

#: The entry point of the plugin that erases.
ERASES = metadata.EntryPoint("erases", "tests.unit.acme:ErasesXilinx", loader.NAMESPACE)

#: The approximate number of touches of disk or host by each action.
_TOUCHES = {"plug": 24, "unplug": 20, "rekey": 12, "restart": 4, "erase": 12}
_TOUCHES_OF_A_WORKER = 8
ATTRIBUTES = ["driver_override", "unbind", "drivers_probe", "reset"]

consumers = st.sampled_from(CONSUMERS)
pick = st.integers(0, 20)
picks = st.lists(st.integers(0, 20), min_size=1, max_size=3)


class Histories(NumaSwaps):
    """The steps of a history."""

    # -- actions of callers ---------------------------------------------------

    @initialize(requests=st.lists(picks, max_size=len(CONSUMERS)))
    def some_are_there(self, requests: list[list[int]]) -> None:
        """Plug some devices first: a history without any would show little."""
        for consumer, chosen in zip(CONSUMERS, requests, strict=False):
            self._plug(consumer, chosen)

    @rule(consumer=consumers, picks=picks, fresh=st.booleans())
    def plug(self, consumer: str, picks: list[int], fresh: bool) -> None:
        self._plug(self._one_without(consumer) if fresh else consumer, picks)

    def _plug(self, consumer: str, picks: list[int]) -> None:
        providers = self.manager.providers()
        request = self._request(providers, picks)
        if request is None:
            return
        blank = not self._leases(consumer)
        must = not self.faulty and blank and self._has_room(providers, request)
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

    @rule(consumer=consumers, pick=pick, that_has=st.booleans())
    def unplug(self, consumer: str, pick: int, that_has: bool) -> None:
        if that_has:
            consumer = choose(self.holds, pick) or consumer
        leases = self._leases(consumer, quarantined=False)
        must = not self.faulty and self.guests.keys().isdisjoint(
            self._members(consumer)
        )
        try:
            assert self.manager.unplug({"uuid": consumer}) == len(leases)
            self.deeds["unplugs"] += bool(leases)
        except exception.DevicesUnreleased as error:
            if must:
                raise
            count = len(error.released) + len(error.unreleased)
            assert count == len(leases)
        except exception.OsAccError:
            if must:
                raise
        self._look()
        self._forget(consumer)

    @rule(old=consumers, new=consumers, pick=pick, that_has=st.booleans())
    def rekey(self, old: str, new: str, pick: int, that_has: bool) -> None:
        if that_has:
            old = choose(self.holds, pick) or old
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
            self._look()
            return
        self._look()
        assert not self._leases(old)
        if old in self.holds:
            self.holds[new] = self.holds.pop(old)
            self.requests[new] = self.requests.pop(old)
            self.deeds["re-keys"] += 1

    @rule(
        consumer=consumers,
        other=consumers,
        picks=picks,
        others=picks,
        leaves=st.booleans(),
        fresh=st.booleans(),
    )
    def with_a_second_process(
        self,
        consumer: str,
        other: str,
        picks: list[int],
        others: list[int],
        leaves: bool,
        fresh: bool,
    ) -> None:
        """Run two services on one host at the same time."""
        if fresh:
            consumer = self._one_without(consumer)
        providers = self.manager.providers()
        ours = self._request(providers, picks)
        theirs = self._request(providers, others)
        if consumer == other:
            other = CONSUMERS[CONSUMERS.index(consumer) - 1]
        if ours is None or theirs is None:
            return

        with self.second.at_work(self.bench, other, None if leaves else theirs):
            self.plug_beside(consumer, ours)
        entries = self.second.answer()
        self.deeds["encounters of two processes"] += 1
        self._look()
        if entries is not None:
            self._plugged(other, theirs, entries)
        elif leaves:
            self._forget(other)
        else:
            self._failed(other)

    # -- events of processes --------------------------------------------------

    @rule(
        consumer=consumers,
        other=consumers,
        picks=picks,
        action=st.sampled_from(list(_TOUCHES)),
        at=st.integers(0, 60),
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
        """Kill a process at its n-th touch; another one goes on."""
        if action in ("unplug", "rekey"):
            # A consumer without devices touches nothing.
            consumer = choose(self.holds, at) or consumer
        request = self._request(self.manager.providers(), picks)
        if request is None:
            return
        had = {each: len(self._held(each)) for each in (consumer, other)}
        actions: dict[str, Callable[[Manager], object]] = {
            "plug": lambda manager: manager.plug({"uuid": consumer}, *request),
            "unplug": lambda manager: manager.unplug({"uuid": consumer}),
            "rekey": lambda manager: manager.rekey(consumer, other),
            "restart": lambda _manager: self.bench.start(),
            "erase": plugin_flows.advance,
        }
        touches = _TOUCHES[action] if way is not Way.WORKER else _TOUCHES_OF_A_WORKER
        self._killed(lambda: actions[action](self.manager), at % touches + 1, way)
        if again:
            self._start_again()
        self._look_after_crash(consumer, other, request, had)

    @rule()
    def restart(self) -> None:
        """Start the service again while guests run on."""
        if self.deeds.total() != self._as_started:
            self._start_again()
            self._as_started = self.deeds.total()

    @rule()
    def retry_failed_releases(self) -> None:
        """Retry as a service does at intervals; guests and operators are left alone."""
        left = unfinished(self.leases)
        quarantined = self._quarantined()
        attempts = self.manager.retrier.retry()
        assert not futures.wait(attempts, SECONDS).not_done
        self._look()
        self.unready &= observation.members(self.leases)
        still = {lease.uuid for lease in unfinished(self.leases)}
        for lease in left:
            held = not self.guests.keys().isdisjoint(map(str, lease.members))
            assert self.faulty or held or lease.uuid not in still
        assert {each.uuid for each in quarantined} <= {
            each.uuid for each in self._quarantined()
        }
        self.deeds["releases retried"] += len(left) - len(still)

    @rule(pick=pick, rounds=st.integers(1, acme.BLOCKS))
    def erase(self, pick: int, rounds: int) -> None:
        """Continue the erasures; a device that is not there waits for the operator."""
        if not any(lease.erasure for lease in self.leases):
            self._give_back_for_erasure(pick)
        there = self.free.keys()
        due = [
            lease
            for lease in self.leases
            if lease.state is LeaseState.ERASING
            and there >= observation.members([lease])
        ]
        self._erase(rounds)
        if rounds == acme.BLOCKS:
            left = {lease.uuid for lease in self.leases}
            assert self.faulty or left.isdisjoint(lease.uuid for lease in due), due

    def _give_back_for_erasure(self, pick: int) -> None:
        """Unplug a consumer with a device that is erased; plug one if there is none."""
        consumer = self._with_erased(pick)
        if consumer is None:
            places = [str(each.device.address) for each in self.manager.providers()]
            picks = [places.index(each) for each in ERASED if each in places]
            if not picks:
                return
            self._plug(self._one_without(CONSUMERS[0]), [picks[pick % len(picks)]])
            consumer = self._with_erased(pick)
        if consumer is not None:
            self.unplug(consumer, pick, that_has=False)

    def _with_erased(self, pick: int) -> str | None:
        return choose(
            (name for name, has in self.holds.items() if not {*ERASED}.isdisjoint(has)),
            pick,
        )

    @precondition(lambda self: self.may_lose_its_store())
    @rule(
        consumer=consumers,
        picks=picks,
        at=st.integers(1, 60),
        loss=st.sampled_from(list(Loss)),
        seed=st.integers(0, 99),
        rounds=st.integers(0, acme.BLOCKS),
    )
    def lose_the_store(
        self,
        consumer: str,
        picks: list[int],
        at: int,
        loss: Loss,
        seed: int,
        rounds: int,
    ) -> None:
        """Lose the store during a plug, and an erasure; then restore all."""
        request = self._request(self.manager.providers(), picks)
        if request is None or not self.free.keys() >= set(ERASED):
            return
        # From here on only the store is damaged.
        self.kernel.lift()
        self.faulty = False
        if rounds < acme.BLOCKS:
            self._give_back_for_erasure(at)
            self._erase(rounds)
        else:
            self._erase_all()
        holders = self._holders()
        places = [str(each.device.address) for each in self.manager.providers()]
        for number, kind in enumerate((Kind.HOST, Kind.NONE)):
            place = places[(at + number) % len(places)]
            stranger = lost_store.consumer(0x100 + number)
            if holders.plug(self.manager, stranger, place, kind):
                self.deeds[f"leases of {kind.name} that are lost or saved"] += 1
        entries = self._plug_and_lose(consumer, request, at, loss, seed)
        holders.given(consumer, entries)
        acme.write_medium(
            self.bench.root, *({each["pci_id"] for each in entries} & set(ERASED))
        )
        lost_store.try_everything(self.manager, holders)
        self.manager = self.bench.start()
        lost_store.try_everything(self.manager, holders)
        self._put_in_order()
        self.deeds[f"stores {loss.value} during a plug"] += 1

    # -- events of the host ---------------------------------------------------

    @rule(pick=pick)
    def pull_out(self, pick: int) -> None:
        """Pull out a card, or one function of it; leased or not."""
        self._pull_out(pick)

    @rule(pick=pick)
    def put_in(self, pick: int) -> None:
        """Plug in a card that was pulled out, possibly in another IOMMU group."""
        if not self.pulled:
            self._pull_out(pick)
        self._put_in()

    @rule()
    def reboot(self) -> None:
        if not self.leases and self.deeds.total() == self._as_started:
            return
        self.kernel.reboot()
        self.deeds["reboots"] += 1
        self.guests.clear()
        self.free.clear()
        self._learn()
        self.unready |= observation.members(self.leases)
        self._start_again()
        self._as_started = self.deeds.total()

    @rule(pick=pick)
    def guest_starts(self, pick: int) -> None:
        if not self.holds:
            self._plug(CONSUMERS[pick % len(CONSUMERS)], [pick])
        consumer = choose(self.holds, pick)
        if consumer is None:
            return
        for number, address in enumerate(self.holds[consumer]):
            if address in self.unready or address in self.guests:
                continue
            self.kernel.hold(address, 5000 + 10 * len(self.guests) + number)
            self.guests[address] = consumer
            self.deeds["devices given to guests"] += 1

    @rule(pick=pick)
    def guest_ends(self, pick: int) -> None:
        address = choose(self.guests, pick)
        if address is not None:
            self.kernel.let_go(address)
            del self.guests[address]
            self.deeds["guests that ended"] += 1

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
        """Let one of the next writes fail."""
        address = None if anywhere else choose(self.free, pick)
        getattr(self.kernel, effect)(address, attribute, nth=nth)
        self.faulty = True
        self.deeds["faults"] += 1

    @precondition(lambda self: self.faulty)
    @rule()
    def lift(self) -> None:
        """End all faults; quarantined devices wait for the operator."""
        self.kernel.lift()
        self.faulty = False
        self.deeds["faults lifted"] += 1

    @rule(pick=pick)
    def operator_releases(self, pick: int) -> None:
        found = {str(lease.address): lease for lease in self._quarantined()}
        address = choose(found, pick)
        if address is None:
            return
        lease = found[address]
        try:
            operator_actions.release_device(self.manager, lease.address, None)
            self.deeds["operator's releases"] += 1
        except exception.OsAccError:
            is_gone = not self.free.keys() >= observation.members([lease])
            if not self.faulty and not (lease.erasure and is_gone):
                raise
        self._look()


#: The number of steps, by the profile of Hypothesis; they are spread over parts,
#: so that several processes can share them.
STEPS = {"stress": 50_000, "shrink": 50_000}
#: A history takes a second, its shrinking minutes. After a failure the profile
#: ``shrink`` does it.
_SLOW_PHASES = {"stress": {Phase.shrink, Phase.explain}}
_FEW = 300
_STEPS_OF_A_PART = 1_250
_STEPS_OF_A_HISTORY = 100
#: The parts are divided among so many shares.
SHARES = 60


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    profile = metafunc.config.getoption("--hypothesis-profile")
    steps = STEPS.get(profile, _FEW)
    parts = -(-steps // _STEPS_OF_A_PART)
    names = [f"part-{number}-of-{parts}" for number in range(1, parts + 1)]
    values = [
        pytest.param(name, steps // parts, marks=pytest.mark.share(SHARES, number))
        for number, name in enumerate(names)
    ]
    metafunc.parametrize(("part", "steps"), values, ids=names)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a plugin that erases two cards beside those of os_acc."""
    own = metadata.entry_points(group=loader.NAMESPACE)
    monkeypatch.setitem(
        ExtensionManager.ENTRY_POINT_CACHE, loader.NAMESPACE, [*own, ERASES]
    )


@pytest.fixture
def second() -> Iterator[SecondService]:
    """Another process, for second services."""
    with SecondService.running() as process:
        yield process


def test_no_history_breaks_an_invariant(request, part, steps, seed, place, second):
    profile = request.config.getoption("--hypothesis-profile")
    phases = set(Phase) - _SLOW_PHASES.get(profile, set())
    print(f"to have these histories again: --hypothesis-seed={seed}")
    counts = Counts()
    # Hypothesis may stop early: count the steps that were really done.
    while counts.steps < steps:
        left = steps - counts.steps
        settings = hypothesis.settings(
            max_examples=-(-left // _STEPS_OF_A_HISTORY),
            stateful_step_count=min(left, _STEPS_OF_A_HISTORY),
            phases=phases,
        )

        @hypothesis.seed(f"{seed}, {part}, {counts.histories}")
        def history() -> Histories:
            return Histories(place, second, counts)

        run_state_machine_as_test(history, settings=settings)

    run_figures.note(request.node, "state machine: steps", counts.steps)
    run_figures.note(request.node, "state machine: histories", counts.histories)
    for deed, number in counts.deeds.items():
        run_figures.note(request.node, f"state machine: {deed}", number)
