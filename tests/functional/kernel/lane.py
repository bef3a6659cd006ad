# SPDX-License-Identifier: Apache-2.0

"""Run the tests of this folder as root on real kernels, in a machine of QEMU.

``python -m tests.functional.kernel.lane [--kernel=NAME] [pytest arguments]``

The machine boots each kernel of :mod:`.kernels` on this host's own file system (copy
on write), always by software emulation: that works everywhere, nested KVM does
not. ``--share=NUMBER`` selects one of the kernels, and its share of the tests;
``--kernel=NAME`` selects one of them. The exit status is 0 if tests ran and all
passed, pytest's status if tests failed, and 70 if a machine gave no result. The
output of the machine stays in ``build/kernel-lane``; that of an earlier kernel of
the same run in ``build/kernel-lane-<name of the kernel>``.
"""

from __future__ import annotations

import argparse
import compileall
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.shares import Share

from . import iommufd, kernel_modules, kernels, pace
from .kernels import Kernel

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
RESULTS = CHECKOUT / "build" / "kernel-lane"
NOVA_LOG = RESULTS.with_suffix(".nova.log")
#: The packages of this environment; not every installer compiles them.
PACKAGES = Path(sysconfig.get_path("purelib"))
#: Those parts that no machine imports.
NOT_IMPORTED = re.compile(r"/(nova|tests)/")
FIGURES = CHECKOUT / "build" / "figures" / "kernel.json"

#: Seconds until pytest begins, and until it has ended, on a slow machine.
BOOT_DEADLINE = 300.0
TESTS_DEADLINE = 9000.0
#: Seconds without a beat (:func:`.inside.report`) after which a machine has stopped.
#: A test that hangs does not stop the beats, and is not tried again.
BEAT_DEADLINE = 300.0
POWEROFF_DEADLINE = 60.0
#: EX_SOFTWARE of sysexits.h: no test failed, the lane did.
NO_RESULT = 70
#: A race in QEMU's threads: https://gitlab.com/qemu-project/qemu/-/issues/1921.
EMULATOR_RACE = "iotlb_to_section: Assertion"

#: The root ports with devices behind them, by their fixed addresses.
PORT_NVME_NODE0 = "0000:40:00.0"
PORT_NVME_NODE1 = "0000:80:00.0"
PORT_EDU_NODE1 = "0000:80:01.0"
PORT_HOTPLUG = "0000:00:12.0"
PORT_LEGACY = "0000:00:13.0"
PORT_FPGA_NODE1 = "0000:80:02.0"
#: A drive for :mod:`.test_nvme`, and one whose VFs can have namespaces of their own.
PORT_DRIVE = "0000:00:16.0"
PORT_VF_DRIVE = "0000:00:17.0"
PORT_PAIR = "0000:00:19.0"
#: Only with a kernel that :attr:`.kernels.Kernel.has_nic`.
PORT_NIC = "0000:00:15.0"
#: The ISA bridge, the SATA controller and the SMBus controller of q35: one group.
CHIPSET = ("0000:00:1f.0", "0000:00:1f.2", "0000:00:1f.3")
#: Functions that sit on the root bus, which has no NUMA node.
PLAIN_EDU = "0000:00:10.0"
CARD_EDU = "0000:00:11.0"
CARD_NVME = "0000:00:11.1"
PLAIN_FPGA = "0000:00:14.0"
PORT_ID_OF_PF = "port-nvme-node1"
#: QEMU's ids of the hot-plugged device and its port.
HOTPLUG_ID = "spare"
HOTPLUG_BUS = "port-hotplug"
#: The mount tag of the host's files; see :func:`.inside.keep_files`.
FILES_TAG = "os-acc.files"
#: The virtio port over which the machine sends QMP to its own hypervisor.
QMP_PORT = "os-acc.qmp"


def root_port(name: str, bus: str, address: str, chassis: int) -> str:
    """Return the options of a root port, ``port-<name>``."""
    slot = address.split(":")[2].split(".")[0]
    return (
        f"-device pcie-root-port,id=port-{name},chassis={chassis},"
        f"bus={bus},addr=0x{slot}"
    )


