# SPDX-License-Identifier: Apache-2.0

"""The machine in which is measured, as options of QEMU 7.2 or newer."""

from __future__ import annotations

from pathlib import Path

from tests.functional.kernel import lane

#: As an operator starts the kernel of a host that gives devices to guests.
ARGUMENTS = "intel_iommu=on iommu=pt"
#: The file behind the disk that has the library's state, and its serial number.
DISK, SERIAL = "disk.img", "os-acc-state"
#: Most VFs that one of QEMU's NVMe controllers can have.
MANY_VFS = 127
_FEW_VFS = 4
_FIRST_SLOT = 0x10


def qemu_options(results: Path, crowds: int) -> str:
    """A card with four VFs, as many cards with 127, and a disk.

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
    # The firmware reserves nothing for what VFs will need.
    return f"{port},mem-reserve=8M {lane.sriov_nvme(name, vfs)}"
