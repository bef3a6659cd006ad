# SPDX-License-Identifier: Apache-2.0

"""The expected state of one host through a long history."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import pathlib
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.attach.manager import Manager
from os_acc.host import attributes
from os_acc.objects.device import Provider
from os_acc.objects.lease import Lease, LeaseState
from os_acc.testing import FunctionSpec, FunctionState, HostSpec, hosts
from tests.stress import lost_store, observation, processes
from tests.stress import simulated_host as benches
from tests.stress.kills import Way
from tests.stress.lost_store import Holders, Loss
from tests.stress.recorder import Point, Recorder
from tests.stress.second_service import SecondService
from tests.stress.simulated_host import simulated_host
from tests.unit import acme

#: The functions that a plugin erases after each consumer.
ERASED = ("0000:5e:00.0", "0000:5f:00.0")
CONSUMERS = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(1, 5)]
#: A plugin erases the FPGAs alone; the disk keeps its data.
UNERASED = '{"address": "*:*:*.*", "allow_no_erase": true}'
#: Far more time than the attempts of a retry take.
SECONDS = 600.0
Request = tuple[dict[str, Any], dict[str, str]]


def host() -> HostSpec:
    """Build twelve functions: cards with siblings, VFs, PFs, some without driver."""
    return HostSpec(
        (
            *hosts.gpu("0000:17", 0),
            hosts.nic("0000:3b", 0, name="ens1f0", vfs=4, boot_vfs=2),
            _numbered(hosts.fpga("0000:5e", 0), 1),
            _numbered(hosts.fpga("0000:5f", 0), 2),
            hosts.nic("0000:af", 1, name="ens2f0"),
            *hosts.gpu("0000:b1", 1, card=2),
            hosts.qat_gen4("0000:d8", 1),
            hosts.nvme_disk("0000:d9", 1, 1),
        )
    )


def _numbered(card: FunctionSpec, number: int) -> FunctionSpec:
    """Return the card with a Device Serial Number, which survives all of a history.

    A reboot, or a card that was pulled out or put in, may have moved cards; those
    without one cannot be distinguished then:
    ``tests/functional/host/attach/test_moved_cards.py``.
    """
    text = f"00-00-0a-35-00-00-00-{number:02x}\n"
    return dataclasses.replace(card, attributes=(("serial_number", text),))


def choose(options: Iterable[str], pick: int) -> str | None:
    """Return one of the options; None if there are none.

    Races between processes decide the options, but must not decide the draws:
    Hypothesis has to draw the same each time.
    """
    found = sorted(options)
    return found[pick % len(found)] if found else None


class Model(RuleBasedStateMachine):
    """One host, its library, and their expected state.

    :param directory: a directory for the host.
    :param second: another process, for a second service on the host.
    :ivar leases: the store's leases, as last read.
    :ivar holds: the devices of each consumer, from its entries.
    :ivar requests: the request of each consumer.
    :ivar asked: the same, by the uuid of each entry.
    :ivar guests: functions that a running guest holds, with its consumer.
    :ivar unready: leased functions that are not ready for a guest: after a
        reboot, or after they were pulled out.
    :ivar free: the state of each function without a consumer.
    :ivar pulled: functions that were pulled out and may be plugged in again.
    :ivar faulty: whether a fault may be waiting for a write.
    :ivar deeds: number of executions of each step.
    """

    def __init__(self, directory: str, second: SecondService) -> None:
        super().__init__()
        self.second = second
        self.place = tempfile.mkdtemp(dir=directory)
        place = os.path.join(self.place, "bench")
        self.bench = simulated_host(place, host(), device_spec=[UNERASED])
        self.kernel = self.bench.kernel
        self._installed = contextlib.ExitStack()
        self._installed.enter_context(self.bench.installed())
        self.manager: Manager = self.bench.start()
        self.leases: tuple[Lease, ...] = ()
        self.holds: dict[str, list[str]] = {}
        self.requests: dict[str, Request] = {}
        self.asked: dict[str, Request] = {}
        self.guests: dict[str, str] = {}
        self.unready: set[str] = set()
        self.pulled: list[FunctionSpec] = []
        self.faulty = False
        self.seen = 0
        self.deeds: collections.Counter[str] = collections.Counter()
        # The number of deeds at the last start of the service or the host: a
        # further start with no deed since would show nothing.
        self._as_started = 0
        self.free: dict[str, FunctionState] = {}
        self._learn()
        self.there = frozenset(self.free)
        self.offered = self._offered()

    def teardown(self) -> None:
        self._installed.close()
        shutil.rmtree(self.place)

    def plug_beside(self, consumer: str, request: Request) -> None:
        """Plug while another service plugs, too: the plug may find no free device."""
        try:
            entries = self.manager.plug({"uuid": consumer}, *request)
        except exception.OsAccError:
            self._failed(consumer)
        else:
            self._plugged(consumer, request, entries)

    def _look(self) -> None:
        """Read the store again: something may have changed it."""
        self.leases = self.manager.store.leases()

    def _request(
        self, providers: Sequence[Provider], picks: Sequence[int]
    ) -> Request | None:
        places = [str(each.device.address) for each in providers]
        if not places:
            return None
        chosen = [places[pick % len(places)] for pick in picks]
        return benches.request_of(providers, chosen)

    def _has_room(self, providers: Sequence[Provider], request: Request) -> bool:
        leased = observation.members(self.leases)
        wanted = request[0]["allocations"]
        for provider in providers:
            free = [
                handle
                for handle in provider.device.handles
                if leased.isdisjoint(map(str, handle.members))
            ]
            resources = wanted.get(provider.uuid, {}).get("resources", {})
            if sum(resources.values()) > len(free):
                return False
        return True

    def _offered(self) -> frozenset[str]:
        """Return the devices among which a plug may choose."""
        return frozenset(
            str(handle.address)
            for provider in self.manager.providers()
            for handle in provider.device.handles
        )

    def _plugged(self, consumer: str, request: Request, entries: list[Any]) -> None:
        self._look()
        addresses = [entry["pci_id"] for entry in entries]
        self.deeds["plugs again" if consumer in self.holds else "plugs"] += 1
        if consumer in self.holds:
            assert sorted(addresses) == sorted(self.holds[consumer])
        else:
            self._use(addresses)
        self.holds[consumer] = addresses
        self.requests[consumer] = request
        self.asked.update((entry["uuid"], request) for entry in entries)
        self.unready -= self._members(consumer)
        recorded = self.manager.attached({"uuid": consumer})[consumer]
        bound = [entry for entry in recorded if entry["state"] == "Bound"]
        assert sorted(bound, key=_uuid) == sorted(entries, key=_uuid)

    def _use(self, addresses: Iterable[str]) -> None:
        """Check that a consumer finds no data of another one, and leave its own."""
        root = self.bench.root
        for address in ERASED:
            if address in addresses:
                assert not acme.has_data(root, address), f"{address} was not erased"
                acme.write_medium(root, address)

    def _erase(self, rounds: int) -> None:
        """Continue each erasure by so many calls, as a service does at intervals."""
        before = {lease.uuid for lease in self.leases if lease.erasure}
        for _ in range(rounds):
            attempts = self.manager.retrier.continue_erasures()
            assert not futures.wait(attempts, SECONDS).not_done
        self._look()
        left = {lease.uuid for lease in self.leases if lease.erasure}
        self.deeds["devices erased"] += len(before - left)

    def _erase_all(self) -> None:
        """Erase all devices to the end; the operator starts failed erasures again."""
        self._look()
        for lease in self._quarantined():
            if lease.erasure:
                operator_actions.release_device(self.manager, lease.address, None)
        self._erase(acme.BLOCKS)
        assert not [lease for lease in self.leases if lease.erasure]

    def _failed(self, consumer: str) -> None:
        """Check that a failed plug has changed none of the consumer's devices."""
        self.deeds["plugs refused"] += 1
        self._look()
        held = sorted(str(lease.address) for lease in self._held(consumer))
        assert held == sorted(self.holds.get(consumer, []))
        # Making ready again may have stopped half-way.
        if self.faulty or not self.unready.isdisjoint(self._members(consumer)):
            self.unready |= self._members(consumer) - set(self.guests)

    def _forget(self, consumer: str) -> None:
        self.holds.pop(consumer, None)
        self.requests.pop(consumer, None)
        self.unready &= observation.members(self.leases)

    def _sync(self, consumer: str) -> None:
        """Take over the store's record of a consumer after a kill of its process."""
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
                self.asked.setdefault(lease.request_uuid, request)
                self.requests[each] = self.asked[lease.request_uuid]
            self._sync(each)

    def _killed(self, action: Callable[[], object], at: int, way: Way) -> None:
        struck = pathlib.Path(self.place, "struck")

        def run() -> None:
            client, touches = os.getpid(), itertools.count(1)

            def at_touch(point: Point, _what: str) -> None:
                if point.in_worker != (way is Way.WORKER) or next(touches) < at:
                    return
                struck.touch()
                if way is Way.GROUP:
                    os.killpg(0, signal.SIGKILL)
                os.kill(os.getpid() if point.in_worker else client, signal.SIGKILL)

            Recorder(self.place, at_touch, lambda _point, _go, _files: None).install(
                self.kernel
            )
            try:
                action()
            except exception.OsAccError:
                return

        ended = processes.call_with_all(run)
        assert not ended.trouble, ended.trouble
        self._look()
        if struck.exists():
            struck.unlink()
            self.deeds["kills"] += 1

    def _plug_and_lose(
        self, consumer: str, request: Request, at: int, loss: Loss, seed: int
    ) -> list[Any]:
        """Plug in a process that loses the store at a touch; return the entries."""

        def run() -> list[Any]:
            touches = itertools.count(1)

            def at_touch(point: Point, _what: str) -> None:
                if not point.in_worker and next(touches) == at:
                    loss.strike(self.bench, random.Random(seed))

            Recorder(self.place, at_touch, lambda _point, _go, _files: None).install(
                self.kernel
            )
            try:
                return self.manager.plug({"uuid": consumer}, *request)
            except exception.OsAccError:
                return []
            finally:
                if next(touches) <= at:
                    loss.strike(self.bench, random.Random(seed))

        erasing = [each for each in self.leases if each.state is LeaseState.ERASING]
        self.deeds["devices that are erased when a store is lost"] += len(erasing)
        ended = processes.call_with_all(run)
        assert not ended.why, ended.why
        return list(ended.value)

    def _holders(self) -> Holders:
        """Return the holder of each function, from the results of plugs and unplugs.

        A device that a guest lost by a reboot or a hot plug has no holder until it is
        plugged again: only the store had recorded it.
        """
        holders = Holders(self._checks_blank())
        for each, addresses in self.holds.items():
            for address in set(addresses) - self.unready:
                holders.by_function[address] = each
        return holders

    def _checks_blank(self) -> Callable[[str], None]:
        """Return a check that a device, once given to a consumer, has no data.

        The helper's record survives a loss of the store. A reboot removes it, until
        the next plug or the next call of the erasure: a device that loses both may be
        given away with data.
        """
        this_boot = attributes.boot_id(self.bench.root)
        unrecorded = self.unready.union(
            *(
                map(str, each.members)
                for each in self.leases
                if each.boot_id != this_boot
            )
        )

        def check(address: str) -> None:
            if address in ERASED and address not in unrecorded:
                is_blank = not acme.has_data(self.bench.root, address)
                assert is_blank, f"{address} was not erased"

        return check

    def _put_in_order(self) -> None:
        """End all guests, and release the devices without a lease."""
        for address in self.guests:
            self.kernel.let_go(address)
        self.guests.clear()
        for each in sorted({lease.consumer for lease in self.manager.store.leases()}):
            self.manager.unplug({"uuid": each})
        self._erase_all()
        for lease in self.manager.store.leases():
            operator_actions.release_device(self.manager, lease.address, None)
        lost_store.tidy_up(self.manager)
        self._erase_all()
        self.holds.clear()
        self.requests.clear()
        self.unready.clear()
        self._look()

    def _learn(self) -> None:
        """Record the states of functions that were not taken yet."""
        for state in self.kernel.snapshot():
            self.free.setdefault(state.address, state)

    def _one_without(self, otherwise: str) -> str:
        """Return a consumer without leases, if there is one."""
        leased = {lease.consumer for lease in self.leases}
        return next((each for each in CONSUMERS if each not in leased), otherwise)

    def _leases(self, consumer: str, *, quarantined: bool = True) -> tuple[Lease, ...]:
        return tuple(
            lease
            for lease in self.leases
            if lease.consumer == consumer
            and (quarantined or lease.state is not LeaseState.QUARANTINED)
        )

    def _held(self, consumer: str) -> list[Lease]:
        leases = self._leases(consumer)
        return [lease for lease in leases if lease.state is LeaseState.HELD]

    def _quarantined(self) -> list[Lease]:
        return [each for each in self.leases if each.state is LeaseState.QUARANTINED]

    def _members(self, consumer: str) -> set[str]:
        return observation.members(self._leases(consumer))

    def _beside(self, addresses: set[str]) -> set[str]:
        """Return the functions that are leased together with one of these."""
        return {
            str(address)
            for lease in self.leases
            if addresses & set(map(str, lease.members))
            for address in lease.members
        }

    def _start_again(self) -> None:
        """Start the service again while guests run on."""
        self.manager = self.bench.start()
        self.deeds["restarts"] += 1
        self._look()
        for lease in benches.unfinished(self.leases):
            names = {str(address) for address in lease.members}
            assert self.faulty or names & set(self.guests), lease
        for consumer in tuple(self.holds):
            self._sync(consumer)

    def _pull_out(self, pick: int) -> None:
        vfs = {address for address in self.free if self._is_vf(address)}
        held = {address[:7] for address in self.guests}
        inside = [a for a in self.free.keys() - vfs if a[:7] not in held]
        address = choose(inside, pick)
        if address is None or len(self.pulled) == 3:
            return
        below = {address, *vfs}
        spec = self.kernel.hot_unplug(address)
        self.pulled.append(spec)
        self.deeds["cards pulled out"] += 1
        left = {each.address for each in self.kernel.snapshot()}
        gone = below - left
        self.unready |= gone | self._beside(gone)
        for each in gone:
            self.free.pop(each, None)

    def _put_in(self) -> None:
        """Plug in a card that was pulled out, possibly in another IOMMU group."""
        if self.pulled:
            spec = self.pulled.pop()
            self.kernel.hot_plug(spec)
            self._learn()
            self.deeds["cards put in"] += 1
            # Its driver keeps the group from a guest that has not started.
            group = self.kernel.group(spec.address)
            held = {str(each) for lease in self.leases for each in lease.functions}
            present = held & {each.address for each in self.kernel.snapshot()}
            beside = {each for each in present if self.kernel.group(each) == group}
            self.unready |= self._beside(beside) - set(self.guests)

    def _is_vf(self, address: str) -> bool:
        path = self.kernel.path("sys/bus/pci/devices", address, "physfn")
        return os.path.lexists(path)


def _uuid(entry: dict[str, Any]) -> str:
    return str(entry["uuid"])
