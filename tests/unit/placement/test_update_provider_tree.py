# SPDX-License-Identifier: Apache-2.0

"""Nova's tree is right after plugs, unplugs and failures, and is updated promptly."""

import contextlib
import subprocess
import sys
import threading
import time
from concurrent import futures

import pytest

import os_acc
from os_acc import deadlines, exception, inspection, service
from os_acc.attach import operator_actions
from os_acc.inventory import discovery, snapshots
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.testing import instance, request, uuid_of
from tests.unit.placement.nova_side import Nova

GPU, AUDIO, FPGA = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0"
NIC = "0000:3b:00.0"
FOUR_VFS = '{"address": "0000:3b:*.*", "num_vfs": 4}'
#: Far longer than a slow machine needs.
SECONDS = 120


@pytest.fixture
def nova(bench):
    found = Nova()
    found.cycle(bench.manager.update_provider_tree)
    return found


@pytest.fixture
def card(make_bench):
    """Return a host with one provider, a card with four VFs."""
    return make_bench(device_spec=[FOUR_VFS])


def units(nova, bench, provider):
    """Return (total, reserved) of a provider in Nova's tree after a cycle."""
    nova.cycle(bench.manager.update_provider_tree)
    (found,) = nova.units(provider.uuid).values()
    return found


def seen(bench) -> None:
    """Let the service discover the host's devices."""
    bench.manager.discover()


# -- contents of the tree ------------------------------------------------------


def test_the_tree_holds_what_is_offered(bench, nova):
    offered = bench.manager.providers()
    assert nova.ours() == {each.name: each.uuid for each in offered}
    for each in offered:
        assert nova.units(each.uuid) == {each.device.resource_class: (1, 0)}
        assert nova.known.data(each.uuid).traits == each.device.traits


def test_plug_and_unplug_change_nothing(bench, nova):
    """Placement counts allocations by itself."""
    bench.plug(1, GPU, FPGA)
    assert nova.cycle(bench.manager.update_provider_tree) == set()
    seen(bench)
    assert nova.cycle(bench.manager.update_provider_tree) == set()
    bench.unplug(1)
    assert nova.cycle(bench.manager.update_provider_tree) == set()


def test_the_public_function_is_the_managers(api):
    nova = Nova()
    nova.cycle(os_acc.update_provider_tree)
    assert set(nova.ours()) == {each.name for each in service.get().providers()}


def test_nothing_is_put_anywhere_before_initialize(monkeypatch):
    monkeypatch.setattr(service, "nodes", service.Nodes())
    with pytest.raises(exception.NotInitialized):
        Nova().cycle(os_acc.update_provider_tree)


# -- failures --------------------------------------------------------------------


def test_what_an_unplug_leaves_in_quarantine_is_reserved_at_once(card):
    nova, nic = Nova(), card.provider(NIC)
    (entry, _other) = card.plug(1, NIC, amount=2)
    card.kernel.fail(entry["pci_id"], "unbind", times=None)
    with pytest.raises(exception.DevicesUnreleased):
        card.unplug(1)
    assert units(nova, card, nic) == (4, 1)
    card.kernel.lift()
    operator_actions.release_device(
        card.manager, PciAddress.parse(entry["pci_id"]), None
    )
    seen(card)
    assert units(nova, card, nic) == (4, 0)


def test_what_a_plug_leaves_in_quarantine_is_reserved_at_once(card):
    nova, nic = Nova(), card.provider(NIC)
    card.kernel.fail("0000:3b:02.0", "drivers_probe")
    card.kernel.fail("0000:3b:02.1", "unbind", times=None)
    with pytest.raises(exception.HostError):
        card.plug(1, NIC, amount=2)
    (lease,) = card.manager.store.leases()
    assert lease.state is LeaseState.QUARANTINED
    assert units(nova, card, nic) == (4, 1)


def test_a_leased_device_that_has_vanished_stays_until_it_is_unplugged(bench, nova):
    """Weakness 21 of Cyborg: an allocated device that vanishes ends all updates."""
    gpu = bench.provider(GPU)
    bench.plug(1, GPU)
    bench.kernel.hot_unplug(AUDIO)
    bench.kernel.hot_unplug(GPU)
    seen(bench)
    assert units(nova, bench, gpu) == (1, 0)
    assert nova.known.data(gpu.uuid).traits == gpu.device.traits
    bench.unplug(1)
    # The device is gone, and only Placement knows whether it is allocated.
    assert units(nova, bench, gpu) == (1, 1)


