# SPDX-License-Identifier: Apache-2.0

"""The files of QuickAssist PFs in debugfs (Linux 6.6 and later).

Documentation/ABI/testing/debugfs-driver-qat; adf_dbgfs.c and adf_heartbeat_dbgfs.c in
drivers/crypto/intel/qat/qat_common.
"""

from __future__ import annotations

from typing import Final

from os_acc.objects import qat
from os_acc.testing import functions
from os_acc.testing.tree import PRIVATE, Transaction

DEBUGFS: Final = "sys/kernel/debug"
_FLAGS: Final = f"{PRIVATE}/heartbeat"
# The status of a device that responds, and of another one; a zero byte follows.
_ALIVE, _SILENT = "0\n\0", "-1\n\0"


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


def flag(tree: Transaction, address: str, text: str) -> None:
    """Set what the next queries find: '', ``silent`` or ``queried``."""
    tree.put(f"{_FLAGS}/{address}", text)


def query(tree: Transaction, directory: str, address: str) -> None:
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
