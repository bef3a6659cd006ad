# SPDX-License-Identifier: Apache-2.0

"""Cards and hosts for tests."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Final

from os_acc.host.pci_ids import PATHS
from os_acc.testing import nvidia
from os_acc.testing.device_specs import (
    FORMATS,
    MANAGES,
    SEVERAL,
    VIRTUALIZES,
    DflSpec,
    NvmeSpec,
)
from os_acc.testing.qat import attributes as qat_attributes
from os_acc.testing.specs import FunctionSpec, HostSpec, SriovSpec, drm, netdev, nvme

#: Vendor, product, class, host driver, subsystem vendor and product, and revision.
_MODELS: Final[dict[str, tuple[Any, ...]]] = {
    "root port": (0x8086, 0x347A, 0x060400, "pcieport"),
    "VMD": (0x8086, 0x467F, 0x010400, "vmd"),
    "ISA bridge": (0x8086, 0x2918, 0x060100, "lpc_ich"),
    "SATA": (0x8086, 0x2922, 0x010601, "ahci"),
    "SMBus": (0x8086, 0x2930, 0x0C0500, "i801_smbus"),
    "console": (0x102B, 0x0538, 0x030000, "mgag200"),
    "A40": (0x10DE, 0x2235, 0x030000, "nouveau", 0x10DE, 0x145A, 0xA1),
    "A40 audio": (0x10DE, 0x1AEF, 0x040300, "snd_hda_intel", 0x10DE, 0x145A, 0xA1),
    "L40": (0x10DE, 0x26B5, 0x030200, "nvidia", 0x10DE, 0x169D, 0xA1),
    "NVSwitch": (0x10DE, 0x22A3, 0x068000, "nvidia-nvswitch", 0, 0, 0xA1),
    "E810": (0x8086, 0x1592, 0x020000, "ice", 0x8086, 0x0002, 0x02),
    "PM173X": (0x144D, 0xA824, 0x010802, "nvme", 0x144D, 0xA801),
    "QEMU NVMe": (0x1B36, 0x0010, 0x010802, "nvme", 0x1AF4, 0x1100),
    "C62x": (0x8086, 0x37C8, 0x0B4000, "c6xx"),
    "4xxx": (0x8086, 0x4940, 0x0B4000, "4xxx"),
    "U200": (0x10EE, 0x5000, 0x120000, "", 0x10EE, 0x000E),
    "U55C": (0x10EE, 0x505C, 0x120000, "xclmgmt", 0x10EE, 0x000E),
    "D5005": (0x8086, 0x0B2B, 0x120000, "dfl-pci", 0x8086, 0x138D),
}


def _function(model: str, address: str, **more: Any) -> FunctionSpec:
    return FunctionSpec(address, *_MODELS[model], **more)


def root_port(address: str, numa_node: int = -1) -> FunctionSpec:
    """Return a PCI Express root port with a group of its own."""
    return _function("root port", address, numa_node=numa_node, reset_methods=("pm",))


def gpu(
    bus: str, numa_node: int = -1, *, parent: str = "", card: int = 1
) -> tuple[FunctionSpec, FunctionSpec]:
    """Return a GPU, with its audio function in the same group.

    :param bus: domain and bus, such as ``0000:17``.
    """
    place: dict[str, Any] = {"numa_node": numa_node, "parent": parent}
    display = _function("A40", f"{bus}:00.0", **place, devices=(drm(card),))
    place |= {"group_of": display.address, "reset_methods": ()}
    return display, _function("A40 audio", f"{bus}:00.1", **place)


def chipset(slot: str) -> tuple[FunctionSpec, FunctionSpec, FunctionSpec]:
    """Return the ISA bridge, the SATA and the SMBus controller of an Intel chipset.

    They share a group, and the bridge has the header of an endpoint.

    :param slot: domain, bus and slot, such as ``0000:00:1f``.
    """
    bridge = _function("ISA bridge", f"{slot}.0", reset_methods=())
    shared: dict[str, Any] = {"group_of": bridge.address, "reset_methods": ()}
    disks = _function("SATA", f"{slot}.2", **shared)
    return bridge, disks, _function("SMBus", f"{slot}.3", **shared)


def nvswitch(bus: str) -> FunctionSpec:
    """Return an NVSwitch of an HGX baseboard: a bridge by its class alone."""
    return _function("NVSwitch", f"{bus}:00.0")


def vgpu_card(bus: str, *, vfs: int = 4) -> FunctionSpec:
    """Return a GPU on NVIDIA's driver whose VFs can be vGPUs (:mod:`.nvidia`)."""
    own = nvidia.attributes()
    sriov = SriovSpec(32, 0x26B5, "nvidia", offset=4, boot_vfs=vfs, vf_attributes=own)
    return _function("L40", f"{bus}:00.0", sriov=sriov)