def sriov_nvme(name: str, vfs: int = 4) -> str:
    """Return an NVMe controller with ``vfs`` VFs, behind ``port-<name>``."""
    return (
        f"-device nvme-subsys,id=subsys-{name} "
        f"-device nvme,id={name},serial={name},subsys=subsys-{name},"
        f"sriov_max_vfs={vfs},sriov_vq_flexible={2 * vfs},sriov_vi_flexible={vfs},"
        f"max_ioqpairs={2 * vfs + 2},msix_qsize={vfs + 2},bus=port-{name}"
    )


def qemu_options(results: Path) -> str:
    """Return the devices of the machine, as options of QEMU 7.2 or newer."""
    # An abstract name: a path in a deep checkout exceeds sun_path.
    monitor = f"path=os-acc-kernel-lane-{os.getpid()},abstract=on"
    return " ".join(
        (
            "-machine q35,kernel-irqchip=split",
            "-device intel-iommu,intremap=on,caching-mode=on",
            "-device pxb-pcie,id=node0,bus_nr=64,numa_node=0,bus=pcie.0",
            "-device pxb-pcie,id=node1,bus_nr=128,numa_node=1,bus=pcie.0",
            root_port("nvme-node0", "node0", PORT_NVME_NODE0, 1),
            root_port("nvme-node1", "node1", PORT_NVME_NODE1, 2),
            root_port("edu-node1", "node1", PORT_EDU_NODE1, 3),
            root_port("hotplug", "pcie.0", PORT_HOTPLUG, 4),
            root_port("legacy", "pcie.0", PORT_LEGACY, 5),
            root_port("fpga-node1", "node1", PORT_FPGA_NODE1, 6),
            sriov_nvme("nvme-node0"),
            sriov_nvme("nvme-node1"),
            "-device edu,bus=port-edu-node1",
            f"-device edu,id={HOTPLUG_ID},bus={HOTPLUG_BUS}",
            "-device edu,bus=pcie.0,addr=0x10",
            # Memory behind BAR 0; dfl_card.py makes FPGA cards of these devices.
            "-device bochs-display,vgamem=16M,bus=port-fpga-node1",
            "-device bochs-display,vgamem=16M,bus=pcie.0,addr=0x14",
            # A card of two functions without ACS: one IOMMU group, and the
            # second function has a driver and a disk on the host.
            "-device edu,bus=pcie.0,addr=0x11.0x0,multifunction=on",
            f"-drive if=none,id=disk,format=raw,file={results}/disk.img",
            "-device nvme,serial=card,drive=disk,bus=pcie.0,addr=0x11.0x1",
            # Two functions that only their bus can reset, and both at once.
            root_port("pair", "pcie.0", PORT_PAIR, 10),
            "-device secondary-vga,bus=port-pair,addr=0x0.0x0,multifunction=on",
            "-device edu,bus=port-pair,addr=0x0.0x1",
            # All functions behind a conventional bridge share its requester id.
            "-device pcie-pci-bridge,id=legacy,bus=port-legacy",
            "-device edu,bus=legacy,addr=1 -device edu,bus=legacy,addr=2",
            # QEMU connects the port to its own monitor: hot plug from inside.
            f"-chardev socket,id=qmp0,{monitor},server=on,wait=off",
            "-mon chardev=qmp0,mode=control",
            f"-chardev socket,id=qmp1,{monitor}",
            "-device virtio-serial-pci,id=ports,bus=pcie.0 "
            f"-device virtserialport,bus=ports.0,chardev=qmp1,name={QMP_PORT}",
        )
    )


