# SPDX-License-Identifier: Apache-2.0

"""A failed release is reported and retried, and delays no other operation."""

from __future__ import annotations

import dataclasses
import errno
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from unittest import mock

import pytest

from os_acc import exception, service
from os_acc.attach import recovery, release_result
from os_acc.attach.release_result import is_transient
from os_acc.helper import client
from os_acc.objects.epoch import AcceptedEpochs
from os_acc.objects.lease import LeaseState
from os_acc.store.locks import consumer_lock
from os_acc.testing import TestHost, uuid_of
from tests.unit.placement.nova_side import Nova
from tests.unit.test_deadlines import in_child

GPU, AUDIO, FPGA = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0"
NIC = "0000:3b:00.0"
FOUR_VFS = '{"address": "0000:3b:*.*", "num_vfs": 4}'
#: Seconds; far longer than a slow machine takes.
LONG = 120.0


@pytest.fixture
def card(make_bench) -> TestHost:
    """Build a host whose only provider is a card with four VFs."""
    return make_bench(device_spec=[FOUR_VFS])


def fail_to_release(bench: TestHost, number: int, address: str) -> str:
    """Leave a lease whose device a process still holds; return the device's address."""
    (entry,) = bench.plug(number, address)
    bench.kernel.hold(entry["pci_id"], pid=4000 + number)
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(number)
    assert bench.lease_state(number) is LeaseState.RELEASING
    return entry["pci_id"]


def units(nova: Nova, bench: TestHost) -> tuple[int, int]:
    """Return (total, reserved) of the card after one cycle of Nova."""
    nova.cycle(bench.manager.update_provider_tree)
    (found,) = nova.units(bench.provider(NIC).uuid).values()
    return found


# -- reserved in Placement -----------------------------------------------------


def test_the_tree_is_served_without_a_look_at_the_host(card, monkeypatch):
    nova = Nova()
    units(nova, card)
    vf = fail_to_release(card, 1, NIC)
    uuid = card.provider(NIC).uuid
    monkeypatch.setattr(card.manager.catalog, "look", None)
    nova.cycle(card.manager.update_provider_tree)
    assert list(nova.units(uuid).values()) == [(4, 1)]
    card.kernel.let_go(vf)
    card.unplug(1)
    nova.cycle(card.manager.update_provider_tree)
    assert list(nova.units(uuid).values()) == [(4, 0)]


def test_a_plug_that_cannot_go_back_reserves_its_unit(card):
    nova = Nova()
    units(nova, card)
    card.kernel.hang("0000:3b:02.0", "drivers_probe")
    with card.short_timeout(), pytest.raises(exception.DeviceStuck):
        card.plug(1, NIC)
    card.restart()
    assert card.lease_state() is LeaseState.RELEASING
    assert units(nova, card) == (4, 1)


@pytest.mark.parametrize("is_second", [False, True])
def test_only_a_second_attempt_to_unplug_is_reserved(card, monkeypatch, is_second):
    """The allocation of the first one still exists: its unit would count twice."""
    nova, seen = Nova(), []
    if is_second:
        card.kernel.let_go(fail_to_release(card, 1, NIC))
    else:
        card.plug(1, NIC)
    give_back = card.manager.life.devices.give_back

    def looked_at(lease, *more):
        if is_second:
            card.manager.discover()
        seen.append(units(nova, card))
        give_back(lease, *more)

    monkeypatch.setattr(card.manager.life.devices, "give_back", looked_at)
    card.unplug(1)
    assert seen == [(4, int(is_second))]
    assert units(nova, card) == (4, 0)


# -- retried ---------------------------------------------------------------------


