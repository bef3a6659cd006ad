# SPDX-License-Identifier: Apache-2.0

"""No function leaves its driver while the host uses a disk of it."""

import dataclasses
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.privsep import binding, pci_functions, record
from os_acc.privsep.outcome import CallRefused, CallResult, Outcome
from os_acc.testing import FakeKernel, HostSpec, hosts
from os_acc.testing.helper import privileged_here
from os_acc.testing.specs import ClassDeviceSpec

DRIVE, HBA = PciAddress(0, 0xD9, 0, 0), PciAddress(0, 0x3B, 0, 0)
SECOND, PATH = PciAddress(0, 0x3B, 0, 1), PciAddress(0, 0x41, 0, 0)
VMD = PciAddress(0, 0, 0x0E, 0)
LEASE = "11111111-1111-4111-8111-111111111111"
OK = CallResult(Outcome.OK)


def block(
    name: str, number: str, *children: ClassDeviceSpec, **attributes: str
) -> ClassDeviceSpec:
    shown = (("dev", number), *attributes.items())
    return ClassDeviceSpec("block", name, shown, children)


def host() -> HostSpec:
    """Return a host with disks of NVMe drives, of a card of two functions, and of one
    behind a multipath device and a VMD.
    """
    card = dataclasses.replace(
        hosts.fpga("0000:3b"), driver="mpt3sas", class_code=0x010700
    )
    part = block("sdk1", "8:1", partition="1")
    first = dataclasses.replace(card, devices=(block("sdk", "8:0", part),))
    second = dataclasses.replace(
        card,
        address=str(SECOND),
        group_of=str(HBA),
        devices=(block("sdl", "8:16"),),
    )
    path = dataclasses.replace(
        hosts.nvme_disk("0000:41", 4),
        # The head is below the subsystem, which is no PCI function.
        devices=(
            ClassDeviceSpec(
                "nvme", "nvme4", (("serial", "S4"),), (block("nvme4c4n1", ""),)
            ),
        ),
    )
    return HostSpec(
        (
            *hosts.vmd_host().functions,
            first,
            second,
            path,
            hosts.nvme_disk("0000:d9", 1, partitions=2),
        )
    )


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[FakeKernel]:
    with privileged_here(), FakeKernel.build(tmp_path, host()).installed() as kernel:
        head = Path(kernel.path("sys/devices/virtual/nvme-subsystem/nvme4n1"))
        head.mkdir(parents=True)
        (head / "dev").write_text("259:40\n")
        Path(kernel.path("sys/class/block/nvme4n1")).symlink_to(head)
        yield kernel


def take(kernel: FakeKernel, *addresses: PciAddress) -> list[CallResult]:
    targets = tuple((each.parts, pci_functions.identity(each)) for each in addresses)
    group = kernel.group(addresses[0])
    found = binding.take(group, targets, 1, 30_000, LEASE)
    return [CallResult(*each) for each in found]


@pytest.mark.parametrize(
    ("address", "client_of", "disk"),
    [
        (DRIVE, "nvme1n1", "nvme1n1"),
        (DRIVE, "nvme1n1p2", "nvme1n1"),
        (HBA, "sdk1", "sdk"),
        (PATH, "nvme4n1", "nvme4n1"),
        (VMD, "nvme0n1", "nvme0n1"),
    ],
)
def test_a_disk_that_a_kernel_client_has_open_keeps_its_driver(
    kernel, address, client_of, disk
):
    kernel.claim(client_of)
    before = kernel.writes()
    refused = CallResult(Outcome.IN_USE, errno.EBUSY, pci_functions.DISK, disk)
    assert take(kernel, address)[0] == refused
    assert (kernel.writes(), kernel.lost()) == (before, ())
    assert not record.exists(address)
    kernel.unclaim(client_of)
    assert take(kernel, address) == [OK]


@pytest.mark.parametrize("order", [(HBA, SECOND), (SECOND, HBA)])
def test_no_function_is_changed_before_the_disks_of_all_are_claimed(kernel, order):
    kernel.claim("sdl", "an LIO target")
    before = kernel.writes()
    found = dict(zip(order, take(kernel, *order), strict=True))
    assert found[SECOND] == CallResult(
        Outcome.IN_USE, errno.EBUSY, pci_functions.DISK, "sdl"
    )
    assert found[HBA].outcome == Outcome.UNREACHED
    assert kernel.writes() == before
    assert not record.exists(HBA)


def test_the_disks_stay_claimed_until_the_last_function_has_left_its_driver(
    kernel, monkeypatch
):
    """A client that comes in the middle of a call finds no disk to open."""
    unbind, refused = pci_functions.unbind, Path(kernel.root, "refused")

    def claim_and_unbind(address: PciAddress) -> None:
        for name, number in (("sdk", "8:0"), ("sdl", "8:16")):
            try:
                os.close(kernel.open_disk(kernel.path("dev", name), number))
            except OSError as error:
                with open(refused, "a", encoding="ascii") as file:
                    file.write(f"{address.function} {name} {error.errno}\n")
        unbind(address)

    monkeypatch.setattr(pci_functions, "unbind", claim_and_unbind)
    assert take(kernel, HBA, SECOND) == [OK, OK]
    # The first disk has left when the second function is unbound.
    assert refused.read_text().splitlines() == [
        f"0 sdk {errno.EBUSY}",
        f"0 sdl {errno.EBUSY}",
        f"1 sdk {errno.ENOENT}",
        f"1 sdl {errno.EBUSY}",
    ]


def test_a_node_that_root_cannot_open_counts_as_in_use(kernel, monkeypatch):
    def refuse(path: str, device: str, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(kernel, "open_disk", refuse)
    (found,) = take(kernel, DRIVE)
    assert found == CallResult(
        Outcome.UNSURE, errno.EACCES, pci_functions.DISK, "nvme1n1"
    )


def test_a_function_on_its_driver_is_not_touched(kernel):
    """Its record is written; that needs no disk."""
    pci_functions.rebind(DRIVE, "vfio-pci")
    assert take(kernel, DRIVE) == [OK]


def test_no_step_takes_a_disk_from_its_client(kernel):
    kernel.claim("nvme1n1")
    before = kernel.writes()
    with pytest.raises(CallRefused):
        pci_functions.rebind(DRIVE, "vfio-pci")
    with pytest.raises(CallRefused):
        pci_functions.unbind(DRIVE)
    assert kernel.writes() == before


def test_a_release_keeps_a_disk_that_the_host_took_meanwhile(kernel):
    """An operator bound the function to its driver before it was given back."""
    pci_functions.rebind(DRIVE, "vfio-pci")
    assert take(kernel, DRIVE) == [OK]
    pci_functions.rebind(DRIVE, "nvme")
    kernel.claim("nvme1n1", "ZFS")
    target = (DRIVE.parts, pci_functions.identity(DRIVE), "vfio-pci", "vfio-pci")
    before = kernel.writes()
    (found,) = binding.give_back(
        kernel.group(str(DRIVE)), (target,), 2, 30_000, False, LEASE
    )
    assert CallResult(*found) == CallResult(
        Outcome.IN_USE, errno.EBUSY, pci_functions.DISK, "nvme1n1"
    )
    assert (kernel.writes(), kernel.lost()) == (before, ())
