# SPDX-License-Identifier: Apache-2.0

"""For each family of the manual: a host with it, and its traces in the tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from os_acc.testing import FunctionSpec, HostSpec, TestHost, hosts, load_host
from tests.unit.plugins.conforming_hosts import HOSTS
from tests.unit.plugins.recorded_gpu import NAMED, RECORDED, with_iommu

_CLASS_ACCELERATOR: Final = 0x120000


@dataclasses.dataclass(frozen=True, slots=True)
class FamilyTraces:
    """The traces of a family in the tests.

    :ivar make: makes a simulated host with the family alone.
    :ivar fake: a pattern of the source of the tests that simulate it.
    :ivar real: the name of the device that QEMU emulates, in the tests of the kernel
        lane; '': it emulates none.
    """

    make: Callable[[Path], TestHost]
    fake: str
    real: str = ""


def _card(vendor: int, product: int, class_code: int) -> Callable[[Path], TestHost]:
    function = FunctionSpec("0000:05:00.0", vendor, product, class_code, "")
    return lambda directory: TestHost(directory, HostSpec((function,)))


def _old_qat(directory: Path) -> TestHost:
    # vfio-pci has to be loaded with this option.
    return TestHost(
        directory, dataclasses.replace(hosts.denylist_host(), disable_denylist=True)
    )


def _kept_drive(directory: Path) -> TestHost:
    named = '{"address": "0000:d9:00.0", "allow_no_erase": true}'
    spec = HostSpec((hosts.nvme_disk("0000:d9", 1),))
    return TestHost(directory, spec, device_spec=[named])


def _recorded_gpu(directory: Path) -> TestHost:
    spec = with_iommu(load_host(RECORDED))
    return TestHost(directory, spec, device_spec=list(NAMED))


def _of_conformance(case: str) -> Callable[[Path], TestHost]:
    return HOSTS[case][1]


#: By the name in the first column of the page's table.
FAMILIES: Final[Mapping[str, FamilyTraces]] = {
    "Network card with SR-IOV": FamilyTraces(
        _of_conformance("nic"), r"hosts\.nic\(", "PORT_NIC"
    ),
    "Intel QuickAssist 4xxx, 401xx, 402xx, 420xx, 6xxx": FamilyTraces(
        _of_conformance("qat"), r"hosts\.qat_gen4\("
    ),
    "Intel QuickAssist C62x, C3xxx, DH895xCC, D15xx, C4xxx": FamilyTraces(
        _old_qat, r"hosts\.(denylist_host|qat)\("
    ),
    "Intel FPGA (Device Feature List)": FamilyTraces(
        _of_conformance("dfl"), r"hosts\.dfl\(", "dfl_card"
    ),
    "AMD/Xilinx FPGA (XRT)": FamilyTraces(_of_conformance("xrt"), r"hosts\.alveo\("),
    "NVIDIA vGPU without mediated devices (Linux 6.8 and later)": FamilyTraces(
        _of_conformance("nvidia"), r"hosts\.vgpu_card\("
    ),
    "NVMe drive or VF": FamilyTraces(
        _of_conformance("nvme"), r"hosts\.nvme_(disk|sriov)\(", "PORT_DRIVE"
    ),
    "NVMe drive or VF that keeps its data": FamilyTraces(
        _kept_drive, r"allow_no_erase|erase_methods", "pf_node1"
    ),
    "Mediated device": FamilyTraces(_of_conformance("mdev"), r"mtty\(", "MTTY"),
    "Huawei Ascend 310, 310P, 910, 910B, 910C": FamilyTraces(
        _card(0x19E5, 0xD100, _CLASS_ACCELERATOR), r"0x19E5, 0xD"
    ),
    "Inspur FPGA": FamilyTraces(
        _card(0x1BD4, 0x0911, _CLASS_ACCELERATOR), r"0x1BD4, 0x0911"
    ),
    "Inspur NVMe drive": FamilyTraces(
        _card(0x1BD4, 0x1001, 0x010802), r"0x1BD4, 0x1001, (NVME|0x010802)"
    ),
    "Time synchronisation card (HPTS)": FamilyTraces(
        _card(0x1D9B, 0x0400, 0x111000), r'"HPTS"'
    ),
    "GPU as a whole": FamilyTraces(_recorded_gpu, r"recorded_gpu_server\.json"),
    "Any other PCI function": FamilyTraces(
        _of_conformance("pci"), r"hosts\.(fpga|gpu)\(", "edu_node1"
    ),
}
