# SPDX-License-Identifier: Apache-2.0

"""A client dies while the kernel does not return from its privileged write.

The helper's worker lives on and holds the device's lock: the recovery must
neither overtake it nor wait for ever, and nothing else may suffer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from os_acc.privsep import worker
from os_acc.testing import Snapshot, TestHost
from tests.stress import flows, processes, recovery_checks
from tests.stress.flows import AUDIO, FPGA, GPU, INSTANCE, MIGRATION
from tests.stress.processes import Child
from tests.stress.simulated_host import plug, simulated_host

PLUG_WRITES = [
    (address, attribute)
    for address in (GPU, AUDIO)
    for attribute in ("driver_override", "unbind", "drivers_probe")
]
UNPLUG_WRITES = [(GPU, "reset"), *PLUG_WRITES]


@pytest.fixture
def bench(place: str) -> Iterator[TestHost]:
    bench = simulated_host(os.path.join(place, "bench"), flows.host())
    processes.become_reaper()
    yield bench
    bench.kernel.lift()
    processes.reap()


@pytest.fixture
def pristine(bench: TestHost) -> Snapshot:
    return bench.kernel.snapshot()


def stop_while_it_hangs(bench: TestHost, action: Callable[[], object]) -> None:
    """Kill a client as soon as its write hangs."""
    client = Child(action)
    bench.kernel.wait_until_blocked()
    client.kill()
    assert client.wait().killed


def check_left_alone(bench: TestHost) -> None:
    """Check that a new start finds the worker at work, and serves others."""

    def start_again() -> None:
        worker._LOCK_SECONDS = 0.02
        count = len(bench.kernel.writes())
        manager = bench.start_here()
        writes = bench.kernel.writes()[count:]
        (lease,) = manager.store.leases(INSTANCE)
        recovery_checks.check_left_alone(bench.kernel, [lease], GPU, writes)
        assert lease.state is LeaseState.RELEASING
        with pytest.raises(exception.DevicesUnreleased) as caught:
            manager.unplug({"uuid": INSTANCE})
        ((_, why),) = caught.value.unreleased
        assert isinstance(why, exception.DeviceStuck)
        assert plug(manager, MIGRATION, FPGA)
        assert manager.unplug({"uuid": MIGRATION}) == 1

    processes.result(start_again)


def check_restored(bench: TestHost, pristine: Snapshot) -> None:
    """Check that a new start restores everything once the write has returned."""

    def start_again() -> None:
        assert bench.start_here().store.leases() == ()
        recovery_checks.check_restored(bench, pristine)

    processes.result(start_again)


@pytest.mark.parametrize(("address", "attribute"), PLUG_WRITES)
def test_a_plug_that_hangs_is_rolled_back_when_it_ends(
    bench, pristine, address, attribute
):
    bench.kernel.hang(address, attribute)
    stop_while_it_hangs(bench, lambda: plug(bench.start_here(), INSTANCE, GPU))

    check_left_alone(bench)
    bench.kernel.lift()
    processes.reap()

    check_restored(bench, pristine)


@pytest.mark.parametrize(("address", "attribute"), UNPLUG_WRITES)
def test_an_unplug_that_hangs_is_finished_when_it_ends(
    bench, pristine, address, attribute
):
    assert processes.result(lambda: len(plug(bench.start_here(), INSTANCE, GPU))) == 1
    bench.kernel.hang(address, attribute)
    stop_while_it_hangs(bench, lambda: bench.start_here().unplug({"uuid": INSTANCE}))

    check_left_alone(bench)
    bench.kernel.lift()
    processes.reap()

    check_restored(bench, pristine)


def test_a_client_that_lives_is_left_alone(bench, pristine):
    bench.kernel.hang(AUDIO, "unbind")
    client = Child(lambda: plug(bench.start_here(), INSTANCE, GPU))
    bench.kernel.wait_until_blocked()

    def start_again() -> None:
        count = len(bench.kernel.writes())
        (lease,) = bench.start_here().store.leases(INSTANCE)
        assert lease.state is LeaseState.PREPARING
        assert bench.kernel.writes()[count:] == []

    processes.result(start_again)
    bench.kernel.lift()

    assert [entry["pci_id"] for entry in processes.outcome(client)] == [GPU]
    assert processes.result(lambda: bench.start_here().unplug({"uuid": INSTANCE})) == 1
    check_restored(bench, pristine)


def test_a_guest_that_started_meanwhile_keeps_its_device(bench, pristine):
    """The plug's client died after its last write; a guest got the device."""
    bench.kernel.hang(AUDIO, "drivers_probe")
    stop_while_it_hangs(bench, lambda: plug(bench.start_here(), INSTANCE, GPU))
    bench.kernel.lift()
    processes.reap()
    bench.kernel.hold(GPU)

    def start_again() -> None:
        count = len(bench.kernel.writes())
        (lease,) = bench.start_here().store.leases(INSTANCE)
        assert lease.state is LeaseState.RELEASING
        assert bench.kernel.writes()[count:] == []

    processes.result(start_again)
    bench.kernel.let_go(GPU)

    check_restored(bench, pristine)