class Rounds:
    """Wait for the attempts of a retrier instead of for its clock."""

    def __init__(self, bench: TestHost, interval: float) -> None:
        bench.restart(release_retry_interval=interval)
        self.retrier = bench.manager.retrier
        self._begun = threading.Semaphore(0)
        self._attempts: list[futures.Future[None]] = []
        self._retry = self.retrier.retry
        self.retrier.retry = self._counted

    def _counted(self) -> list[futures.Future[None]]:
        self._attempts = self._retry()
        self._begun.release()
        return self._attempts

    def wait_for_begin(self) -> None:
        assert self._begun.acquire(timeout=LONG)

    def wait(self) -> None:
        """Wait for a round, and for the end of its attempts."""
        self.wait_for_begin()
        assert not futures.wait(self._attempts, LONG).not_done

    def attempt(self, number: int) -> futures.Future[None]:
        """Return the last attempt for an instance."""
        return self.retrier._attempts[uuid_of(number)]


@pytest.fixture
def rounds(bench) -> Iterator[Rounds]:
    """Start a service that retries only on request."""
    found = Rounds(bench, 10_000.0)
    yield found
    bench.let_go()
    assert found.retrier.stop(LONG)


def test_a_plug_of_another_instance_retries_a_failed_release(bench, rounds):
    before = bench.kernel.snapshot()
    bench.kernel.let_go(fail_to_release(bench, 1, GPU))
    rounds.retrier.start()
    bench.plug(2, FPGA)
    rounds.wait()
    assert bench.plugged(1) == []
    bench.unplug(2)
    assert bench.kernel.snapshot() == before


def test_a_retry_that_succeeds_offers_the_unit_again(card, monkeypatch):
    nova, retrier = Nova(), card.manager.retrier
    vf = fail_to_release(card, 1, NIC)
    uuid = card.provider(NIC).uuid
    assert not futures.wait(retrier.retry(), LONG).not_done
    assert units(nova, card) == (4, 1)
    card.kernel.let_go(vf)
    # The snapshot has to change without a scan of the host.
    monkeypatch.setattr(card.manager.catalog, "look", None)
    assert not futures.wait(retrier.retry(), LONG).not_done
    nova.cycle(card.manager.update_provider_tree)
    assert list(nova.units(uuid).values()) == [(4, 0)]


def test_a_plug_does_not_wait_for_a_retry_that_is_stuck(bench, rounds):
    bench.kernel.let_go(fail_to_release(bench, 1, GPU))
    bench.kernel.hang(GPU, "unbind")
    rounds.retrier.start()
    bench.plug(2, FPGA)
    bench.kernel.wait_until_blocked()
    # The write has not returned: this plug and the next one succeed.
    assert bench.lease_state(2) is LeaseState.HELD
    bench.unplug(2)
    bench.plug(3, FPGA)
    assert not rounds.attempt(1).done()


def test_a_stuck_device_does_not_delay_the_retry_of_another(bench, rounds):
    stuck, other = (fail_to_release(bench, n, at) for n, at in ((1, GPU), (2, FPGA)))
    bench.kernel.let_go(stuck)
    bench.kernel.hang(GPU, "unbind")
    rounds.retrier.start()
    rounds.retrier.retry_now()
    rounds.wait_for_begin()
    bench.kernel.wait_until_blocked()
    assert not futures.wait([rounds.attempt(2)], LONG).not_done
    bench.kernel.let_go(other)
    first = rounds.attempt(1)
    rounds.retrier.retry_now()
    rounds.wait_for_begin()
    assert not futures.wait([rounds.attempt(2)], LONG).not_done
    assert bench.plugged(2) == []
    assert bench.plugged(1) == [GPU]
    # An attempt that has not ended gets no second one.
    assert rounds.attempt(1) is first
    assert not first.done()


def test_each_of_many_consumers_has_its_turn(bench, monkeypatch):
    """An attempt that has ended makes room for the next one."""
    retrier, waiting = bench.manager.retrier, [f"{number:03}" for number in range(40)]
    begun: dict[str, futures.Future[None]] = {}

    def begin(_settle: object, consumer: str) -> futures.Future[None]:
        begun[consumer] = futures.Future()
        if len(begun) == 32:
            begun[waiting[4]].set_result(None)
        return begun[consumer]

    monkeypatch.setattr(bench.manager.recovery, "unfinished", lambda _deadline: waiting)
    monkeypatch.setattr(recovery.deadlines, "begin", begin)
    assert len(retrier.retry()) == len(begun) == 33
    for attempt in [*begun.values()][5:]:
        attempt.set_result(None)
    retrier.retry()
    assert [*begun] == waiting


