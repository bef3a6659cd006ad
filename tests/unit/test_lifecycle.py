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

"""Devices go to guests and come back as they were, whatever goes wrong."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import pytest

from os_acc import bindings, exception
from os_acc.objects.lease import LeaseState
from os_acc.privsep import kernel as privsep_kernel
from os_acc.store import Store, StoreDamaged
from os_acc.store.locks import consumer_lock
from os_acc.testing import FakeKernel, FunctionSpec, HostSpec, hosts
from tests.unit.bench import EVERYTHING, Bench, instance, request, uuid_of

GPU, AUDIO, FPGA, BARE = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0", "0000:e3:00.0"
DISK = "0000:d9:00.0"
NIC, VF = "0000:3b:00.0", "0000:3b:02.0"
NIC_VFS = '{"address": "0000:3b:*.*", "num_vfs": 4}'


def state_of(bench: Bench, number: int = 1) -> LeaseState:
    (lease,) = bench.manager.store.leases(uuid_of(number))
    return lease.state


# -- what can be plugged -----------------------------------------------------


def vmd_disk() -> HostSpec:
    """An NVMe disk with a group of its own, in a domain of 32 bits."""
    return HostSpec((hosts.nvme_disk("10000:01", 0),))


@pytest.mark.parametrize(
    ("spec", "named", "address", "members"),
    [
        pytest.param(None, EVERYTHING, FPGA, [FPGA], id="card without driver"),
        pytest.param(None, EVERYTHING, DISK, [DISK], id="disk"),
        pytest.param(None, EVERYTHING, GPU, [GPU, AUDIO], id="GPU with audio"),
        pytest.param(
            None,
            '{"address": "0000:17:00.0"}',
            GPU,
            [GPU, AUDIO],
            id="GPU named alone takes its audio function along",
        ),
        pytest.param(None, NIC_VFS, VF, [VF], id="VF"),
        pytest.param(
            vmd_disk(), EVERYTHING, "10000:01:00.0", ["10000:01:00.0"], id="VMD domain"
        ),
    ],
)
def test_a_device_goes_to_vfio_pci_and_comes_back(
    make_bench, spec, named, address, members
):
    bench = make_bench(spec, device_spec=[named])
    bench.provider(address)
    before = bench.kernel.snapshot()
    (entry,) = bench.plug(1, address)
    assert entry["pci_id"] == address
    assert entry["state"] == "Bound"
    assert bench.drivers(*members) == ["vfio-pci"] * len(members)
    changed = {s.address for s in bench.kernel.snapshot()} - {
        s.address for s in set(bench.kernel.snapshot()) & set(before)
    }
    assert changed == set(members)
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_a_device_without_a_numa_node_has_none(bench):
    (entry,) = bench.plug(1, BARE)
    assert entry["numa_node"] is None
    (entry,) = bench.plug(2, FPGA)
    assert entry["numa_node"] == 0


def test_a_group_that_is_named_whole_is_one_accelerator(make_bench):
    spec = hosts.shared_group_host()
    quiet = tuple(
        dataclasses.replace(each, devices=()) if "02:00" in each.address else each
        for each in spec.functions
    )
    bench = make_bench(dataclasses.replace(spec, functions=quiet))
    before = bench.kernel.snapshot()
    members = ["0000:01:00.0", "0000:01:00.1", "0000:02:00.0", "0000:04:00.0"]
    (provider,) = bench.manager.providers()
    assert [str(each) for each in provider.device.handles[0].members] == members
    bench.plug(1, members[0])
    assert bench.drivers(*members) == ["vfio-pci"] * 4
    with pytest.raises(exception.NoDeviceAvailable):
        bench.plug(2, members[0])
    bench.unplug(1)
    assert bench.kernel.snapshot() == before


def test_a_device_that_is_bound_before_stays_bound(make_bench):
    bench = make_bench(
        HostSpec((hosts.fpga("0000:05"),)),
        device_spec=['{"address": "0000:05:00.0", "prebound": true}'],
    )
    kernel = bench.kernel
    device = f"{bench.root}/sys/bus/pci/devices/0000:05:00.0"
    kernel.write(f"{device}/driver_override", "vfio-pci")
    kernel.write(f"{bench.root}/sys/bus/pci/drivers_probe", "0000:05:00.0")
    before = kernel.snapshot()
    assert before[0].driver == "vfio-pci"
    bench.plug(1, "0000:05:00.0")
    assert bench.unplug(1) == 1
    assert kernel.snapshot() == before
    # It was reset on its way to the next guest.
    assert [w.path.rpartition("/")[2] for w in kernel.writes()[2:]] == ["reset"]


# -- exactly as it was -------------------------------------------------------


@pytest.mark.parametrize("override", ["nouveau", "none", "pci-stub", "A.b-c_9 d:e+"])
def test_an_earlier_override_comes_back(bench, override):
    kernel = bench.kernel
    kernel.write(f"{bench.root}/sys/bus/pci/devices/{GPU}/driver_override", override)
    before = kernel.snapshot()
    bench.plug(1, GPU)
    bench.unplug(1)
    assert kernel.snapshot() == before
    assert kernel.state(GPU).driver_override == override


def test_a_driver_that_no_probe_would_choose_comes_back(bench):
    """It was bound by an override that is gone, as libvirt leaves it."""
    kernel = bench.kernel
    device = f"{bench.root}/sys/bus/pci/devices/{FPGA}"
    kernel.write(f"{device}/driver_override", "nvme")
    kernel.write(f"{bench.root}/sys/bus/pci/drivers_probe", FPGA)
    kernel.write(f"{device}/driver_override", "\n")
    before = kernel.snapshot()
    assert kernel.state(FPGA) == dataclasses.replace(
        kernel.state(FPGA), driver="nvme", driver_override=None
    )
    bench.plug(1, FPGA)
    bench.unplug(1)
    assert kernel.snapshot() == before


@pytest.mark.parametrize("override", ["../../evil", "a/b", "a" * 65, "-x", "ünicode"])
def test_an_override_that_could_not_be_restored_is_refused_first(bench, override):
    kernel = bench.kernel
    provider = bench.provider(GPU)
    kernel.write(f"{bench.root}/sys/bus/pci/devices/{GPU}/driver_override", override)
    before, writes = kernel.snapshot(), kernel.writes()
    with pytest.raises(exception.HostStepFailed) as caught:
        bench.plug(1, GPU)
    assert override in str(caught.value)
    assert caught.value.hint
    assert provider.device.handles
    assert (kernel.snapshot(), kernel.writes()) == (before, writes)
    assert bench.manager.store.leases() == ()


# -- after a reboot, and other surprises -------------------------------------


def test_a_recorded_lease_is_made_ready_again_after_a_reboot(bench):
    before = bench.kernel.snapshot()
    entries = bench.plug(1, GPU, FPGA)
    bench.kernel.reboot()
    bench.restart()
    assert bench.drivers(GPU, AUDIO, FPGA) == ["nouveau", "snd_hda_intel", None]
    assert bench.manager.plug(instance(1), None, None) == entries
    assert bench.drivers(GPU, AUDIO, FPGA) == ["vfio-pci"] * 3
    assert bench.unplug(1) == 2
    assert bench.kernel.snapshot() == before


def test_vfs_come_back_after_a_reboot(make_bench):
    bench = make_bench(device_spec=[NIC_VFS])
    bench.restart()
    before = bench.kernel.snapshot()
    entries = bench.plug(1, VF)
    bench.kernel.reboot()
    assert VF not in {state.address for state in bench.kernel.snapshot()}
    with pytest.raises(exception.DeviceGone, match=VF):
        bench.manager.plug(instance(1), None, None)
    bench.restart()
    assert bench.manager.plug(instance(1), None, None) == entries
    bench.unplug(1)
    assert bench.kernel.snapshot() == before


def test_what_the_host_uses_after_a_reboot_stays_with_it(bench):
    """What the guest wrote to its disk, the host has found and mounted."""
    bench.plug(1, DISK)
    bench.kernel.reboot()
    with open(f"{bench.root}/proc/self/mounts", "a") as mounts:
        mounts.write("/dev/nvme1n1 /srv xfs rw 0 0\n")
    bench.restart()
    writes = bench.kernel.writes()
    with pytest.raises(exception.DeviceInUse, match="mounted at /srv"):
        bench.manager.plug(instance(1), None, None)
    assert bench.kernel.writes() == writes
    assert state_of(bench) is LeaseState.HELD


def test_groups_that_a_reboot_numbers_anew_hide_no_holder(bench):
    bench.plug(1, GPU)
    (lease,) = bench.manager.store.leases()
    earlier = dataclasses.replace(lease, iommu_group=999, boot_id=uuid_of(7))
    bench.manager.store.replace([earlier])
    bench.kernel.hold(GPU)
    with pytest.raises(exception.DevicesUnreleased) as caught:
        bench.unplug(1)
    assert isinstance(caught.value.unreleased[0][1], exception.DeviceInUse)
    assert bench.plugged(1) == [GPU]
    bench.kernel.let_go(GPU)
    assert bench.unplug(1) == 1
    assert bench.drivers(GPU) == ["nouveau"]


def test_an_unplug_after_a_reboot_touches_nothing(bench):
    bench.plug(1, GPU)
    bench.kernel.reboot()
    writes = bench.kernel.writes()
    bench.restart()
    assert bench.unplug(1) == 1
    assert bench.kernel.writes() == writes
    assert bench.manager.store.leases() == ()


def test_a_guest_that_the_host_started_itself_keeps_its_device(bench):
    """After a reboot libvirt may have bound it before os_acc was asked."""
    before = bench.kernel.snapshot()
    (entry,) = bench.plug(1, FPGA)
    bench.kernel.reboot()
    device = f"{bench.root}/sys/bus/pci/devices/{FPGA}"
    bench.kernel.write(f"{device}/driver_override", "vfio-pci")
    bench.kernel.write(f"{bench.root}/sys/bus/pci/drivers_probe", FPGA)
    bench.kernel.hold(FPGA)
    bench.restart()
    assert bench.plugged(1) == [FPGA]
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    bench.kernel.let_go(FPGA)
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before
    assert entry["pci_id"] == FPGA


def test_another_card_at_the_address_is_another_device(bench):
    bench.plug(1, FPGA)
    bench.kernel.swap(FPGA, (0x10EE, 0x6000))
    with pytest.raises(exception.DeviceChanged, match="10ee:6000") as caught:
        bench.manager.plug(instance(1), None, None)
    assert caught.value.hint
    writes = bench.kernel.writes()
    assert bench.unplug(1) == 1
    assert bench.kernel.writes() == writes
    assert bench.drivers(FPGA) == [None]


def test_a_card_that_is_exchanged_before_the_first_write_is_not_given(
    bench, monkeypatch
):
    """It was checked, and is another one when it is written to."""
    before = bench.kernel.snapshot()

    class Exchanging(FakeKernel):
        def write(self, path: str, text: str) -> None:
            if text == "vfio-pci" and FPGA in path:
                self.swap(FPGA, (0x1234, 0x5678))
            super().write(path, text)

    selected, specs = request(bench.provider(FPGA))
    monkeypatch.setattr(privsep_kernel, "current", Exchanging(bench.root))
    with pytest.raises(exception.DeviceChanged, match="1234"):
        bench.manager.plug(instance(1), selected, specs)
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_a_card_that_is_pulled_out_ends_its_lease(bench):
    bench.plug(1, FPGA, GPU)
    spec = bench.kernel.hot_unplug(FPGA)
    with pytest.raises(exception.DeviceGone, match=FPGA):
        bench.manager.plug(instance(1), None, None)
    assert bench.unplug(1) == 2
    assert bench.manager.store.leases() == ()
    assert bench.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]
    bench.kernel.hot_plug(spec)
    bench.plug(2, FPGA)


def test_the_rest_of_a_group_is_given_back_where_one_is_pulled_out(make_bench):
    card = hosts.fpga("0000:05")
    other = dataclasses.replace(hosts.nvme_disk("0000:06", 1), group_of=card.address)
    bench = make_bench(HostSpec((card, other)))
    bench.plug(1, card.address)
    assert bench.drivers(other.address) == ["vfio-pci"]
    bench.kernel.hot_unplug(card.address)
    assert bench.unplug(1) == 1
    assert bench.kernel.state(other.address).driver_override is None
    assert bench.drivers(other.address) == ["nvme"]


def test_the_rest_of_a_group_is_given_back_where_one_is_exchanged(make_bench):
    card = hosts.fpga("0000:05")
    other = dataclasses.replace(hosts.nvme_disk("0000:06", 1), group_of=card.address)
    bench = make_bench(HostSpec((card, other)))
    bench.plug(1, card.address)
    bench.kernel.swap(card.address, (0x10EE, 0x6000))
    assert bench.unplug(1) == 1
    assert bench.drivers(card.address, other.address) == [None, "nvme"]


def test_a_device_that_changes_while_it_is_chosen_is_not_taken(bench, monkeypatch):
    provider = bench.provider(FPGA)
    store, add = bench.manager.store, bench.manager.store.add

    def swap_first(leases):
        bench.kernel.swap(FPGA, (0x10EE, 0x6000))
        return add(leases)

    monkeypatch.setattr(store, "add", swap_first)
    writes = bench.kernel.writes()
    selected, specs = request(provider)
    with pytest.raises(exception.DeviceChanged, match=FPGA):
        bench.manager.plug(instance(1), selected, specs)
    assert bench.kernel.writes() == writes
    assert store.leases() == ()


def test_what_was_read_while_another_consumer_had_the_device_is_not_restored(
    bench, monkeypatch
):
    before, read_prior = bench.kernel.snapshot(), bindings.read_prior
    selected, specs = request(bench.provider(DISK))

    def read_while_it_is_plugged(root, members, deadline):
        monkeypatch.setattr(bindings, "read_prior", read_prior)
        bench.plug(2, DISK)
        found = read_prior(root, members, deadline)
        bench.unplug(2)
        return found

    monkeypatch.setattr(bindings, "read_prior", read_while_it_is_plugged)
    bench.manager.plug(instance(1), selected, specs)
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


def test_a_store_that_is_lost_in_mid_plug_leaves_the_host_as_it_was(bench, monkeypatch):
    before, prove = bench.kernel.snapshot(), bindings.prove
    selected, specs = request(bench.provider(GPU), bench.provider(FPGA))

    def lose_the_store(root, lease):
        prove(root, lease)
        Path(bench.state_path, "os_acc.sqlite").unlink(missing_ok=True)

    monkeypatch.setattr(bindings, "prove", lose_the_store)
    with pytest.raises(StoreDamaged):
        bench.manager.plug(instance(1), selected, specs)
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_an_interrupted_plug_goes_back(bench, monkeypatch):
    """Ctrl-C in the command, say."""
    before = bench.kernel.snapshot()

    def interrupt(root, lease):
        raise KeyboardInterrupt

    monkeypatch.setattr(bindings, "prove", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.plug(1, FPGA)
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_a_disk_that_fills_up_in_mid_plug_leaves_the_host_as_it_was(bench, monkeypatch):
    before = bench.kernel.snapshot()
    store, provider = bench.manager.store, bench.provider(FPGA)

    def is_full(_leases):
        raise exception.StoreFull("no space is left for the store")

    selected, specs = request(provider)
    with monkeypatch.context() as patch:
        patch.setattr(store, "replace", is_full)
        with pytest.raises(exception.StoreFull) as raised:
            bench.manager.plug(instance(1), selected, specs)
    assert "could not be recorded" in raised.value.__notes__[0]
    assert bench.kernel.snapshot() == before
    assert store.leases()[0].state is LeaseState.PREPARING
    bench.restart()
    assert bench.manager.store.leases() == ()
    assert bench.kernel.snapshot() == before


def test_a_commit_that_happened_although_it_failed_goes_back(bench, monkeypatch):
    """The disk refused what would make it outlive a power cut."""
    before, replace = bench.kernel.snapshot(), Store.replace
    selected, specs = request(bench.provider(GPU))

    def commit_and_fail(store, leases):
        done = replace(store, leases)
        if done[0].state is LeaseState.HELD:
            raise exception.StoreError("disk I/O error")
        return done

    monkeypatch.setattr(Store, "replace", commit_and_fail)
    with pytest.raises(exception.StoreError):
        bench.manager.plug(instance(1), selected, specs)
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


# -- what a dead process has left --------------------------------------------


def forget_commit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die where a plug's last step would be recorded."""
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

    monkeypatch.setattr(store, "replace", die)


