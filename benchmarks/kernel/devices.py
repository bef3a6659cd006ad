# SPDX-License-Identifier: Apache-2.0

"""The measured virtual machine, as options of QEMU 7.2 or newer."""

from __future__ import annotations

from pathlib import Path

from tests.functional.kernel import lane

#: The kernel arguments of a host that assigns devices to guests.
ARGUMENTS = "intel_iommu=on iommu=pt"
#: The image file of the disk for the library's state, and the disk's serial number.
DISK, SERIAL = "disk.img", "os-acc-state"
#: The largest number of VFs of one of QEMU's NVMe controllers.
MANY_VFS = 127
_FEW_VFS = 4
_FIRST_SLOT = 0x10


def qemu_options(results: Path, crowds: int) -> str:
    """Return a card with four VFs, ``crowds`` cards with 127 VFs, and a disk.

    :param crowds: at most ten; each takes a second of the boot.
    """
    vfs = (_FEW_VFS, *(MANY_VFS,) * crowds)
    return " ".join(
        (
            "-machine q35,kernel-irqchip=split",
            "-device intel-iommu,intremap=on,caching-mode=on",
            *(_card(number, count) for number, count in enumerate(vfs)),
            f"-drive if=none,id=disk,format=raw,file={results}/{DISK}",
            f"-device virtio-blk-pci,drive=disk,serial={SERIAL},bus=pcie.0",
        )
    )


def _card(number: int, vfs: int) -> str:
    name = f"card{number}"
    slot = f"0000:00:{_FIRST_SLOT + number:02x}.0"
    port = lane.root_port(name, "pcie.0", slot, number + 1)
    # The firmware reserves no memory for VFs.
    return f"{port},mem-reserve=8M {lane.sriov_nvme(name, vfs)}"
