# SPDX-License-Identifier: Apache-2.0

"""A GPU as it was found on real hardware (``recorded_gpu_server.json``).

The files of ``/proc/driver/nvidia`` are those of the same server, without the UUID of
the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from os_acc import exception
from os_acc.objects.device import RejectReason
from os_acc.testing import TestHost, load_host
from tests.unit.plugins.recorded_gpu import NAMED, RECORDED, with_iommu

GPU: Final = "0000:00:06.0"
DISK: Final = "0000:00:01.0"
INFORMATION: Final = (
    "Model: \t\t NVIDIA H100 80GB HBM3\n"
    "IRQ:   \t\t 41\n"
    "Video BIOS: \t 96.00.cf.00.01\n"
    "Bus Type: \t PCIe\n"
    "DMA Size: \t 52 bits\n"
    "DMA Mask: \t 0xfffffffffffff\n"
    "Bus Location: \t 0000:00:06.0\n"
    "Device Minor: \t 0\n"
    "GPU Firmware: \t 580.159.04\n"
    "GPU Excluded:\t No\n"
)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    spec = with_iommu(load_host(RECORDED))
    with TestHost(tmp_path, spec, device_spec=list(NAMED)) as host:
        proc = Path(host.root, "proc/driver/nvidia")
        for name in ("capabilities/mig", "capabilities/gpu0/mig", f"gpus/{GPU}"):
            (proc / name).mkdir(parents=True)
        (proc / "capabilities/mig/config").write_text("DeviceFileMinor: 1\n")
        (proc / "gpus" / GPU / "information").write_text(INFORMATION)
        host.restart()
        yield host


def test_without_an_iommu_the_gpu_stays_on_the_host(tmp_path):
    with TestHost(tmp_path, load_host(RECORDED), device_spec=list(NAMED)) as host:
        assert host.rejected(GPU).reason is RejectReason.NO_IOMMU


def test_the_gpu_is_plugged_as_a_whole(host):
    before = host.kernel.snapshot()
    (provider,) = host.manager.discover().providers.values()
    assert provider.device.plugin == "pci"
    assert provider.device.resource_class == "CUSTOM_ACCELERATOR_GPU"
    assert "CUSTOM_PCI_10DE_2330" in provider.device.traits
    (entry,) = host.plug(1, GPU)
    assert (entry["pci_id"], host.drivers(GPU)) == (GPU, ["vfio-pci"])
    host.unplug(1)
    assert host.drivers(GPU) == ["nvidia"]
    assert host.kernel.snapshot() == before


def test_a_mig_instance_keeps_the_gpu_on_the_host(host):
    instance = Path(host.root, "proc/driver/nvidia/capabilities/gpu0/mig/gi7")
    instance.mkdir()
    refused = host.rejected(GPU)
    assert (refused.reason, refused.detail) == (
        RejectReason.HOST_USES,
        "it has the MIG instance gi7",
    )
    instance.rmdir()
    assert host.provider(GPU).device.handles


def test_a_gpu_that_a_process_of_the_host_uses_is_not_taken(host):
    """Its driver would let the unbind wait until the process has closed it."""
    before, writes = host.kernel.snapshot(), len(host.kernel.writes())
    process = Path(host.root, "proc/77")
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("python3\n")
    for number, node in enumerate(("nvidiactl", "nvidia-uvm", "nvidia0")):
        (process / "fd" / str(number)).symlink_to(f"/dev/{node}")
    with pytest.raises(exception.DeviceInUse) as caught:
        host.plug(1, GPU)
    assert caught.value.holders == ((77, "python3"),)
    assert str(caught.value) == (
        f"{GPU} is held by python3 (pid 77) (wait until that process has ended, then "
        "retry)"
    )
    assert (caught.value.retryable, caught.value.elsewhere) == (True, True)
    assert host.kernel.writes(writes) == []
    assert host.kernel.snapshot() == before
    assert host.manager.store.leases() == ()
    (process / "fd/2").unlink()
    host.plug(1, GPU)
    assert host.drivers(GPU) == ["vfio-pci"]


def test_the_disk_of_the_host_is_never_offered(host):
    host.restart(device_spec=[f'{{"address": "{DISK}", "allow_no_reset": true}}'])
    assert host.rejected(DISK).reason is RejectReason.HOST_USES