def test_a_free_device_that_has_vanished_is_reserved_until_it_is_back(bench, nova):
    gpu = bench.provider(GPU)
    functions = [bench.kernel.hot_unplug(each) for each in (AUDIO, GPU)]
    seen(bench)
    assert units(nova, bench, gpu) == (1, 1)
    bench.restart()
    assert nova.cycle(bench.manager.update_provider_tree) == set()
    for function in functions:
        bench.kernel.hot_plug(function)
    seen(bench)
    assert units(nova, bench, gpu) == (1, 0)


def test_the_units_of_a_lost_store_are_not_offered(bench, nova, tmp_path):
    """Their allocations still exist, so the providers stay."""
    gpu = bench.provider(GPU)
    bench.plug(1, GPU)
    bench.restart(state_path=str(tmp_path / "elsewhere"))
    assert nova.cycle(bench.manager.update_provider_tree) == {gpu.uuid}
    assert nova.units(gpu.uuid) == {gpu.device.resource_class: (1, 1)}
    operator_actions.adopt_device(
        bench.manager,
        PciAddress.parse(GPU),
        uuid_of(1),
        "nouveau",
        siblings={PciAddress.parse(AUDIO): "snd_hda_intel"},
    )
    seen(bench)
    assert units(nova, bench, gpu) == (1, 0)


# -- prompt updates --------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch):
    """Return a function after which every call finds an outdated snapshot."""

    begun = []

    def begin(bench):
        monkeypatch.setattr(snapshots, "MAX_AGE", -1.0)
        bench.manager.catalog.snapshots.expire()
        begun.append(bench)

    yield begin
    for bench in begun:
        wait_until(lambda bench=bench: not is_looking(bench))


def is_looking(bench) -> bool:
    return bench.manager.catalog.snapshots._looking.locked()


def answers(bench, nova) -> None:
    """Assert that an update returns in time, with all discovered providers."""
    before = bench.manager.catalog.ours
    deadlines.begin(nova.cycle, bench.manager.update_provider_tree).result(SECONDS)
    assert set(nova.ours().values()) == set(before)


def test_a_plug_that_is_stuck_in_a_write_keeps_nobody(make_bench, looks):
    bench, nova = make_bench(write_timeout=600.0, plug_timeout=3000.0), Nova()
    selected, specs = request(bench.provider(GPU))
    bench.kernel.hang(GPU, "unbind")
    with futures.ThreadPoolExecutor(1) as pool:
        plug = pool.submit(bench.manager.plug, instance(1), selected, specs)
        try:
            bench.kernel.wait_until_blocked(timeout=SECONDS)
            looks(bench)
            answers(bench, nova)
            assert not plug.done()
        finally:
            bench.kernel.lift()
        assert len(plug.result(SECONDS)) == 1


HOLDER = """
import sys
from os_acc.store.database import Database
with Database(sys.argv[1], 60.0).transaction():
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held_by_another_process(state_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, state_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        yield
        holder.communicate("")


def test_a_process_that_has_the_store_keeps_nobody(make_bench, looks, monkeypatch):
    monkeypatch.setattr(inspection, "STORE_SECONDS", 10.0 * SECONDS)
    bench, nova = make_bench(), Nova()
    bench.restart()
    with held_by_another_process(bench.state_path):
        looks(bench)
        answers(bench, nova)
        assert is_looking(bench)


def test_a_read_of_sysfs_that_hangs_keeps_nobody(bench, nova, looks, monkeypatch):
    scan, began, gate = discovery.pci.scan, threading.Event(), threading.Event()

    def hangs(root):
        began.set()
        gate.wait()
        return scan(root)

    monkeypatch.setattr(discovery.pci, "scan", hangs)
    looks(bench)
    try:
        answers(bench, nova)
        assert began.wait(SECONDS)
        answers(bench, nova)
        assert is_looking(bench)
    finally:
        gate.set()


def test_what_nobody_has_plugged_is_found_by_the_thread(bench, nova, looks):
    gpu = bench.provider(GPU)
    bench.kernel.hot_unplug(AUDIO)
    bench.kernel.hot_unplug(GPU)
    assert units(nova, bench, gpu) == (1, 0)
    looks(bench)
    wait_until(lambda: units(nova, bench, gpu) == (1, 1))


def test_threads_ask_while_others_plug(card):
    nic = card.provider(NIC)
    done, found = threading.Event(), []

    def ask():
        nova = Nova()
        while not done.is_set():
            found.append(units(nova, card, nic))

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    with futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: card.plug(number, NIC), range(1, 5)))
        list(pool.map(card.unplug, range(1, 5)))
    done.set()
    for thread in asking:
        thread.join()
    assert set(found) == {(4, 0)}


def wait_until(true) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