def nic(
    bus: str,
    numa_node: int = -1,
    *,
    name: str,
    up: bool = False,
    vfs: int = 8,
    boot_vfs: int = 0,
    parent: str = "",
) -> FunctionSpec:
    """Return an SR-IOV network card: PF driver ice, VF driver iavf."""
    return _function(
        "E810",
        f"{bus}:00.0",
        numa_node=numa_node,
        parent=parent,
        devices=(netdev(name, up=up),),
        sriov=SriovSpec(vfs, 0x1889, "iavf", boot_vfs=boot_vfs, netdev=name + "v{}"),
    )


def nvme_disk(
    bus: str, number: int, numa_node: int = -1, *, partitions: int = 0
) -> FunctionSpec:
    """Return an NVMe disk."""
    disk = nvme(number, f"S64HNE0R50{number:04}", partitions=partitions)
    return _function("PM173X", f"{bus}:00.0", numa_node=numa_node, devices=(disk,))


def nvme_sriov(
    bus: str,
    number: int,
    numa_node: int = -1,
    *,
    private: tuple[tuple[int, ...], ...] = (),
) -> FunctionSpec:
    """Return an NVMe controller with four VFs that outlive its driver, as QEMU's.

    :param private: the NSIDs of the namespaces of each VF.
    """
    oacs = FORMATS | MANAGES | VIRTUALIZES
    return _function(
        "QEMU NVMe",
        f"{bus}:00.0",
        numa_node=numa_node,
        sriov=SriovSpec(4, 0x0010, "nvme", offset=1, removed_with_driver=False),
        devices=(nvme(number, f"QEMU{number}"),),
        nvme=NvmeSpec(private=private, oacs=oacs, cmic=SEVERAL),
    )


def qat(bus: str, numa_node: int = -1) -> FunctionSpec:
    """Return a QAT C62x: its driver always makes all VFs, vfio-pci denies it."""
    sriov = SriovSpec(16, 0x37C9, "c6xxvf", offset=8, makes_all=True)
    return _function("C62x", f"{bus}:00.0", numa_node=numa_node, sriov=sriov)


def qat_gen4(bus: str, numa_node: int = -1) -> FunctionSpec:
    """Return a QAT 4xxx: its driver always makes all VFs, vfio-pci accepts it."""
    return _function(
        "4xxx",
        f"{bus}:00.0",
        numa_node=numa_node,
        sriov=SriovSpec(16, 0x4941, offset=8, makes_all=True),
        driver_attributes=qat_attributes(),
    )


def fpga(bus: str, numa_node: int = -1) -> FunctionSpec:
    """Return an FPGA card without a host driver."""
    return _function("U200", f"{bus}:00.0", numa_node=numa_node)


#: An interface of a shell, as in github.com/Xilinx/XRT/pull/7183.
XRT_INTERFACE = "aed3e95a-48cf-64bb-2475-22fac4f92ddc"