def test_an_uncommitted_plug_goes_back_at_the_next_start(bench, monkeypatch):
    before = bench.kernel.snapshot()
    forget_commit(bench, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        bench.plug(1, GPU, FPGA)
    assert bench.drivers(GPU, AUDIO, FPGA) == ["vfio-pci"] * 3
    bench.restart()
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_the_next_operation_of_the_consumer_settles_as_well(bench, monkeypatch):
    first = bench.manager
    forget_commit(bench, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        bench.plug(1, GPU)
    monkeypatch.undo()
    assert bench.manager is first
    bench.plug(1, FPGA)
    assert bench.plugged(1) == [FPGA]
    assert bench.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]


def test_a_start_leaves_alone_what_others_are_at(bench, monkeypatch):
    forget_commit(bench, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        bench.plug(1, GPU)
    monkeypatch.undo()
    deadline = time.monotonic() + 60
    with bench.manager.locks.hold([consumer_lock(uuid_of(1))], deadline):
        bench.restart()
        assert state_of(bench) is LeaseState.PREPARING
    bench.restart()
    assert bench.manager.store.leases() == ()


def test_one_record_that_cannot_be_settled_stops_no_start(bench, monkeypatch, caplog):
    for number, address in ((1, GPU), (2, FPGA)):
        with pytest.MonkeyPatch.context() as patch:
            forget_commit(bench, patch)
            with pytest.raises(KeyboardInterrupt):
                bench.plug(number, address)
    bench.kernel.fail(GPU, "drivers_probe", times=None)
    bench.restart()
    assert bench.plugged(1) == [GPU]
    assert bench.plugged(2) == []
    assert state_of(bench, 1) is LeaseState.QUARANTINED
    assert f"{GPU} stays leased" in caplog.text
    bench.plug(3, BARE)


def test_a_restart_leaves_held_leases_alone(bench):
    entries = bench.plug(1, GPU)
    writes = bench.kernel.writes()
    bench.restart()
    assert bench.kernel.writes() == writes
    assert bench.manager.attached(instance(1)) == {uuid_of(1): entries}


def test_a_node_that_does_not_appear_is_a_failure(bench, monkeypatch):
    """vfio-pci has the device, but there is nothing that a guest could open."""
    before = bench.kernel.snapshot()
    group = bench.kernel.group(FPGA)
    node = os.path.join(bench.root, "dev/vfio", str(group))
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != node and exists(path))
    with pytest.raises(exception.HostStepFailed, match=node):
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

    def plug_first(leases):
        bench.kernel.hot_plug(late)
        return add(leases)

    store.add = plug_first
    with pytest.raises(exception.HostStepFailed, match="edu"):
        bench.plug(1, card.address)
    assert bench.kernel.snapshot()[:1] == before
