# SPDX-License-Identifier: Apache-2.0

"""A guest inside the machine: QEMU that holds functions through VFIO."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence

from . import sysfs
from .accounts import OrdinaryUser
from .qmp import Qmp, QmpError

#: Seconds QEMU may take to end.
DEADLINE = 120.0


class InnerGuest:
    """A running guest with host functions, started as libvirt starts one.

    QEMU is an ordinary user's, which owns the group nodes and may lock
    memory. When the constructor returns, the functions are attached.

    :raises QmpError: QEMU did not start; the message is its own.
    """

    def __init__(self, user: OrdinaryUser, bdfs: Sequence[str]) -> None:
        self._bdfs = tuple(bdfs)
        self._nodes = {sysfs.vfio_node(bdf) for bdf in bdfs}
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
        """The host addresses of the functions that ``info pci`` lists."""
        listed = {
            device["qdev_id"]
            for bus in self._qmp.execute("query-pci")
            for device in bus["devices"]
        }
        return frozenset(
            bdf for index, bdf in enumerate(self._bdfs) if f"host{index}" in listed
        )

    def info_pci(self) -> str:
        """What ``info pci`` of the human monitor prints."""
        text: str = self._qmp.execute(
            "human-monitor-command", **{"command-line": "info pci"}
        )
        return text

    def end(self) -> None:
        """Shut the guest down and take the nodes back, as libvirt does."""
        if self.process.poll() is None:
            self._qmp.execute("quit")
            self.process.wait(DEADLINE)
            self._take_nodes_back()

    def kill(self) -> None:
        """End QEMU with SIGKILL; the nodes stay its user's."""
        self.process.kill()
        self.process.wait(DEADLINE)

    def close(self) -> None:
        """End whatever still runs."""
        self.end()
        self._qmp.close()

    def _command(self, user: OrdinaryUser, monitor: int) -> list[str]:
        devices = [
            option
            for index, bdf in enumerate(self._bdfs)
            for option in ("-device", f"vfio-pci,id=host{index},host={bdf}")
        ]
        qemu = [
            *("qemu-system-x86_64", "-machine", "q35,accel=tcg", "-m", "64"),
            *("-display", "none", "-nodefaults", "-no-user-config"),
            *("-chardev", f"socket,id=qmp,fd={monitor}"),
            *("-mon", "chardev=qmp,mode=control"),
            *devices,
        ]
        # Raised before the user changes: VFIO_MAP_DMA locks all of its memory.
        return ["prlimit", "--memlock=unlimited:unlimited", *user.command(qemu)]

    def _take_nodes_back(self) -> None:
        for node in self._nodes:
            if node.exists():
                os.chown(node, 0, 0)
