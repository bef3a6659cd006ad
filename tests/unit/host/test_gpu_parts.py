# SPDX-License-Identifier: Apache-2.0

"""A device stays on its host driver while parts of it exist there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from os_acc.host.pci import scan
from os_acc.host.usage import read_usage
from os_acc.objects.device import RejectReason
from os_acc.testing import HostSpec, hosts
from tests.unit.host.tree import PLAIN, Sysfs, address

NVIDIA = (0x10DE, 0x2330, 0x10DE, 0x16C1)
MDEV = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"
VF = "0000:3b:00.4"


@pytest.fixture(autouse=True)
def mounts(sysfs: Sysfs) -> None:
    """Mount a root file system: without one, the uses are unknown."""
    sysfs.put("proc/self/mountinfo", "21 1 0:19 / / rw - tmpfs tmpfs rw")


def use(sysfs: Sysfs, text: str = PLAIN) -> str | None:
    return read_usage(sysfs.root, scan(sysfs.root).functions).get(address(text))


def test_a_mediated_device_is_a_use_of_its_parent(sysfs: Sysfs) -> None:
    parent = sysfs.function(driver="i915")
    sysfs.function("0000:3b:00.1", driver="i915")
    (parent / MDEV).mkdir()
    sysfs.link(f"sys/bus/mdev/devices/{MDEV}", parent / MDEV)
    assert use(sysfs) == f"it has the mediated device {MDEV}"
    assert use(sysfs, "0000:3b:00.1") is None


def test_a_mediated_device_without_a_pci_parent_is_no_use(sysfs: Sysfs) -> None:
    sysfs.function()
    mdev = sysfs.path / "sys/devices/virtual/mtty/mtty" / MDEV
    mdev.mkdir(parents=True)
    sysfs.link(f"sys/bus/mdev/devices/{MDEV}", mdev)
    assert use(sysfs) is None


def virtual_function(sysfs: Sysfs, text: str) -> str:
    """Add a GPU and its VF, which reports a type of vGPU; return the VF's address."""
    sysfs.function(ids=NVIDIA, driver="nvidia")
    sysfs.vf(PLAIN, 0, VF)
    vf = sysfs.devices / VF
    (vf / "modalias").write_text(
        (sysfs.devices / PLAIN / "modalias").read_text(), encoding="ascii"
    )
    (vf / "nvidia").mkdir()
    (vf / "nvidia/current_vgpu_type").write_text(f"{text}\n")
    return VF


@pytest.mark.parametrize(
    ("text", "expected"), [("0", None), ("557", "it is a vGPU of type 557")]
)
def test_a_vgpu_is_a_use_of_its_vf_alone(
    sysfs: Sysfs, text: str, expected: str | None
) -> None:
    assert use(sysfs, virtual_function(sysfs, text)) == expected
    assert use(sysfs) is None


@pytest.fixture
def gpu(sysfs: Sysfs) -> Path:
    """Add a GPU with MIG; return the directory of its MIG instances."""
    sysfs.function(ids=NVIDIA, driver="nvidia")
    text = "Model: \t\t NVIDIA H100\nIRQ:   \t\t 18\nDevice Minor: \t 3"
    sysfs.put(f"proc/driver/nvidia/gpus/{PLAIN}/information", text)
    directory = sysfs.path / "proc/driver/nvidia/capabilities/gpu3/mig"
    directory.mkdir(parents=True)
    return directory


def test_a_mig_instance_is_a_use(sysfs: Sysfs, gpu: Path) -> None:
    (gpu / "config").touch()
    assert use(sysfs) is None
    (gpu / "gi1").mkdir()
    assert use(sysfs) == "it has the MIG instance gi1"
    os.rename(gpu.parent, gpu.parents[1] / "gpu2")
    assert use(sysfs) is None


def test_a_gpu_that_cannot_be_read_is_not_offered_and_others_are(
    sysfs: Sysfs, gpu: Path
) -> None:
    """The driver of a GPU that fell off the bus answers with an error."""
    other = "0000:af:00.0"
    sysfs.function(other, ids=NVIDIA, driver="nvidia")
    (gpu / "gi1").mkdir()
    information = sysfs.path / f"proc/driver/nvidia/gpus/{PLAIN}/information"
    information.unlink()
    information.mkdir()
    assert "cannot determine" in (use(sysfs) or "")
    assert use(sysfs, other) is None


def test_a_vgpu_type_that_is_no_number_keeps_its_vf_alone(sysfs: Sysfs) -> None:
    vf = virtual_function(sysfs, "")
    assert "cannot determine" in (use(sysfs, vf) or "")
    assert use(sysfs) is None


def test_a_card_with_a_mediated_device_is_not_offered_until_it_is_removed(make_bench):
    bench = make_bench(HostSpec(hosts.gpu("0000:17")))
    gpu = "0000:17:00.0"
    assert bench.provider(gpu)
    link = Path(bench.root, "sys/bus/mdev/devices", MDEV)
    link.symlink_to(f"../../../devices/pci0000:17/{gpu}/{MDEV}")
    rejected = bench.rejected(gpu)
    assert (rejected.reason, rejected.detail) == (
        RejectReason.HOST_USES,
        f"it has the mediated device {MDEV}",
    )
    link.unlink()
    assert bench.provider(gpu)
