# SPDX-License-Identifier: Apache-2.0

"""The holders of a device are found, as far as possible."""

import dataclasses
import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.privsep import holders, kernel, pci_functions, record
from os_acc.privsep.outcome import Outcome

FPGA, DISK, GPU = "0000:5e:00.0", "0000:d9:00.0", "0000:17:00.0"


def parts(text: str) -> tuple[int, int, int, int]:
    return PciAddress.parse(text).parts


def open_in(root: str, pid: int, target: str, command: str = "dd\n") -> Path:
    fds = Path(root, f"proc/{pid}/fd")
    fds.mkdir(parents=True)
    (fds / "3").symlink_to(target)
    (fds.parent / "comm").write_text(command)
    return fds


FREE = (Outcome.OK, 0, ())


def held_by(*found: tuple[int, str]) -> tuple[object, ...]:
    """Return the answer for a device that these processes hold."""
    return (Outcome.IN_USE, errno.EBUSY, found)


def test_nobody_holds_a_device_that_is_idle(bench):
    assert holders.holders((parts(FPGA), parts(DISK))) == FREE


def test_a_guest_is_named_by_its_pid_and_command(bench):
    bench.plug(1, FPGA)
    bench.kernel.hold(FPGA, 99, "qemu-kvm")
    assert holders.holders((parts(DISK), parts(FPGA))) == held_by((99, "qemu-kvm"))


@pytest.mark.parametrize("target", ["/drivers/mlx5_vfio_pci", None])
def test_a_guest_holds_it_whatever_the_driver_is(bench, target):
    """The driver is a variant of vfio-pci, or none while the kernel waits."""
    bench.plug(1, FPGA)
    bench.kernel.hold(FPGA, 99, "qemu-kvm")
    driver = Path(bench.root, f"sys/bus/pci/devices/{FPGA}/driver")
    driver.unlink()
    if target:
        driver.symlink_to(target)
    assert holders.holders((parts(FPGA),)) == held_by((99, "qemu-kvm"))


@pytest.mark.parametrize("use", record.FunctionUse)
def test_a_deleted_node_may_be_of_a_function_that_was_not_given_back(bench, use):
    """Another guest may have it, whose device was pulled out."""
    bench.plug(1, FPGA)
    Path(bench.root, "dev/iommu").touch()
    Path(bench.root, f"sys/bus/pci/devices/{FPGA}/driver").unlink()
    own = record.read(PciAddress.parse(FPGA))
    record.write(dataclasses.replace(own, use=use))
    open_in(bench.root, 7, "/dev/vfio/devices/vfio3 (deleted)")
    held = held_by((7, "dd")) if use == record.FunctionUse.GUEST else FREE
    assert holders.holders((parts(FPGA),)) == held


def test_the_users_of_a_drivers_node_are_named(bench):
    open_in(bench.root, 7, "/dev/nvme1n1")
    assert holders.holders((parts(DISK),)) == held_by((7, "dd"))


def test_the_helper_does_not_hold_what_it_keeps_claimed(bench):
    """Its workers have the lock of the device open, its keeper a FIFO."""
    claim = Path(bench.root, "run/os_acc/claims", DISK)
    claim.parent.mkdir(parents=True)
    claim.touch()
    (open_in(bench.root, 7, "/dev/nvme1n1") / "4").symlink_to(claim)
    # Of another mount namespace: the path is that of no file of the helper.
    other = open_in(bench.root, 8, "/dev/nvme1n1")
    (other / "4").symlink_to(claim.with_name("other"))
    open_in(bench.root, 9, "/dev/nvme1n1")
    assert holders.holders((parts(DISK),)) == held_by((8, "dd"), (9, "dd"))


def node_at(directory: Path, name: str) -> None:
    """Have the kernel make a device and its node."""
    directory.mkdir(parents=True)
    (directory / "dev").write_text("259:4\n")
    (directory / "uevent").write_text(f"MAJOR=259\nMINOR=4\nDEVNAME={name}\n")


@pytest.fixture
def multipath_disk(bench) -> None:
    """Let two namespaces be disks below their subsystem; the drive leads to the first.

    Its hidden path is below its controller: nvme_set_disk_name() and
    nvme_mpath_set_live() in drivers/nvme/host/multipath.c.
    """
    sys = Path(bench.root, "sys")
    path = sys / f"bus/pci/devices/{DISK}/nvme/nvme1/nvme3c1n1"
    path.mkdir()
    (path / "uevent").write_text("DEVTYPE=disk\n")
    subsystem = sys / "devices/virtual/nvme-subsystem/nvme-subsys3"
    (sys / "class/nvme-generic").mkdir()
    for number in (1, 2):
        disk, character = f"nvme3n{number}", f"ng3n{number}"
        node_at(subsystem / disk, disk)
        node_at(subsystem / disk / f"{disk}p1", f"{disk}p1")
        node_at(subsystem / character, character)
        (sys / "class/block" / disk).symlink_to(subsystem / disk)
        (sys / "class/nvme-generic" / character).symlink_to(subsystem / character)
    # From Linux 6.15 on, a disk has links to its paths.
    (subsystem / "nvme3n1/multipath").mkdir()
    (subsystem / "nvme3n1/multipath/nvme3c1n1").symlink_to(path)