def nvme_options(results: Path) -> str:
    """Return drives with data, as options of QEMU 7.2 or newer.

    The second one has three namespaces: one of the PF's, and two that are attached to
    no controller at first.
    """
    private = ",bus=vf-drive,shared=off"
    return " ".join(
        (
            root_port("erased", "pcie.0", PORT_DRIVE, 8),
            root_port("vf-drive", "pcie.0", PORT_VF_DRIVE, 9),
            *(
                f"-drive if=none,id={name},format=raw,file={results}/{name}.img"
                for name in NVME_DISKS
            ),
            "-device nvme,id=erased,serial=erased,bus=port-erased",
            "-device nvme-ns,drive=drive1,bus=erased,nsid=1",
            "-device nvme-ns,drive=drive2,bus=erased,nsid=2",
            sriov_nvme("vf-drive", 2),
            f"-device nvme-ns,drive=host1,nsid=1{private}",
            f"-device nvme-ns,drive=vf1,nsid=2{private},detached=on",
            f"-device nvme-ns,drive=vf2,nsid=3{private},detached=on",
        )
    )


#: The disks of these drives, of 64 MiB each.
NVME_DISKS = ("drive1", "drive2", "host1", "vf1", "vf2")


def nic_options() -> str:
    """Return a network card with VFs, as options of QEMU 8.0 or newer."""
    return " ".join(
        (
            root_port("nic", "pcie.0", PORT_NIC, 7),
            "-device igb,id=nic,bus=port-nic",
        )
    )


def host_files() -> str:
    """Return options that export the host's files, for :func:`.inside.keep_files`."""
    return (
        "-fsdev local,id=files,path=/,readonly=on,security_model=none,multidevs=remap "
        f"-device virtio-9p-pci,fsdev=files,mount_tag={FILES_TAG},bus=pcie.0,addr=0x18"
    )


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a booted machine.

    :ivar name: the name of the lane, for its output.
    :ivar results: the folder that the machine may write; it is emptied first.
    :ivar disks: the names of raw files in that folder, disks of 64 MiB each.
    :ivar devices: options of QEMU.
    :ivar script: the script that root runs in the machine; see :func:`.inside.report`.
    :ivar log: the file in the results folder that is shown as it grows.
    :ivar arguments: arguments of the kernel.
    """

    name: str
    results: Path
    disks: tuple[str, ...]
    devices: str
    script: tuple[str, ...]
    log: str
    arguments: str


def tests_job(kernel: Kernel, pytest_args: Sequence[str]) -> Job:
    """Return the job that runs the tests of this folder."""
    modules = iommufd.ROOT if kernel.has_iommufd else kernel.root
    inside = (str(HERE / "inside.py"), str(RESULTS), FILES_TAG, str(modules))
    options = (str(kernel.emulator.parent), f"--of-kernel={kernel.name}", *pytest_args)
    script = (sys.executable, *inside, *options)
    nic = nic_options() if kernel.has_nic else ""
    devices = f"{qemu_options(RESULTS)} {nvme_options(RESULTS)} {nic}"
    # Without relaxed iomem, a driver would take the registers from the process that
    # simulates the FPGA; without the blacklist, it would be the display's driver.
    arguments = "intel_iommu=on iomem=relaxed modprobe.blacklist=bochs"
    disks = ("disk.img", *(f"{name}.img" for name in NVME_DISKS))
    return Job("kernel lane", RESULTS, disks, devices, script, "pytest.log", arguments)


def machine_command(kernel: Kernel, job: Job) -> list[str]:
    """Return virtme-ng's command that boots ``kernel`` and runs the script as root."""
    return [
        str(Path(sys.executable).parent / "vng"),
        *("--run", str(kernel.image), "--qemu", str(kernel.emulator)),
        *("--disable-kvm", "--user", "root"),
        *("--cpus", "2", "--memory", "2G"),
        *("--numa", "1G,cpus=0", "--numa", "1G,cpus=1"),
        *("--append", job.arguments),
        *("--cwd", str(CHECKOUT), "--rwdir", str(job.results)),
        f"--qemu-opts={host_files()} {job.devices}",
        *("--", *job.script),
    ]


@dataclass(slots=True)
class Attempt:
    """One boot of the machine, and its result.

    :ivar stopped: the machine itself, its kernel or emulator, no longer ran.
    """

    began: bool = False
    stopped: bool = False
    status: int | None = None