def alveo(
    bus: str,
    numa_node: int = -1,
    *,
    interfaces: tuple[str, ...] = (XRT_INTERFACE,),
    card: int = 1,
) -> tuple[FunctionSpec, FunctionSpec]:
    """Return an AMD/Xilinx card on XRT's drivers: management and user function.

    :param interfaces: UUIDs, in the order in which xclmgmt shows them.
    :param card: the number of the DRM device that xocl makes.
    """
    uuids = "\n".join(each.replace("-", "") for each in interfaces)
    shown = {"mgmt_pf": "", "ready": "1", "dev_offline": "0", "mfg": "0"}
    shown |= {"recovery": "0", "interface_uuids": uuids}
    management = _function(
        "U55C", f"{bus}:00.0", numa_node=numa_node, shown=tuple(shown.items())
    )
    user = dataclasses.replace(
        management,
        address=f"{bus}:00.1",
        product=0x505D,
        driver="xocl",
        devices=(drm(card),),
        shown=(("user_pf", ""), ("ready", "0x1"), ("xclbinuuid", "")),
    )
    return management, user


#: The interface of the FPGA cards below, and their function after power-on.
DFL_INTERFACE = "bfac4d85-1ee8-56fe-8c95-865ce1bbaa2d"
DFL_FUNCTION = "d8424dc4-a4a3-c413-f89e-433683f9040b"


def dfl(
    bus: str,
    numa_node: int = -1,
    *,
    functions: tuple[str, ...] = (DFL_FUNCTION,),
    interface_id: str = DFL_INTERFACE,
    reconfigurable: bool = True,
    vfs: int = 0,
) -> FunctionSpec:
    """Return an FPGA card on the kernel's DFL driver, as Intel's PAC D5005.

    :param functions: the function in each port after power-on.
    :param interface_id: the interface that bitstreams have to match; '': it shows
        none.
    :param vfs: number of ports that VFs can have.
    """
    return _function(
        "D5005",
        f"{bus}:00.0",
        numa_node=numa_node,
        sriov=SriovSpec(vfs, 0x0B2C, "dfl-pci", offset=1) if vfs else None,
        dfl=DflSpec(functions, interface_id, reconfigurable),
    )


def boot_display(address: str = "0000:03:00.0") -> FunctionSpec:
    """Return the display of the host's own console."""
    shown: dict[str, Any] = {"boot_vga": True, "devices": (drm(0),)}
    return _function("console", address, numa_node=0, reset_methods=(), **shown)


def two_socket_host() -> HostSpec:
    """Return a host with two sockets and cards as in a data centre.

    Node 0: console 03:00.0, system disk 04:00.0 (mounted), GPU 17:00.0 and .1
    below a root port, NIC 3b:00.0 (8 VFs), FPGA 5e:00.0. Node 1: GPU
    b1:00.0 and .1, NIC af:00.0 (up, 8 VFs), QAT 4xxx d8:00.0, disk d9:00.0
    (free). Without a node: FPGA e3:00.0.
    """
    return HostSpec(
        functions=(
            boot_display(),
            nvme_disk("0000:04", 0, 0, partitions=2),
            root_port("0000:16:00.0", 0),
            *gpu("0000:17", 0, parent="0000:16:00.0"),
            nic("0000:3b", 0, name="ens1f0"),
            fpga("0000:5e", 0),
            nic("0000:af", 1, name="ens2f0", up=True),
            *gpu("0000:b1", 1, card=2),
            qat_gen4("0000:d8", 1),
            nvme_disk("0000:d9", 1, 1),
            fpga("0000:e3"),
        ),
        mounts=("/dev/nvme0n1p1 / ext4 rw,relatime 0 0", "proc /proc proc rw 0 0"),
        swaps=("/dev/nvme0n1p2",),
    )