def test_a_consumer_at_work_is_left_alone(bench):
    fail_to_release(bench, 1, GPU)
    bench.kernel.let_go(GPU)
    manager = bench.manager
    with manager.locks.hold([consumer_lock(uuid_of(1))], time.monotonic() + LONG):
        assert not futures.wait(manager.retrier.retry(), LONG).not_done
        assert bench.plugged(1) == [GPU]
    assert not futures.wait(manager.retrier.retry(), LONG).not_done
    assert bench.plugged(1) == []


def test_a_release_is_retried_at_intervals(bench):
    rounds = Rounds(bench, 1.0)
    bench.kernel.let_go(fail_to_release(bench, 1, GPU))
    rounds.retrier.start()
    rounds.wait()
    assert rounds.retrier.stop(LONG)
    assert bench.plugged(1) == []


def test_a_round_that_fails_does_not_end_the_retries(rounds, caplog):
    failed = threading.Semaphore(0)

    def broken() -> None:
        failed.release()
        raise KeyError("an unexpected failure")

    rounds.retrier.retry = broken
    rounds.retrier.start()
    for _ in range(3):
        rounds.retrier.retry_now()
        assert failed.acquire(timeout=LONG)
    assert rounds.retrier.stop(LONG)
    assert "an unexpected failure" in caplog.text


def test_a_service_retries_from_its_start_and_a_reset_ends_its_thread(
    bench, monkeypatch
):
    monkeypatch.setattr(service, "nodes", service.Nodes())
    config = bench.config()
    first = service.initialize(config=config, root=bench.root)
    thread = first.retrier._thread
    assert thread is not None
    second = service.initialize(True, config=config, root=bench.root)
    assert not futures.wait([thread], LONG).not_done
    assert second.retrier._thread is not None
    assert second.retrier.stop(LONG)


def test_a_forked_child_retries_from_its_first_plug(bench, rounds):
    fail_to_release(bench, 1, GPU)
    rounds.retrier.start()

    def check() -> bool:
        if rounds.retrier._thread is not None:
            return False
        bench.kernel.let_go(GPU)
        bench.plug(2, FPGA)
        rounds.wait()
        return bench.plugged(1) == []

    assert in_child(check)


def test_what_a_dead_process_left_is_settled_without_a_restart(bench):
    """A command that is killed in the middle of a plug leaves such a lease."""
    bench.plug(1, GPU)
    store = bench.manager.store
    (lease,) = store.leases(uuid_of(1))
    store.replace([dataclasses.replace(lease, state=LeaseState.PREPARING)])
    assert not futures.wait(bench.manager.retrier.retry(), LONG).not_done
    assert bench.plugged(1) == []
    assert bench.drivers(GPU) == ["nouveau"]


# -- transient and lasting causes -------------------------------------------------


#: The causes that the manual lists as transient, and that a release can meet.
TRANSIENT = [
    exception.DeviceInUse("held"),
    exception.DeviceStuck("stuck"),
    exception.HelperLost("lost"),
    exception.HelperUnavailable("no helper"),
    exception.LockTimeout("locked"),
    exception.StateUnavailable("no descriptors are left"),
    client.EpochRefused("a later operation", GPU, AcceptedEpochs(7, 9)),
]
LASTING = [
    exception.HostStepFailed("EIO", reason=exception.StepReason.REFUSED),
    exception.HostStepFailed("no driver", reason=exception.StepReason.BIND),
    exception.DeviceChanged("another card"),
    exception.PluginFailed("a bug"),
]


