# SPDX-License-Identifier: Apache-2.0

"""A guest inside the machine: QEMU that holds functions through VFIO."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import sysfs
from .accounts import OrdinaryUser
from .qmp import Qmp, QmpError, human

#: Seconds that QEMU may take to end.
DEADLINE = 120.0


class InnerGuest:
    """A running guest with host devices, started as libvirt starts one.

    QEMU runs as an ordinary user that owns the nodes and may lock memory. The
    devices are attached when the constructor returns.

    :param names: addresses of functions, and UUIDs of mediated devices.
    :param disk: the contents of a disk to boot from; empty: the guest runs no program.
    :raises QmpError: QEMU did not start; the message is QEMU's own.
    """

    #: More options of each device, and of QEMU.
    device_options: str = ""
    options: Sequence[str] = ()

    def __init__(
        self, user: OrdinaryUser, names: Sequence[str], disk: bytes = b""
    ) -> None:
        self._names = tuple(names)
        self._disk = _file_of(user, disk) if disk else None
        self._nodes = frozenset[Path]().union(*map(sysfs.vfio_nodes, names))
        for node in self._nodes:
            os.chown(node, user.uid, user.gid)
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as errors:
            self.process = subprocess.Popen(
                self._command(user, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(theirs.fileno(),),
            )
            theirs.close()
            self._qmp = Qmp(ours.detach())
            try:
                self._qmp.negotiate()
            except (QmpError, OSError) as error:
                self.kill()
                errors.seek(0)
                raise QmpError(errors.read().decode()) from error

    def attached(self) -> frozenset[str]:
        """Return the names of the host devices in ``info pci``."""
        listed = {
            device["qdev_id"]
            for bus in self._qmp.execute("query-pci")
            for device in bus["devices"]
        }
        return frozenset(
            name for index, name in enumerate(self._names) if f"host{index}" in listed
        )

    def byte(self, address: int) -> int:
        text = human(self._qmp, f"xp /1bx {address:#x}")
        return int(text.rpartition(":")[2], 16)

    def info_pci(self) -> str:
        return human(self._qmp, "info pci")

    def end(self) -> None:
        """Shut the guest down and return the nodes to root, as libvirt does."""
        if self.process.poll() is None:
            self._qmp.execute("quit")
            self.process.wait(DEADLINE)
            self._take_nodes_back()

    def kill(self) -> None:
        """Kill QEMU with SIGKILL; its user keeps the nodes."""
        self.process.kill()
        self.process.wait(DEADLINE)

    def close(self) -> None:
        """End all processes that still run."""
        self.end()
        self._qmp.close()
        if self._disk is not None:
            self._disk.unlink(missing_ok=True)

    def _command(self, user: OrdinaryUser, monitor: int) -> list[str]:
        iommufd, by_node = ["-object", "iommufd,id=iommufd0"], ",iommufd=iommufd0"
        if not sysfs.IOMMU.exists():
            iommufd, by_node = [], ""
        devices = [
            option
            for index, name in enumerate(self._names)
            for option in (
                "-device",
                f"vfio-pci,id=host{index},sysfsdev={sysfs.directory(name)}"
                f"{by_node}{self.device_options}",
            )
        ]
        qemu = [
            *("qemu-system-x86_64", "-machine", "q35,accel=tcg", "-m", "64"),
            *("-display", "none", "-nodefaults", "-no-user-config"),
            *("-chardev", f"socket,id=qmp,fd={monitor}"),
            *("-mon", "chardev=qmp,mode=control"),
            *(*iommufd, *devices, *self.options),
        ]
        if self._disk is not None:
            drive = f"if=none,id=boot,format=raw,file={self._disk}"
            qemu += ["-drive", drive, "-device", "ide-hd,drive=boot,bootindex=0"]
        # Set before the change of user: VFIO_MAP_DMA locks all of the guest's memory.
        return ["prlimit", "--memlock=unlimited:unlimited", *user.command(qemu)]

    def _take_nodes_back(self) -> None:
        for node in self._nodes:
            if node.exists():
                os.chown(node, 0, 0)


def _file_of(user: OrdinaryUser, contents: bytes) -> Path:
    """Return a new file of a user's."""
    fd, name = tempfile.mkstemp(dir=user.home)
    with open(fd, "wb") as file:
        file.write(contents)
    os.chown(name, user.uid, user.gid)
    return Path(name)