class Machine:
    """The running machine, followed through its output files."""

    def __init__(self, kernel: Kernel, job: Job) -> None:
        self._job = job
        self._results = job.results
        self._shown = 0
        # virtme-ng looks for its own programs on PATH.
        path = f"{Path(sys.executable).parent}:/usr/sbin:{os.environ['PATH']}"
        with open(job.results / "console.log", "wb") as console:
            self._process = subprocess.Popen(
                machine_command(kernel, job),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": path},
                start_new_session=True,
            )

    def follow(self) -> Attempt:
        """Show the job's output as it grows, until the machine has ended."""
        attempt = Attempt()
        start = time.monotonic()
        deadline = end = start + BOOT_DEADLINE
        beats = 0
        while (now := time.monotonic()) < deadline and attempt.status is None:
            if (count := self._beats()) != beats:
                if not attempt.began:
                    attempt.began, end = True, now + TESTS_DEADLINE
                    print(f"{self._job.name}: booted, {now - start:.0f} s", flush=True)
                beats, deadline = count, min(end, now + BEAT_DEADLINE)
            ended = self._wait(1.0)
            self._show()
            attempt.status = self._status()
            if ended:
                raced = EMULATOR_RACE in console_tail(self._results)
                attempt.stopped = attempt.status is None and raced
                break
        else:
            attempt.stopped = attempt.status is None and now < end
        self._wait(POWEROFF_DEADLINE if attempt.status is not None else 0)
        return attempt

    def end(self) -> None:
        """Kill the remaining processes of the machine."""
        if self._process.poll() is None:
            # QEMU is a child of virtme-ng's, in the same process group.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _status(self) -> int | None:
        # The machine renames it into place: it is never half written.
        path = self._results / "status"
        return int(path.read_text()) if path.exists() else None

    def _beats(self) -> int:
        path = self._results / "beats"
        return path.stat().st_size if path.exists() else 0

    def _show(self) -> None:
        path = self._results / self._job.log
        if path.exists():
            with open(path, "rb") as log:
                log.seek(self._shown)
                sys.stdout.buffer.write(log.read())
                sys.stdout.buffer.flush()
                self._shown = log.tell()


def boot_once(kernel: Kernel, job: Job) -> Attempt:
    """Boot the machine once, with an empty results folder."""
    shutil.rmtree(job.results, ignore_errors=True)
    job.results.mkdir(parents=True)
    for name in job.disks:
        with open(job.results / name, "wb") as disk:
            disk.truncate(64 << 20)
    (job.results / pace.FILE).write_text(str(pace.seconds()))
    machine = Machine(kernel, job)
    try:
        return machine.follow()
    finally:
        machine.end()


def open_to_users(environment: Path) -> None:
    """Let the machine's ordinary users run the programs of an environment of tox."""
    for folder in environment.parents:
        if folder.is_relative_to(CHECKOUT):
            folder.chmod(folder.stat().st_mode | 0o055)


def boot(kernel: Kernel, job: Job) -> Attempt:
    """Boot the machine, and a second time if it did not boot or has stopped."""
    open_to_users(Path(sys.prefix))
    # The machine sees the host's files read-only, and emulation compiles slowly.
    for folder in ("os_acc", "tests"):
        compileall.compile_dir(CHECKOUT / folder, quiet=2, workers=0)
    compileall.compile_dir(PACKAGES, quiet=2, workers=0, rx=NOT_IMPORTED)
    attempt = boot_once(kernel, job)
    if not attempt.began or attempt.stopped:
        reason = "has stopped" if attempt.stopped else "did not boot"
        print(console_tail(job.results))
        print(f"{job.name}: the machine {reason}; trying once more", flush=True)
        attempt = boot_once(kernel, job)
    return attempt


