# SPDX-License-Identifier: Apache-2.0

"""The attributes of a QuickAssist PF, and its files in debugfs (Linux 6.6 and later).

Documentation/ABI/testing/sysfs-driver-qat and debugfs-driver-qat. They behave as in
adf_sysfs.c, adf_dbgfs.c and adf_heartbeat_dbgfs.c in drivers/crypto/intel/qat.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from os_acc.objects import qat
from os_acc.privsep import kernel
from os_acc.testing import functions
from os_acc.testing.device_specs import AttributeSpec, SimulatedFunction, keep
from os_acc.testing.tree import PRIVATE, Transaction, Tree, refuse

_STATE: Final = "qat/state"
_SERVICES: Final = "qat/cfg_services"
_UP, _DOWN = "up", "down"
_6XXX: Final = "0x4948"
DEBUGFS: Final = "sys/kernel/debug"
_FLAGS: Final = f"{PRIVATE}/heartbeat"
# The status of a device that responds, and of another one; a zero byte follows.
_ALIVE, _SILENT = "0\n\0", "-1\n\0"


def attributes(
    services: str = "sym;asym", *, is_up: bool = True, is_used: bool = False
) -> tuple[AttributeSpec, ...]:
    """Return the attributes of a PF.

    :param services: ``cfg_services`` at boot.
    :param is_up: whether its driver starts it at boot.
    :param is_used: whether a user of the host holds it.
    """
    return (
        AttributeSpec(
            _STATE, _UP if is_up else _DOWN, refuse_state if is_used else set_state
        ),
        AttributeSpec(_SERVICES, services, set_services),
    )


def refuse_state(function: SimulatedFunction, _text: str) -> None:
    """Do as state_store() while adf_dev_in_use()."""
    raise refuse(errno.EBUSY, function.address)


def set_state(function: SimulatedFunction, text: str) -> None:
    """Do as state_store(): Linux 6.1 refuses to stop a device that is down."""
    wanted = text.removesuffix("\n")
    is_down = function.read(_STATE) == _DOWN
    if wanted not in (_UP, _DOWN) or (wanted == _DOWN and is_down):
        raise refuse(errno.EINVAL, function.address)
    keep(function, _STATE, text)


def set_services(function: SimulatedFunction, text: str) -> None:
    """Do as cfg_services_store(), which refuses a device that is up."""
    try:
        services = qat.parse_services(text.removesuffix("\n"))
    except ValueError as error:
        raise refuse(errno.EINVAL, function.address) from error
    most = 3 if function.read("device") == _6XXX else 2
    if not qat.are_possible(services) or len(services) > most:
        raise refuse(errno.EINVAL, function.address)
    if function.read(_STATE) == _UP:
        raise refuse(errno.EINVAL, function.address)
    keep(function, _SERVICES, text)


# -- debugfs ------------------------------------------------------------------


def show(tree: Transaction, address: str) -> None:
    """Show the heartbeat of a PF whose driver is bound; other functions have none."""
    spec = functions.spec(tree, address)
    if (spec.vendor, spec.product) not in qat.PFS:
        return
    # The name of the device class; that of the driver in most cases.
    directory = f"{DEBUGFS}/qat_{spec.driver}_{address}/heartbeat"
    tree.put(f"{directory}/status", _ALIVE, 0o400)
    for name in ("queries_sent", "queries_failed"):
        tree.put(f"{directory}/{name}", "0\n\0", 0o400)


def hide(tree: Transaction, address: str) -> None:
    """Remove the directory of a function."""
    for name in tree.list(DEBUGFS):
        if name.endswith(f"_{address}"):
            tree.drop(f"{DEBUGFS}/{name}")


def is_down(tree: Transaction, address: str) -> bool:
    """Return whether a PF is down: the kernel removes its heartbeat meanwhile."""
    path = f"{functions.place(tree, address)}/qat/state"
    return tree.exists(path) and tree.read(path).strip() == "down"


def _flag(tree: Transaction, address: str, text: str) -> None:
    """Set what the next queries find: '', ``silent`` or ``queried``."""
    tree.put(f"{_FLAGS}/{address}", text)


def _query(tree: Transaction, directory: str, address: str) -> None:
    """Do as adf_heartbeat_status()."""
    path = f"{_FLAGS}/{address}"
    state = tree.read(path) if tree.exists(path) else ""
    tree.put(f"{directory}/status", _SILENT if state else _ALIVE, 0o400)
    if state == "queried":
        return
    _count(tree, f"{directory}/queries_sent")
    if state:
        _count(tree, f"{directory}/queries_failed")


def _count(tree: Transaction, path: str) -> None:
    number = int(tree.read(path).rstrip("\n\0"))
    tree.put(path, f"{number + 1}\n\0", 0o400)


class HeartbeatFiles(kernel.Kernel):
    """The part of the simulated kernel that is below ``/sys/kernel/debug``."""

    _tree: Tree

    def read(self, path: str) -> str:
        """Read an attribute; a read of a heartbeat's status queries the device."""
        directory, name = os.path.split(path)
        is_heartbeat = os.path.basename(directory) == "heartbeat"
        if is_heartbeat and directory.startswith(f"{self.root}/{DEBUGFS}/"):
            address = os.path.basename(os.path.dirname(directory)).rpartition("_")[2]
            with self._tree.transaction() as tree:
                # The kernel removes the directory of a device that goes down.
                if is_down(tree, address):
                    raise refuse(errno.ENOENT, path)
                if name == "status":
                    _query(tree, os.path.relpath(directory, self.root), address)
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
            tree.drop(DEBUGFS)
            tree.mkdir(DEBUGFS)

    def _set_heartbeat(self, address: object, flag: str) -> None:
        with self._tree.transaction() as tree:
            _flag(tree, str(address), flag)
