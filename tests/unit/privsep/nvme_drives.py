# SPDX-License-Identifier: Apache-2.0

"""Simulated NVMe drives with data of guests."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from os_acc.objects.nvme_erasure import EraseMethod
from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel, pci_functions, record
from os_acc.privsep.kernel import LOCKS
from os_acc.privsep.nvme.disks import MARKS
from os_acc.privsep.record import FunctionUse
from os_acc.testing import FakeKernel, HostSpec, hosts
from os_acc.testing.device_specs import NvmeSpec
from os_acc.testing.specs import nvme

DRIVE, PF = PciAddress(0, 0xD9, 0, 0), PciAddress(0, 0x41, 0, 0)
VF, OTHER_VF = PciAddress(0, 0x41, 0, 1), PciAddress(0, 0x41, 0, 2)
LEASE = "11111111-1111-4111-8111-111111111111"
NEXT = "22222222-1111-4111-8111-111111111111"
LAST = "33333333-1111-4111-8111-111111111111"
FORMAT, CRYPTO_FORMAT = (EraseMethod.FORMAT,), (EraseMethod.FORMAT_CRYPTO,)
SANITIZE = (EraseMethod.SANITIZE_CRYPTO, EraseMethod.SANITIZE_BLOCK)
DATA = b"data of a guest." * 512
ZEROES = bytes(1 << 16)


def kernel_with(
    tmp_path: Path, spec: NvmeSpec, *, mounts: tuple[str, ...] = ()
) -> FakeKernel:
    drive = dataclasses.replace(
        hosts.nvme_disk("0000:d9", 1),
        nvme=spec,
        devices=(nvme(1, "S1", namespaces=spec.namespaces),),
    )
    root = ("/dev/sda1 / ext4 rw 0 0",)
    fake = FakeKernel.build(tmp_path, HostSpec((drive,), mounts=root + mounts))
    for number in spec.namespaces:
        fake.write_medium(DRIVE, number, DATA)
    return fake


def is_marked(fake: FakeKernel, address: PciAddress) -> bool:
    return os.path.exists(fake.path(MARKS, str(address)))


def put_on_record(function: PciAddress, lease: str, eraser: str = "nvme") -> None:
    os.makedirs(kernel.current.path(LOCKS), exist_ok=True)
    identity = pci_functions.identity(function)
    assert identity is not None
    found = record.present(function, identity, lease, FunctionUse.HOST)
    record.write(dataclasses.replace(found, eraser=eraser))


def take_over(function: PciAddress, lease: str) -> None:
    """Let the lease of an erasure take over the helper's record of a function."""
    found = record.read(function)
    assert found is not None
    record.write(dataclasses.replace(found, lease=lease))