def fpga_host() -> HostSpec:
    """Return a host with every kind of FPGA card on the kernel's DFL driver.

    3b:00.0 and 5e:00.0 have one port and no VFs; af:00.0 has two ports that
    become VFs; b1:00.0 cannot be programmed; d8:00.0 does not show its
    interface.
    """
    return HostSpec(
        (
            dfl("0000:3b", 0),
            dfl("0000:5e", 0),
            dfl("0000:af", 1, functions=(DFL_FUNCTION, DFL_FUNCTION), vfs=2),
            dfl("0000:b1", 1, reconfigurable=False),
            dfl("0000:d8", 1, interface_id=""),
        )
    )


def shared_group_host() -> HostSpec:
    """Return a host whose GPU, NIC (up) and FPGA share a group behind a bridge."""
    bridge = dataclasses.replace(root_port("0000:00:1c.0"), driver="")
    behind = (*gpu("0000:01"), nic("0000:02", name="eno1", up=True), fpga("0000:04"))
    return HostSpec(
        (
            bridge,
            *(
                dataclasses.replace(
                    function, parent=bridge.address, group_of=bridge.address
                )
                for function in behind
            ),
        )
    )


def vmd_host() -> HostSpec:
    """Return a host with an NVMe disk in a domain beyond FFFF, below an Intel VMD."""
    vmd = _function("VMD", "0000:00:0e.0")
    disk = dataclasses.replace(
        nvme_disk("10000:01", 0), parent="10000:00:02.0", group_of=vmd.address
    )
    port = dataclasses.replace(
        root_port("10000:00:02.0"), parent=vmd.address, group_of=vmd.address
    )
    return HostSpec((vmd, port, disk))


def many_vfs_host() -> HostSpec:
    """Return a host with 1,024 VFs at boot: 256 of each of four PFs, two per socket."""
    buses = ("0000:10", "0000:20", "0000:90", "0000:a0")
    return HostSpec(
        tuple(
            nic(bus, index // 2, name=f"ens{index}", vfs=256, boot_vfs=256)
            for index, bus in enumerate(buses)
        )
    )


def without_iommu() -> HostSpec:
    """Return the two-socket host with its IOMMU off."""
    return dataclasses.replace(two_socket_host(), iommu=False)


def without_vfio() -> HostSpec:
    """Return the two-socket host without vfio-pci."""
    return dataclasses.replace(two_socket_host(), vfio=False)


def denylist_host() -> HostSpec:
    """Return a host with a QAT C62x, which vfio-pci denies."""
    return HostSpec((qat("0000:3d", 0),))


def mapped_by_firmware() -> HostSpec:
    """Return a host with an FPGA that no guest can have: firmware maps it (RMRR)."""
    region = "0x00000000000e8000 0x00000000000e8fff direct"
    return HostSpec((dataclasses.replace(fpga("0000:05", 0), reserved=(region,)),))


#: The lines of pci.ids for the devices in this module.
MODEL_NAMES: Final = """\
102b  Matrox Electronics Systems Ltd.
\t0538  MGA G200eH3
10de  NVIDIA Corporation
\t1aef  GA102 High Definition Audio Controller
\t2235  GA102GL [A40]
\t\t10de 145a  NVIDIA A40
10ee  Xilinx Corporation
\t5000  Alveo U200 XDMA Platform
\t505c  Alveo U55C
144d  Samsung Electronics Co Ltd
\ta824  NVMe SSD Controller PM173X
1b36  Red Hat, Inc.
\t0010  QEMU NVM Express Controller
8086  Intel Corporation
\t0b2b  PAC with Intel Stratix 10 SX FPGA [FPGA PAC D5005]
\t1592  Ethernet Controller E810-C for QSFP
\t1889  Ethernet Adaptive Virtual Function
\t37c8  C62x Chipset QuickAssist Technology
\t37c9  C62x Chipset QuickAssist Technology Virtual Function

# List of known device classes
C 12  Processing accelerators
\t00  Processing accelerators
"""


def install_model_names(root: str) -> None:
    """Install the names on a simulated host."""
    path = os.path.join(root, PATHS[0])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(MODEL_NAMES)
