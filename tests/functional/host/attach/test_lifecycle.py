# SPDX-License-Identifier: Apache-2.0

"""Devices go to guests and come back exactly as they were."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc import exception
from os_acc.testing import HostSpec, hosts
from os_acc.testing.test_host import EVERYTHING
from tests.expected_errors import has

GPU, AUDIO, FPGA, BARE = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0", "0000:e3:00.0"
DISK = "0000:d9:00.0"
VF = "0000:3b:02.0"
#: A disk would be erased after its return.
UNERASED = '{"address": "*:*:*.*", "allow_no_erase": true}'
NIC_VFS = '{"address": "0000:3b:*.*", "num_vfs": 4}'


# -- devices that can be plugged ---------------------------------------------


def vmd_disk() -> HostSpec:
    """Return a host with an NVMe disk in a group of its own and a domain of 32 bits."""
    return HostSpec((hosts.nvme_disk("10000:01", 0),))


@pytest.mark.parametrize(
    ("spec", "named", "address", "members"),
    [
        pytest.param(None, EVERYTHING, FPGA, [FPGA], id="card without driver"),
        pytest.param(None, UNERASED, DISK, [DISK], id="disk"),
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
            vmd_disk(), UNERASED, "10000:01:00.0", ["10000:01:00.0"], id="VMD domain"
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
    bench.bind("0000:05:00.0", "vfio-pci")
    before = kernel.snapshot()
    bench.plug(1, "0000:05:00.0")
    assert bench.unplug(1) == 1
    assert kernel.snapshot() == before
    # The device was reset on its way to the next guest.
    assert [w.path.rpartition("/")[2] for w in kernel.writes()[2:]] == ["reset"]


# -- restored state ----------------------------------------------------------


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
    """libvirt leaves a driver that was bound by an override which is gone."""
    kernel = bench.kernel
    device = f"{bench.root}/sys/bus/pci/devices/{FPGA}"
    bench.bind(FPGA, "nvme")
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
    with pytest.raises(
        exception.HostStepFailed, check=has(reason=exception.StepReason.REFUSED)
    ) as caught:
        bench.plug(1, GPU)
    assert override in str(caught.value)
    assert caught.value.hint
    assert provider.device.handles
    assert (kernel.snapshot(), kernel.writes()) == (before, writes)
    assert bench.manager.store.leases() == ()