def fail_by(bench: TestHost, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make every release fail for one cause, and let one instance's unplug fail."""
    give_back = mock.Mock(side_effect=error)
    monkeypatch.setattr(bench.manager.life.devices, "give_back", give_back)
    bench.plug(1, GPU)
    with pytest.raises(exception.DevicesUnreleased) as caught:
        bench.unplug(1)
    assert caught.value.__cause__ is error


#: Errors whose kinds are transient only if a resource has run out.
EXHAUSTED = [
    exception.HostStepFailed(
        "EMFILE", errno=errno.EMFILE, reason=exception.StepReason.REFUSED
    ),
    exception.HostStepFailed(
        "ENOMEM", errno=errno.ENOMEM, reason=exception.StepReason.REFUSED
    ),
]


@pytest.mark.parametrize(
    "error", [*TRANSIENT, *EXHAUSTED], ids=lambda each: type(each).__name__
)
def test_a_cause_that_can_pass_is_retried(bench, monkeypatch, error):
    with monkeypatch.context() as patched:
        fail_by(bench, patched, error)
    (lease,) = bench.manager.store.leases()
    assert lease.state is LeaseState.RELEASING
    assert lease.reason == str(error)
    assert not futures.wait(bench.manager.retrier.retry(), LONG).not_done
    assert bench.plugged(1) == []


@pytest.mark.parametrize("error", LASTING, ids=lambda each: type(each).__name__)
def test_any_other_cause_waits_for_the_operator(bench, monkeypatch, error):
    with monkeypatch.context() as patched:
        fail_by(bench, patched, error)
    before = bench.manager.store.leases()
    assert [lease.state for lease in before] == [LeaseState.QUARANTINED]
    assert bench.manager.retrier.retry() == []
    assert bench.manager.store.leases() == before


def test_the_manual_lists_every_cause_that_is_retried():
    manual = Path("doc/source/admin/operations.rst").read_text()
    # A new cause has to be added to the manual and to this list.
    assert {type(each) for each in TRANSIENT} == set(release_result._WAITS)
    for error in TRANSIENT:
        assert is_transient(error)
        assert f"``{type(error).__name__}``" in manual
    assert all(map(is_transient, EXHAUSTED))
    for error in LASTING:
        assert not is_transient(error)


def test_a_retry_that_fails_the_same_way_adds_no_event_and_no_line(bench, caplog):
    fail_to_release(bench, 1, GPU)
    store = bench.manager.store
    before, logged = store.events(100), caplog.text
    for _ in range(3):
        assert not futures.wait(bench.manager.retrier.retry(), LONG).not_done
    assert store.events(100) == before
    assert caplog.text == logged
    (lease,) = store.leases()
    assert f"qemu-system-x86 (pid {4001})" in lease.reason


# -- errors for the caller ---------------------------------------------------------


def test_a_failure_that_can_pass_is_retryable(bench):
    bench.plug(1, GPU, FPGA)
    bench.kernel.hold(GPU)
    bench.kernel.hold(FPGA)
    with pytest.raises(exception.DevicesUnreleased) as caught:
        bench.unplug(1)
    assert caught.value.retryable
    assert "retries" in caught.value.hint


def test_a_failure_of_which_a_part_cannot_pass_is_not_retryable(bench):
    bench.plug(1, GPU, FPGA)
    bench.kernel.hold(GPU)
    bench.kernel.fail(FPGA, "unbind")
    with pytest.raises(exception.DevicesUnreleased) as caught:
        bench.unplug(1)
    assert not caught.value.retryable
    assert caught.value.hint.endswith(f"os-acc device release {FPGA}")


def test_an_unplug_of_nothing_but_quarantined_devices_says_so_in_the_log(bench, caplog):
    bench.plug(1, GPU)
    bench.kernel.fail(GPU, "unbind")
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    caplog.clear()
    # Nova's delete of the server must not fail for ever.
    assert bench.unplug(1) == 0
    assert f"os-acc device release {GPU}" in caplog.text
