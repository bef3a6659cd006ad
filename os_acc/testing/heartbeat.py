# SPDX-License-Identifier: Apache-2.0

"""Heartbeats of QuickAssist PFs, which a read of their status queries.

adf_heartbeat.c in drivers/crypto/intel/qat/qat_common.
"""

from __future__ import annotations

import errno
import os

from os_acc.testing import qat
from os_acc.testing.drivers import refuse
from os_acc.testing.nvme import NvmeNodes


class HeartbeatFiles(NvmeNodes):
    """The part of the simulated kernel that is below ``/sys/kernel/debug``."""

    def read(self, path: str) -> str:
        """Read an attribute; a read of a heartbeat's status queries the device."""
        directory, name = os.path.split(path)
        is_heartbeat = os.path.basename(directory) == "heartbeat"
        if is_heartbeat and directory.startswith(f"{self.root}/{qat.DEBUGFS}/"):
            address = os.path.basename(os.path.dirname(directory)).rpartition("_")[2]
            with self._tree.transaction() as tree:
                # The kernel removes the directory of a device that goes down.
                if qat.is_down(tree, address):
                    raise refuse(errno.ENOENT, path)
                if name == "status":
                    qat.query(tree, os.path.relpath(directory, self.root), address)
        return super().read(path)

    def stop_heartbeat(self, address: object) -> None:
        """Let the firmware of a PF hang."""
        self._set_heartbeat(address, "silent")

    def restart_heartbeat(self, address: object) -> None:
        """Let the firmware of a PF respond again."""
        self._set_heartbeat(address, "")

    def crowd_heartbeat(self, address: object) -> None:
        """Let another process have queried the PF just before each query."""
        self._set_heartbeat(address, "queried")

    def unmount_debugfs(self) -> None:
        """Unmount debugfs, as ``umount`` does."""
        with self._tree.transaction() as tree:
            tree.drop(qat.DEBUGFS)
            tree.mkdir(qat.DEBUGFS)

    def _set_heartbeat(self, address: object, flag: str) -> None:
        with self._tree.transaction() as tree:
            qat.flag(tree, str(address), flag)
