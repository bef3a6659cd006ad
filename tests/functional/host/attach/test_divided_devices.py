# SPDX-License-Identifier: Apache-2.0

"""A function that is divided after the scan of the host is not taken as a whole.

A driver that loses its function removes the VFs (pci_disable_sriov()) and the mediated
devices (mdev_unregister_parent()), and NVIDIA's driver the MIG instances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.helper import client
from os_acc.host import mdev
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.plugins import base
from os_acc.privsep import record
from os_acc.testing import HostSpec, TestHost, hosts, instance
from os_acc.testing.specs import MdevParentSpec, MdevTypeSpec

GPU, AUDIO, OTHER = "0000:17:00.0", "0000:17:00.1", "0000:65:00.0"
NIC = "0000:3b:00.0"
MDEV = "6f0c9b52-2d21-4a2e-9d3c-000000000001"
SRIOV = hosts.nic("0000:3b", name="eno1", vfs=4).sriov


def gpu() -> HostSpec:
    """Return a host with a GPU that can be divided in each way."""
    display, audio = hosts.gpu("0000:17")
    parent = MdevParentSpec(GPU, 2, (MdevTypeSpec("nvidia-558"),))
    display = dataclasses.replace(display, sriov=SRIOV, mdevs=parent)
    return HostSpec((display, dataclasses.replace(audio, sriov=SRIOV)))


def make_vfs(bench: TestHost, address: str = GPU) -> None:
    path = f"{bench.root}/sys/bus/pci/devices/{address}/sriov_numvfs"
    bench.kernel.write(path, "2")


def make_mdev(bench: TestHost) -> None:
    types = f"{bench.root}/sys/class/mdev_bus/{GPU}/mdev_supported_types"
    bench.kernel.write(f"{types}/nvidia-558/create", MDEV)


def make_mig_instance(bench: TestHost) -> None:
    proc = Path(bench.root, "proc/driver/nvidia")
    (proc / "capabilities/gpu3/mig/gi1").mkdir(parents=True)
    (proc / "gpus" / GPU).mkdir(parents=True)
    information = proc / "gpus" / GPU / "information"
    information.write_text("Model: \t\t NVIDIA H100\nDevice Minor: \t 3\n")


def make_unreadable_gpu(bench: TestHost) -> None:
    """NVIDIA's driver answers for a GPU that fell off the bus with an error."""
    make_mig_instance(bench)
    information = Path(bench.root, "proc/driver/nvidia/gpus", GPU, "information")
    information.unlink()
    information.mkdir()


@pytest.fixture
def before_take(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that has another tool divide the device during a plug."""
    check_free = client.Helper.check_free

    def have(divide: Callable[[TestHost], None], bench: TestHost) -> None:
        todo = [divide]

        def divided(helper, addresses, deadline):
            check_free(helper, addresses, deadline)
            while todo:
                todo.pop()(bench)

        monkeypatch.setattr(client.Helper, "check_free", divided)

    return have


@pytest.mark.parametrize(
    ("divide", "text"),
    [
        (make_mdev, f"mediated device {MDEV}"),
        (make_mig_instance, "MIG instance gi1"),
        (make_unreadable_gpu, "cannot determine the use"),
    ],
)
def test_a_device_divided_meanwhile_stays_with_the_host(
    make_bench, before_take, divide, text
):
    bench = make_bench(gpu())
    before_take(divide, bench)
    with pytest.raises(exception.DeviceInUse, match=text) as caught:
        bench.plug(1, GPU)
    assert "MIG instances" in caught.value.hint
    assert not caught.value.retryable
    assert bench.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]
    assert bench.manager.store.leases() == ()
    with bench.kernel.installed():
        assert not record.exists(PciAddress.parse(GPU))
    assert bench.rejected(GPU).reason is RejectReason.HOST_USES


def test_its_vfs_are_left_and_none_of_them_replaces_the_whole(make_bench, before_take):
    bench = make_bench(gpu())
    before_take(make_vfs, bench)
    with pytest.raises(exception.DeviceInUse, match="2 VFs"):
        bench.plug(1, GPU)
    # They are units of the same provider by now.
    assert len(bench.provider("0000:17:02.0").device.handles) == 2


class Pool(base.PluginBase):
    """Offer all GPUs of a host as units of one device."""

    contract_version = (1, 0)

    def discover(self, candidates):
        found = [
            each
            for each in candidates.usable
            if str(each.function.address) in (GPU, OTHER)
        ]
        if found:
            last = found[-1].function
            yield base.Device(
                plugin=self.name,
                address=last.address,
                identity=last.identity,
                resource_class="CUSTOM_ACCELERATOR_GPU",
                traits=frozenset(),
                numa_node=None,
                handles=tuple(each.handle() for each in found),
            )


def test_a_guest_gets_another_device_of_the_provider(
    make_bench, before_take, install_plugins
):
    install_plugins(pool=f"{__name__}:Pool")
    bench = make_bench(HostSpec((*gpu().functions, *hosts.gpu("0000:65"))))
    before_take(make_mdev, bench)
    (entry,) = bench.plug(1, GPU)
    assert entry["pci_id"] == OTHER
    assert bench.drivers(GPU) == ["nouveau"]
    assert [each.uuid for each in mdev.read_mdevs(bench.root)] == [MDEV]


def test_vfs_that_the_host_has_made_after_a_reboot_are_left(make_bench):
    """A leased PF got VFs at boot, from the administrator's own scripts."""
    bench = make_bench(HostSpec((hosts.nic("0000:3b", name="eno1"),)))
    entries = bench.plug(1, NIC)
    bench.kernel.reboot()
    make_vfs(bench, NIC)
    bench.restart()
    with pytest.raises(exception.DeviceInUse, match="has 2 VFs"):
        bench.manager.plug(instance(1), None, None)
    assert bench.drivers(NIC) == ["ice"]
    assert bench.lease_state() is LeaseState.HELD
    bench.kernel.write(f"{bench.root}/sys/bus/pci/devices/{NIC}/sriov_numvfs", "0")
    assert bench.manager.plug(instance(1), None, None) == entries
