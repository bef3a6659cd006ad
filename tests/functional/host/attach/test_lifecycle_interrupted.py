# SPDX-License-Identifier: Apache-2.0

"""An interrupted plug is rolled back, by its own process or by the next one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest import mock

import pytest

from os_acc import exception
from os_acc.attach import verification
from os_acc.objects.lease import LeaseState
from os_acc.store import Store, StoreDamaged
from os_acc.store.locks import consumer_lock
from os_acc.testing import (
    FunctionSpec,
    HostSpec,
    TestHost,
    hosts,
    uuid_of,
)
from tests.expected_errors import raises

GPU, AUDIO, FPGA, BARE = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0", "0000:e3:00.0"


# -- in the same process ---------------------------------------------------------


def test_a_store_that_is_lost_in_mid_plug_leaves_the_host_as_it_was(bench, monkeypatch):
    before, check = bench.kernel.snapshot(), verification.check_viable

    def lose_the_store(root, lease):
        check(root, lease)
        Path(bench.state_path, "os_acc.sqlite").unlink(missing_ok=True)

    monkeypatch.setattr(verification, "check_viable", lose_the_store)
    with pytest.raises(StoreDamaged):
        bench.plug(1, GPU, FPGA)
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_an_interrupted_plug_goes_back(bench, monkeypatch):
    """Ctrl-C in the command interrupts a plug in this way."""
    before = bench.kernel.snapshot()
    interrupt = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(verification, "check_viable", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.plug(1, FPGA)
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_a_disk_that_fills_up_in_mid_plug_leaves_the_host_as_it_was(bench, monkeypatch):
    before, store = bench.kernel.snapshot(), bench.manager.store
    full = exception.StateUnavailable("no space", reason=exception.StateReason.FULL)
    with monkeypatch.context() as patch:
        patch.setattr(store, "replace", mock.Mock(side_effect=full))
        with raises(exception.StateReason.FULL) as raised:
            bench.plug(1, FPGA)
    assert "cannot record" in raised.value.__notes__[0]
    assert bench.kernel.snapshot() == before
    assert store.leases()[0].state is LeaseState.PREPARING
    bench.restart()
    assert bench.manager.store.leases() == ()
    assert bench.kernel.snapshot() == before


def test_a_commit_that_happened_although_it_failed_goes_back(bench, monkeypatch):
    """The disk refuses the sync that would make the commit survive a power cut."""
    before, replace = bench.kernel.snapshot(), Store.replace

    def commit_and_fail(store, leases):
        done = replace(store, leases)
        if done[0].state is LeaseState.HELD:
            raise exception.StateUnavailable(
                "disk I/O error", reason=exception.StateReason.FAILED
            )
        return done

    monkeypatch.setattr(Store, "replace", commit_and_fail)
    with raises(exception.StateReason.FAILED):
        bench.plug(1, GPU)
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


# -- after the end of the process --------------------------------------------------


def die_at_commit(bench: TestHost, number: int = 1, address: str = GPU) -> None:
    """Let a plug die when it would record its last step."""
    store = bench.manager.store
    replace = store.replace
    is_dead = False

    def die(leases):
        nonlocal is_dead
        leases = tuple(leases)
        is_dead = is_dead or leases[0].state is LeaseState.HELD
        if is_dead:
            raise KeyboardInterrupt
        return replace(leases)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            bench.plug(number, address)


def test_the_next_operation_of_the_consumer_settles_as_well(bench):
    first = bench.manager
    die_at_commit(bench)
    assert bench.manager is first
    bench.plug(1, FPGA)
    assert bench.plugged(1) == [FPGA]
    assert bench.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]


def test_a_start_leaves_alone_what_others_are_at(bench):
    die_at_commit(bench)
    deadline = time.monotonic() + 60
    with bench.manager.locks.hold([consumer_lock(uuid_of(1))], deadline):
        bench.restart()
        assert bench.lease_state() is LeaseState.PREPARING
    bench.restart()
    assert bench.manager.store.leases() == ()


def test_one_record_that_cannot_be_settled_stops_no_start(bench, caplog):
    die_at_commit(bench)
    die_at_commit(bench, 2, FPGA)
    bench.kernel.fail(GPU, "drivers_probe", times=None)
    bench.restart()
    assert bench.plugged(1) == [GPU]
    assert bench.plugged(2) == []
    assert bench.lease_state(1) is LeaseState.QUARANTINED
    assert f"{GPU} stays leased to " in caplog.text
    bench.plug(3, BARE)


def test_a_node_that_does_not_appear_is_a_failure(bench, monkeypatch):
    """vfio-pci has the device, but there is no node that a guest could open."""
    before = bench.kernel.snapshot()
    group = bench.kernel.group(FPGA)
    node = os.path.join(bench.root, "dev/vfio", str(group))
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != node and exists(path))
    with raises(exception.StepReason.REFUSED, match=node):
        bench.plug(1, FPGA)
    monkeypatch.undo()
    assert bench.kernel.snapshot() == before


def test_a_driver_that_came_into_the_group_meanwhile_is_found(make_bench):
    card = hosts.fpga("0000:05")
    late = FunctionSpec(
        "0000:06:00.0", 0x1234, 0x11E8, 0x00FF00, "edu", group_of=card.address
    )
    bench = make_bench(HostSpec((card,)))
    before = bench.kernel.snapshot()
    store, add = bench.manager.store, bench.manager.store.add

    def plug_first(leases, seen):
        bench.kernel.hot_plug(late)
        return add(leases, seen)

    store.add = plug_first
    with raises(exception.StepReason.REFUSED, match="edu"):
        bench.plug(1, card.address)
    assert bench.kernel.snapshot()[:1] == before