@pytest.mark.usefixtures("multipath_disk")
@pytest.mark.parametrize(
    ("node", "is_held"),
    [
        ("/dev/nvme3n1", True),
        ("/dev/nvme3n1p1", True),
        ("/dev/ng3n1", True),
        ("/dev/nvme3n2", False),
        ("/dev/ng3n2", False),
    ],
)
def test_the_users_of_a_multipath_disk_hold_the_drive_that_leads_to_it(
    bench, node, is_held
):
    open_in(bench.root, 7, node)
    assert holders.holders((parts(DISK),)) == (held_by((7, "dd")) if is_held else FREE)


@pytest.fixture
def nvidia_gpu(bench) -> Path:
    """Have NVIDIA's driver list the GPU; return its information."""
    path = Path(bench.root, "proc/driver/nvidia/gpus", GPU, "information")
    path.parent.mkdir(parents=True)
    path.write_text("Model: \t\t NVIDIA H100\nDevice Minor: \t 1\n")
    return path


@pytest.mark.parametrize(
    ("node", "held"),
    [
        pytest.param("/dev/nvidia1", True, id="its own"),
        pytest.param("/dev/dri/card1", True, id="of DRM"),
        pytest.param("/dev/nvidia10", False, id="another GPU"),
        pytest.param("/dev/nvidiactl", False, id="all GPUs"),
        pytest.param("/dev/dri/card2", False, id="of DRM of another"),
    ],
)
def test_a_process_of_the_host_holds_the_gpu_whose_node_it_has_open(
    bench, nvidia_gpu, node, held
):
    open_in(bench.root, 7, node, "nvidia-persiste\n")
    expected = held_by((7, "nvidia-persiste")) if held else FREE
    assert holders.holders((parts(GPU),)) == expected


def test_a_gpu_of_which_its_driver_cannot_tell_the_node_is_not_idle(bench, nvidia_gpu):
    nvidia_gpu.unlink()
    nvidia_gpu.mkdir()
    assert holders.holders((parts(GPU),)) == (Outcome.UNSURE, errno.EISDIR, ())


def test_a_holder_that_nobody_can_name_still_holds(bench, monkeypatch):
    """The holder's process has ended, but its memory is still pinned."""
    bench.plug(1, FPGA)
    bench.kernel.hold(FPGA)
    monkeypatch.setattr(holders, "_processes", lambda nodes: iter(()))
    assert holders.holders((parts(FPGA),)) == held_by()


def test_a_node_that_may_not_be_opened_is_not_idle(bench):
    bench.plug(1, FPGA)
    bench.kernel.chown(FPGA)
    assert holders.holders((parts(FPGA),)) == (Outcome.UNSURE, errno.EACCES, ())


# In the first, the first thread has the node open, and ends. In the second, a thread
# opens it in a table of its own (CLONE_FILES).
_THREADS = """
import ctypes, sys, threading, time
first, libc = sys.argv[1] == "ended", ctypes.CDLL(None)
def open_and_wait():
    first or libc.unshare(0x400)
    file = None if first else open(sys.argv[2])
    print("ready", flush=True)
    time.sleep(600)
file = open(sys.argv[2]) if first else None
thread = threading.Thread(target=open_and_wait)
thread.start()
libc.pthread_exit(None) if first else thread.join()
"""


@pytest.mark.parametrize("case", ["ended", "unshared"])
def test_a_thread_of_a_process_of_this_host_holds_a_node(tmp_path, case):
    node = tmp_path / "node"
    node.touch()
    command = [sys.executable, "-c", _THREADS, case, str(node)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            deadline = time.monotonic() + 60
            own = f"/proc/{child.pid}/fd"
            while case == "ended" and holders._holds(own, {str(node)}):
                assert time.monotonic() < deadline
            assert not holders._holds(own, {str(node)})
            assert child.pid in dict(holders._processes({str(node)}))
        finally:
            child.kill()


def test_a_table_that_threads_share_is_read_once():
    ended = threading.Event()
    threads = [threading.Thread(target=ended.wait) for _ in range(8)]
    for each in threads:
        each.start()
    tables = [*holders._tables(f"/proc/{os.getpid()}")]
    ended.set()
    if kernel.current.shares_files(os.getpid(), os.getpid()):
        assert tables == [f"/proc/{os.getpid()}/fd"]
    else:
        # This host does not permit kcmp(2): the table of each thread is read.
        assert len(tables) > len(threads)
    for each in threads:
        each.join()


def test_what_processes_do_meanwhile_is_no_failure(bench):
    fds = open_in(bench.root, 7, "/dev/nvme1n1")
    (fds.parent / "comm").unlink()
    Path(bench.root, "proc/8").mkdir()
    assert holders.holders((parts(DISK),))[2] == ((7, ""),)


def test_a_device_that_cannot_be_looked_at_is_not_idle(bench, monkeypatch):
    def vanish(path: str) -> str:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), path)

    monkeypatch.setattr(kernel.current, "read", vanish)
    assert holders.holders((parts(DISK),)) == (Outcome.UNSURE, errno.ENODEV, ())


def test_no_more_than_a_few_are_named(bench):
    for pid in range(40):
        open_in(bench.root, pid + 100, "/dev/nvme1n1")
    assert len(holders.holders((parts(DISK),))[2]) == 16


def test_nobody_holds_what_is_not_there(bench):
    address = "0000:ff:00.0"
    assert holders.holders((parts(address),)) == FREE
    assert pci_functions.identity(PciAddress.parse(address)) is None
