# SPDX-License-Identifier: Apache-2.0

"""NVMe drives and VFs are erased between guests, on the kernel's own driver."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.objects.nvme_erasure import EraseMethod
from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel, pci_functions, record
from os_acc.privsep.nvme import disks, erasing, survey, vf_resources
from os_acc.privsep.nvme.commands import VirtualizationAction
from os_acc.privsep.nvme.disks import MARKS
from os_acc.privsep.outcome import CallRefused, Outcome
from os_acc.privsep.record import FunctionUse

from . import lane, machine, sysfs
from .machine import Machine
from .nvme_media import digest, fill, holds_data, node_of, wait_until, write_data

pytestmark = pytest.mark.family("NVMe drive or VF")

FORMAT = (EraseMethod.FORMAT,)


def erase(function: str) -> float:
    return erasing.erase(PciAddress.parse(function), str(uuid.uuid4()), FORMAT)


@pytest.fixture
def drive() -> str:
    """Return the drive with two namespaces, both with data."""
    function = machine.behind(lane.PORT_DRIVE)
    for nsid in (1, 2):
        write_data(node_of(function, nsid))
    return function


def test_a_format_erases_all_namespaces_of_a_drive(drive: str) -> None:
    assert holds_data("drive1")
    assert holds_data("drive2")
    assert erase(drive) == 1.0
    assert not holds_data("drive1")
    assert not holds_data("drive2")
    assert not os.path.exists(f"/{MARKS}/{drive}")


def test_a_mounted_drive_is_refused(drive: str, tmp_path: Path) -> None:
    node = node_of(drive, 2)
    subprocess.run(["mkfs.ext4", "-q", node], check=True)
    subprocess.run(["mount", node, tmp_path], check=True)
    try:
        before = digest("drive1")
        with pytest.raises(CallRefused) as refused:
            erase(drive)
        assert refused.value.result.outcome == Outcome.IN_USE
        assert digest("drive1") == before
        assert holds_data("drive1")
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert erase(drive) == 1.0
    assert not holds_data("drive1")


def test_a_vf_is_erased_and_its_neighbours_are_not(vf_drive: tuple[str, ...]) -> None:
    _pf, vf, _other = vf_drive
    # Another test may have erased it.
    fill(vf, 2)
    assert all(map(holds_data, ("host1", "vf1", "vf2")))
    before = digest("host1"), digest("vf2")
    assert erase(vf) == 1.0
    assert not holds_data("vf1")
    assert (digest("host1"), digest("vf2")) == before
    # It is back without a driver, as os_acc creates VFs.
    assert (sysfs.driver(vf), sysfs.override(vf)) == (None, None)


def test_a_drive_with_vfs_is_refused(vf_drive: tuple[str, ...]) -> None:
    pf, *_vfs = vf_drive
    before = digest("host1")
    with pytest.raises(OSError, match="has VFs"):
        erase(pf)
    assert digest("host1") == before


def test_a_disk_stays_claimed_behind_the_call_that_claimed_it(drive: str) -> None:
    address, lease = PciAddress.parse(drive), str(uuid.uuid4())
    identity = pci_functions.identity(address)
    assert identity is not None
    record.write(record.present(address, identity, lease, FunctionUse.HOST))
    disk = disks.wait_for_disks(address, (1,))[1]
    fd = kernel.current.open_disk(disk.node, disk.device)
    disks.start_keeper(address, lease, [fd])
    os.close(fd)
    with pytest.raises(OSError, match="busy"):
        kernel.current.open_disk(disk.node, disk.device)
    # The driver leaves nevertheless, and comes back with another disk.
    sysfs.rebind(drive, "vfio-pci")
    sysfs.rebind(drive, "nvme")
    sysfs.write(drive, "driver_override", "\n")
    node_of(drive, 1)
    other = disks.wait_for_disks(address, (1,))[1]
    assert other.device != disk.device
    os.close(kernel.current.open_disk(other.node, other.device))
    disks.end_keeper(address)
    record.remove(address)
    assert not disks.has_keeper(address)


@pytest.fixture
def bare_vfs(the_machine: Machine) -> Iterator[tuple[str, ...]]:
    """Yield a PF and its two VFs, which have neither resources nor a driver."""
    pf = the_machine.pf_node0
    sysfs.write(pf, "sriov_drivers_autoprobe", "0")
    sysfs.write(pf, "sriov_numvfs", "2")
    yield pf, *sysfs.virtual_functions(pf)
    sysfs.write(pf, "sriov_numvfs", "0")
    sysfs.write(pf, "sriov_drivers_autoprobe", "1")


def lacks(pf: str, *vfs: str) -> list[str]:
    """Return for each VF why no driver can run it."""
    physical = PciAddress.parse(pf)
    manager = survey.manager_of(PciAddress.parse(vfs[0]))
    assert manager is not None
    found = survey.lacks_of_vfs(physical, manager)
    return [found[PciAddress.parse(each)] for each in vfs]


def test_the_driver_leaves_a_vf_without_resources_and_stays_with_them(
    bare_vfs: tuple[str, ...],
) -> None:
    pf, *vfs = bare_vfs
    number = (
        "secondary controller {} is offline, with 0 queue and 0 interrupt resources"
    )
    assert lacks(pf, *vfs) == [number.format(1), number.format(2)]
    sysfs.rebind(vfs[0], "nvme")
    wait_until(lambda: sysfs.driver(vfs[0]) is None)

    queue = survey.wait_for_queue(PciAddress.parse(pf))
    vf_resources.share_among(PciAddress.parse(pf), queue, 2)
    assert lacks(pf, *vfs) == ["", ""]
    found = queue.secondaries()[:2]
    assert [(each.queues, each.interrupts) for each in found] == [(2, 1), (2, 1)]
    for vf in vfs:
        sysfs.rebind(vf, "nvme")
        survey.wait_for_queue(PciAddress.parse(vf))
        sysfs.unbind(vf)
        sysfs.write(vf, "driver_override", "\n")
    # A reset of a VF, as at the end of each guest, takes nothing from it.
    sysfs.write(vfs[0], "reset", "1")
    assert lacks(pf, *vfs) == ["", ""]


def test_resources_that_the_pf_has_are_taken_from_it(the_machine: Machine) -> None:
    pf = the_machine.pf_node0
    address = PciAddress.parse(pf)
    queue = survey.wait_for_queue(address)
    for kind, count in ((0, 8), (1, 4)):
        queue.virtualize(VirtualizationAction.ALLOCATE_TO_PRIMARY, 0, kind, count)
    # As a drive that has them at boot: while the driver is bound, Linux 6.12 does not
    # let the MSI-X table grow.
    sysfs.unbind(pf)
    sysfs.write(pf, "reset", "1")
    sysfs.rebind(pf, None)
    queue = survey.wait_for_queue(address)
    assert [each.primary for each in queue.flexible_resources()] == [8, 4]
    # There are no VFs yet.
    vf_resources.share_among(address, queue, 2)
    queue = survey.wait_for_queue(address)
    assert [each.primary for each in queue.flexible_resources()] == [4, 2]


def test_a_pf_without_its_driver_makes_no_vfs(the_machine: Machine) -> None:
    """sriov_numvfs_store() in drivers/pci/iov.c."""
    pf = the_machine.pf_node0
    sysfs.unbind(pf)
    try:
        with pytest.raises(FileNotFoundError):
            sysfs.write(pf, "sriov_numvfs", "2")
    finally:
        sysfs.rebind(pf, None)


def properties(node: str) -> dict[str, str]:
    """Return what udev knows about a disk, once it has handled all events.

    The kernel makes the node of a disk, reads its partition table, and tells udev then
    (device_add_disk() in block/genhd.c): there may be no event to wait for yet.
    """
    wait_until(lambda: "USEC_INITIALIZED" in recorded(node))
    subprocess.run(["udevadm", "settle", "--timeout=120"], check=True)
    return recorded(node)


def recorded(node: str) -> dict[str, str]:
    """Return what udev has recorded of a disk."""
    shown = subprocess.run(
        ["udevadm", "info", "--query=property", node],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return dict(line.split("=", 1) for line in shown.splitlines())


@pytest.fixture
def udev() -> Iterator[None]:
    """Run udev with the rules of Debian and ours."""
    rules = Path("/etc/udev/rules.d/50-os-acc.rules")
    rules.parent.mkdir(parents=True, exist_ok=True)
    rules.write_text((lane.CHECKOUT / "etc/udev/rules.d/50-os-acc.rules").read_text())
    if not Path("/run/udev/control").exists():
        subprocess.run(["/lib/systemd/systemd-udevd", "--daemon"], check=True)
    subprocess.run(["udevadm", "control", "--reload"], check=True)
    yield
    rules.unlink()
    subprocess.run(["udevadm", "control", "--reload"], check=True)


def online(pv: str) -> bool:
    """Return whether LVM has seen the event of a physical volume (pvscan(8))."""
    return Path("/run/lvm/pvs_online", pv.replace("-", "")).exists()


def returns_from_guest(function: str, nsid: int) -> str:
    """Bind a function to vfio-pci and back; return the node of a namespace."""
    sysfs.rebind(function, "vfio-pci")
    subprocess.run(["udevadm", "settle", "--timeout=120"], check=True)
    shutil.rmtree("/run/lvm", ignore_errors=True)
    sysfs.rebind(function, "nvme")
    sysfs.write(function, "driver_override", "\n")
    return node_of(function, nsid)


def write_array(node: str) -> None:
    """Make a disk the member of a RAID 1, as ``mdadm --create`` does.

    The superblock of version 1.2 (struct mdp_superblock_1 in
    include/uapi/linux/raid/md_p.h) is 4 KiB behind the beginning; its checksum is that
    of calc_sb_1_csum() in drivers/md/md.c.
    """
    superblock = bytearray(260)
    struct.pack_into("<II", superblock, 0, 0xA92B4EFC, 1)
    superblock[16:32] = uuid.uuid4().bytes
    superblock[32:64] = b"guest:0".ljust(32, b"\0")
    # The level, the size, the disks; where the data and the superblock are.
    struct.pack_into("<I4xQ4xI", superblock, 72, 1, 2048, 2)
    struct.pack_into("<QQQ", superblock, 128, 2048, 2048, 8)
    superblock[168:184] = uuid.uuid4().bytes
    # The number of roles; those of both disks follow.
    struct.pack_into("<I32xHH", superblock, 220, 2, 0, 1)
    total = sum(struct.unpack("<65I", superblock))
    checksum = (total & 0xFFFF_FFFF) + (total >> 32)
    struct.pack_into("<I", superblock, 216, checksum & 0xFFFF_FFFF)
    fd = os.open(node, os.O_WRONLY | os.O_SYNC)
    try:
        os.pwrite(fd, bytes(4096), 0)
        os.pwrite(fd, superblock.ljust(4096, b"\0"), 4096)
    finally:
        os.close(fd)


@pytest.fixture(params=["drive", "vf"])
def place(
    request: pytest.FixtureRequest, drive: str, vf_drive: tuple[str, ...]
) -> Iterator[tuple[str, int]]:
    """Yield a function on the nvme driver, and the NSID of one of its namespaces."""
    if request.param == "drive":
        yield drive, 1
        return
    # The disk of a controller that may have neighbours is a multipath device.
    function = vf_drive[2]
    sysfs.rebind(function, "nvme")
    yield function, 3
    sysfs.unbind(function)
    sysfs.write(function, "driver_override", "\n")


@pytest.mark.usefixtures("udev")
def test_nothing_scans_the_disks_of_a_marked_function(place: tuple[str, int]) -> None:
    function, nsid = place
    node = node_of(function, nsid)
    config = ["--config", "devices/use_devicesfile=0"]
    group = f"guest-{nsid}"
    subprocess.run(["lvm", "vgcreate", "--yes", *config, group, node], check=True)
    pv = subprocess.run(
        ["blkid", "--probe", "--output", "value", "--match-tag", "UUID", node],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    address = PciAddress.parse(function)

    # Without the mark, udev and LVM look at what the guest has written.
    seen = properties(returns_from_guest(function, nsid))
    assert seen["ID_FS_TYPE"] == "LVM2_member"
    assert online(pv)

    disks.mark(address)
    unseen = properties(returns_from_guest(function, nsid))
    assert "ID_FS_TYPE" not in unseen
    assert unseen["SYSTEMD_READY"] == "0"
    assert not online(pv)

    assert erase(function) == 1.0
    after = properties(node_of(function, nsid))
    assert "ID_FS_TYPE" not in after
    # udev has looked at the erased disk: the host may use it.
    wait_until(lambda: "SYSTEMD_READY" not in recorded(node_of(function, nsid)))


@pytest.mark.usefixtures("udev")
def test_no_array_is_found_on_the_disks_of_a_marked_function(
    place: tuple[str, int],
) -> None:
    """mdadm assembles the disks that udev takes for a linux_raid_member."""
    function, nsid = place
    write_array(node_of(function, nsid))
    seen = properties(returns_from_guest(function, nsid))
    assert seen["ID_FS_TYPE"] == "linux_raid_member"

    disks.mark(PciAddress.parse(function))
    unseen = properties(returns_from_guest(function, nsid))
    assert "ID_FS_TYPE" not in unseen
    assert unseen["SYSTEMD_READY"] == "0"

    assert erase(function) == 1.0
    assert "ID_FS_TYPE" not in properties(node_of(function, nsid))
