# SPDX-License-Identifier: Apache-2.0

"""Leases are checked against a host that was rebooted or changed meanwhile."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc import exception
from os_acc.attach import verification
from os_acc.objects.lease import LeaseState
from os_acc.plugins import base
from os_acc.privsep import kernel as privsep_kernel
from os_acc.testing import FakeKernel, HostSpec, hosts, instance, uuid_of

GPU, AUDIO, FPGA = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0"
DISK = "0000:d9:00.0"
VF = "0000:3b:02.0"
NIC_VFS = '{"address": "0000:3b:*.*", "num_vfs": 4}'


# -- after a reboot -----------------------------------------------------------


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
    """The host has mounted the file system that the guest wrote to its disk."""
    bench.plug(1, DISK)
    bench.kernel.reboot()
    with open(f"{bench.root}/proc/self/mounts", "a") as mounts:
        mounts.write("/dev/nvme1n1 /srv xfs rw 0 0\n")
    bench.restart()
    writes = bench.kernel.writes()
    with pytest.raises(exception.DeviceInUse, match="mounted at /srv"):
        bench.manager.plug(instance(1), None, None)
    assert bench.kernel.writes() == writes
    assert bench.lease_state() is LeaseState.HELD


def test_groups_that_a_reboot_numbers_anew_hide_no_holder(bench):
    bench.plug(1, GPU)
    (lease,) = bench.manager.store.leases()
    earlier = dataclasses.replace(
        lease,
        handle=dataclasses.replace(lease.handle, iommu_group=999),
        boot_id=uuid_of(7),
    )
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
    """libvirt may bind the device after a reboot, before os_acc is called."""
    before = bench.kernel.snapshot()
    (entry,) = bench.plug(1, FPGA)
    bench.kernel.reboot()
    bench.bind(FPGA, "vfio-pci")
    bench.kernel.hold(FPGA)
    bench.restart()
    assert bench.plugged(1) == [FPGA]
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    bench.kernel.let_go(FPGA)
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before
    assert entry["pci_id"] == FPGA


# -- exchanged and removed devices ---------------------------------------------


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
    """The card is exchanged between its check and the first write."""
    before = bench.kernel.snapshot()

    class Exchanging(FakeKernel):
        def write(self, path: str, text: str) -> None:
            if text == "vfio-pci" and FPGA in path:
                self.swap(FPGA, (0x1234, 0x5678))
            super().write(path, text)

    monkeypatch.setattr(privsep_kernel, "current", Exchanging(bench.root))
    with pytest.raises(exception.DeviceChanged, match="1234"):
        bench.plug(1, FPGA)
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_a_card_that_is_pulled_out_while_a_guest_holds_it_names_the_guest(bench):
    """The driver link is gone already; any write would wait for the guest.

    Only root may open the node.
    """
    bench.plug(1, FPGA)
    bench.kernel.hold(FPGA, pid=4242, command="qemu-kvm")
    bench.kernel.chown(FPGA)
    bench.kernel.hot_unplug(FPGA)
    assert bench.drivers(FPGA) == [None]
    writes = bench.kernel.writes()
    with (
        bench.short_timeout(),
        pytest.raises(exception.DevicesUnreleased) as caught,
    ):
        bench.unplug(1)
    ((address, why),) = caught.value.unreleased
    assert address == FPGA
    assert isinstance(why, exception.DeviceInUse)
    assert why.holders == ((4242, "qemu-kvm"),)
    assert "qemu-kvm (pid 4242)" in str(caught.value)
    assert bench.kernel.writes() == writes
    assert bench.lease_state() is LeaseState.RELEASING
    bench.kernel.let_go(FPGA)
    assert bench.unplug(1) == 1
    assert bench.manager.store.leases() == ()


def test_a_pulled_out_card_that_a_guest_holds_is_not_made_ready_again(bench):
    bench.plug(1, FPGA)
    bench.kernel.hold(FPGA)
    bench.kernel.hot_unplug(FPGA)
    writes = bench.kernel.writes()
    with (
        bench.short_timeout(),
        pytest.raises(exception.DeviceInUse, match="qemu"),
    ):
        bench.manager.plug(instance(1), None, None)
    assert bench.kernel.writes() == writes
    assert bench.lease_state() is LeaseState.HELD


@pytest.mark.parametrize("is_exchanged", [False, True], ids=["pulled", "exchanged"])
def test_the_rest_of_a_group_is_given_back(make_bench, is_exchanged):
    # The disk keeps its data: else its group has no guest.
    unerased = '{"address": "*:*:*.*", "allow_no_erase": true}'
    card = hosts.fpga("0000:05")
    other = dataclasses.replace(hosts.nvme_disk("0000:06", 1), group_of=card.address)
    bench = make_bench(HostSpec((card, other)), device_spec=[unerased])
    bench.plug(1, card.address)
    assert bench.drivers(other.address) == ["vfio-pci"]
    if is_exchanged:
        bench.kernel.swap(card.address, (0x10EE, 0x6000))
    else:
        bench.kernel.hot_unplug(card.address)
    assert bench.unplug(1) == 1
    assert bench.kernel.state(other.address).driver_override is None
    assert bench.drivers(other.address) == ["nvme"]
    if is_exchanged:
        assert bench.drivers(card.address) == [None]


def test_a_device_that_changes_while_it_is_chosen_is_not_taken(bench, monkeypatch):
    store, add = bench.manager.store, bench.manager.store.add

    def swap_first(leases, seen):
        bench.kernel.swap(FPGA, (0x10EE, 0x6000))
        return add(leases, seen)

    monkeypatch.setattr(store, "add", swap_first)
    writes = bench.kernel.writes()
    with pytest.raises(exception.DeviceChanged, match=FPGA):
        bench.plug(1, FPGA)
    assert bench.kernel.writes() == writes
    assert store.leases() == ()


def test_what_was_read_while_another_consumer_had_the_device_is_not_restored(
    bench, monkeypatch
):
    before, read_prior = bench.kernel.snapshot(), verification.read_prior

    def read_while_it_is_plugged(*arguments):
        monkeypatch.setattr(verification, "read_prior", read_prior)
        bench.plug(2, GPU)
        found = read_prior(*arguments)
        bench.unplug(2)
        return found

    monkeypatch.setattr(verification, "read_prior", read_while_it_is_plugged)
    bench.plug(1, GPU)
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


def test_methods_that_a_plugin_inherits_are_not_called(bench, monkeypatch):
    called = []
    for method in ("prepare", "release"):
        monkeypatch.setattr(base.PluginBase, method, lambda *each: called.append(each))
    bench.plug(1, GPU)
    assert bench.unplug(1) == 1
    assert called == []