def counts(kernel: Kernel) -> str:
    """Return one line with pytest's counts."""
    suites = list(ElementTree.parse(RESULTS / "junit.xml").iter("testsuite"))

    def total(name: str) -> int:
        return sum(int(suite.get(name, "0")) for suite in suites)

    failed, skipped = total("failures") + total("errors"), total("skipped")
    done = f"{total('tests') - failed - skipped} passed, {failed} failed"
    return f"{done}, {skipped} skipped on Linux {kernel.release}"


def console_tail(results: Path) -> str:
    """Return the last lines of the console, without terminal control."""
    console = (results / "console.log").read_text("utf-8", "replace")
    plain = re.sub(r"\x1b(\[[0-9;?=]*[A-Za-z]|[A-Za-z])|[^\x20-\x7e\n]", "", console)
    return "\n".join(plain.splitlines()[-20:])


@contextmanager
def exclusively(results: Path) -> Iterator[None]:
    """Wait for another run in this checkout, which still writes its results."""
    results.parent.mkdir(exist_ok=True)
    with open(results.with_suffix(".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def nova() -> Iterator[None]:
    """Run Nova on the host, for :mod:`.guest_definition`."""
    command = [sys.executable, "-W", "ignore", str(HERE / "nova_definitions.py")]
    with open(NOVA_LOG, "wb") as log:
        process = subprocess.Popen(
            [*command, str(RESULTS)], stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        # This closes its standard input.
        process.communicate()


def end_when_told() -> None:
    """Let SIGTERM and SIGINT end this process as ``sys.exit()`` does.

    The machine has a session of its own: no signal to the lane reaches it.
    """
    signals = (signal.SIGTERM, signal.SIGINT)

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        # No signal may interrupt between a step and its cleanup.
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for each in signals:
        signal.signal(each, leave)


def run(kernel: Kernel, pytest_args: Sequence[str]) -> int:
    """Boot a kernel, run the tests, report; return the exit status."""
    kernel_modules.build(kernel)
    iommufd.build(kernel)
    with nova():
        attempt = boot(kernel, tests_job(kernel, pytest_args))
    if attempt.status is None or not (RESULTS / "junit.xml").exists():
        print(console_tail(RESULTS))
        print(f"kernel lane: no result; see console.log and pytest.log in {RESULTS}")
        return attempt.status or NO_RESULT
    print(f"kernel lane: {counts(kernel)} ({kernel.name})", flush=True)
    return attempt.status


def main(arguments: Sequence[str]) -> int:
    """Run the tests on each kernel; return the exit status of the lane."""
    names, pytest_args = selected(arguments)
    status = 0
    for last, name in enumerate(names, 1 - len(names)):
        try:
            status = run(kernels.KERNELS[name](), pytest_args) or status
        except kernels.Unavailable as error:
            print(f"kernel lane: {error}")
            status = NO_RESULT
        if last < 0:
            keep(name)
    # The figures are those of all tests on the newest kernel, as Debian builds it.
    if not pytest_args and names[-1] == [*kernels.KERNELS][-1] and status == 0:
        FIGURES.parent.mkdir(exist_ok=True)
        shutil.copyfile(RESULTS / "figures.json", FIGURES)
    return status


def selected(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names of the kernels to boot, and pytest's arguments."""
    parser = argparse.ArgumentParser(prog="kernel lane", allow_abbrev=False)
    parser.add_argument("--kernel", choices=list(kernels.KERNELS))
    ours, pytest_args = parser.parse_known_args(arguments)
    parser.add_argument("--share", type=int)
    both, _ = parser.parse_known_args(arguments)
    names = [ours.kernel] if ours.kernel else kernels.of(Share(both.share))
    return names, pytest_args


def keep(name: str) -> None:
    """Keep the output of a kernel, before another one replaces it."""
    kept = RESULTS.with_name(f"{RESULTS.name}-{name}")
    shutil.rmtree(kept, ignore_errors=True)
    if RESULTS.exists():
        RESULTS.rename(kept)


if __name__ == "__main__":
    end_when_told()
    with exclusively(RESULTS):
        sys.exit(main(sys.argv[1:]))
