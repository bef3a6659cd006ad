# SPDX-License-Identifier: Apache-2.0

"""Writes: the attribute that is written, and the outcome."""

from __future__ import annotations

import dataclasses
import enum
import errno
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator

from os_acc.privsep import kernel as privsep_kernel
from os_acc.testing import (
    boot,
    drivers,
    faults,
    holders,
    mdevs,
    pci_attributes,
    records,
    vendor_attributes,
)
from os_acc.testing.faults import Effect, InjectedFault
from os_acc.testing.tree import PRIVATE, Transaction, Tree, refuse, serial

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DRIVER_FILE = re.compile(r"sys/bus/pci/drivers/([^/]+)/(bind|unbind)")
_DEVICE_FILE = re.compile(rf"sys/devices/.*/({_ADDRESS.pattern})/(.+)")
_MDEV_TYPE = re.compile(r"sys/devices/.*/([^/]+)/mdev_supported_types/([^/]+)/create")
_GROUP = re.compile(r"dev/vfio/([0-9]+|devices/vfio[0-9]+)")
_MDEV = re.compile(r"sys/devices/.*/([0-9a-f-]{36})/remove")

_PENDING = f"{PRIVATE}/pending"
#: Seconds between two looks of a blocked write whether it may go on.
POLL = 0.005
#: No attribute and no write, but it ends like one: see Pending.
HOT_UNPLUG = "(hot unplug)"


class WriteOutcome(enum.StrEnum):
    """The outcome of a write that the kernel did not refuse."""

    DONE = "done"
    BLOCKED = "blocked"
    IGNORED = "ignored"
    KILLED_BEFORE = "killed before"
    KILLED_AFTER = "killed after"


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """A write that reached the kernel.

    :ivar path: relative to the root, as the caller wrote it.
    :ivar outcome: the value of an :class:`WriteOutcome`, or the name of the error
        number of the refusal. A write that has to wait is listed
        once as blocked, and again when it ends.
    """

    path: str
    text: str
    outcome: str
    pid: int


class LoggedCalls(privsep_kernel.Kernel):
    """The calls of the simulated kernel that faults strike, logged as writes."""

    _tree: Tree

    def _note(self, tree: Transaction, path: str, text: str, outcome: str) -> None:
        inside = os.path.relpath(path, self.root)
        tree.notes.append(record(Write(inside, text, outcome, os.getpid())))

    def _wait_while(
        self, waits: Callable[[Transaction], bool], path: str = "", text: str = ""
    ) -> None:
        """Wait; a write of a path is logged once as blocked."""
        while True:
            with self._tree.transaction() as tree:
                if not waits(tree):
                    return
                if path:
                    self._note(tree, path, text, WriteOutcome.BLOCKED.value)
            path = ""
            time.sleep(POLL)

    def _add_fault(
        self,
        effect: Effect,
        address: object,
        attribute: str,
        error: int = 0,
        *,
        times: int | None = 1,
        nth: int = 1,
        text: str = "",
    ) -> None:
        name = str(address or "")
        fault = InjectedFault(
            0, effect.value, name, attribute, error, nth - 1, times, text
        )
        with self._tree.transaction() as tree:
            faults.add(tree, fault)


@dataclasses.dataclass(frozen=True, slots=True)
class WriteTarget:
    """The attribute of a write, and its function, mediated device or type."""

    attribute: str
    address: str
    driver: str = ""

    @property
    def lock(self) -> str:
        """The lock of the write: of the function, as device_lock()."""
        if self.attribute in ("create", "remove"):
            return "mdev"
        return self.address if _ADDRESS.fullmatch(self.address) else "bus"


def record(write: Write) -> str:
    """Return a line for the log of writes."""
    return json.dumps((write.path, write.text, write.outcome, write.pid))


def revive(line: str) -> Write:
    """Return the write that :func:`record` noted."""
    path, text, outcome, pid = json.loads(line)
    return Write(path, text, outcome, pid)


def target_of(root: str, path: str, text: str) -> WriteTarget:
    """Return the attribute that is written.

    :raises OSError: ENOENT, EACCES, ELOOP: it cannot be opened for writing.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # The target of the links on the way. Another writer may have put a
        # new file in its place by now.
        real = os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")
    finally:
        os.close(fd)
    inside = real.removeprefix(f"{root}/")
    line = text.removesuffix("\n")
    if inside == "sys/bus/pci/drivers_probe":
        return WriteTarget("drivers_probe", line)
    if match := _DRIVER_FILE.fullmatch(inside):
        return WriteTarget(match[2], line, match[1])
    if match := _MDEV_TYPE.fullmatch(inside):
        return WriteTarget("create", f"{match[1]}/{match[2]}")
    if match := _MDEV.fullmatch(inside):
        return WriteTarget("remove", match[1])
    if _GROUP.fullmatch(inside):
        return WriteTarget("hot_reset", line)
    match = _DEVICE_FILE.fullmatch(inside)
    if match is None:
        raise refuse(errno.EACCES, path)
    return WriteTarget(match[2], match[1])


def carry_out(
    tree: Transaction,
    address: str,
    fault: InjectedFault | None,
    change: Callable[[], None],
) -> tuple[str, OSError | None]:
    """Change the tree, unless a fault forbids it; return the outcome and the error.

    :param change: raises the OSError with which the kernel refuses the change.
    :raises Blocked: the change is incomplete and waits for a process that holds a
        function.
    """
    effect = fault.effect if fault is not None else ""
    if fault is not None and effect == Effect.FAIL:
        refusal = refuse(fault.errno, address)
        return name_of(refusal), refusal
    if effect == Effect.IGNORE:
        return WriteOutcome.IGNORED.value, None
    if effect == Effect.KILL_BEFORE:
        return WriteOutcome.KILLED_BEFORE.value, None
    refused = None
    try:
        change()
    except OSError as error:
        tree.abandon()
        refused = error
    if effect == Effect.KILL_AFTER:
        return WriteOutcome.KILLED_AFTER.value, None
    return WriteOutcome.DONE.value if refused is None else name_of(refused), refused


def end(outcome: str, error: OSError | None, path: str) -> None:
    """End a call: kill this process if a fault demands it, or raise the error."""
    if outcome in (WriteOutcome.KILLED_BEFORE, WriteOutcome.KILLED_AFTER):
        os.kill(os.getpid(), signal.SIGKILL)
    if error is not None:
        raise OSError(error.errno, error.strerror, path) from error


def name_of(error: OSError) -> str:
    """Return the outcome of a refused write."""
    return errno.errorcode.get(error.errno or 0, str(error.errno))


def perform(tree: Transaction, target: WriteTarget, text: str) -> None:
    """Carry out the write of an attribute.

    :raises OSError: the kernel refuses.
    :raises Blocked: as :func:`carry_out`; calling it again goes on.
    """
    if not text:
        # sysfs_kf_write() ignores a write of no bytes.
        return
    if target.attribute == "drivers_probe":
        drivers.probe(tree, target.address)
    elif target.attribute == "bind":
        drivers.bind(tree, target.address, target.driver)
    elif target.attribute == "unbind":
        pci_attributes.unbind(tree, target.address, target.driver)
    elif target.attribute in _STORES:
        _STORES[target.attribute](tree, target.address, text)
    else:
        vendor_attributes.store(tree, target.address, target.attribute, text)


def _hot_unplug(tree: Transaction, address: str, _text: str) -> None:
    boot.unplug(tree, address)


_STORES: dict[str, Callable[[Transaction, str, str], None]] = {
    "numa_node": pci_attributes.set_node,
    "driver_override": drivers.set_override,
    "sriov_numvfs": pci_attributes.set_numvfs,
    "sriov_drivers_autoprobe": pci_attributes.set_autoprobe,
    "create": mdevs.create,
    "remove": mdevs.remove,
    "reset": pci_attributes.reset,
    "reset_method": pci_attributes.set_methods,
    "hot_reset": pci_attributes.hot_reset,
    HOT_UNPLUG: _hot_unplug,
}


# -- writes that wait for the process that holds a function --------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Pending:
    """A write under way; without a path: a hot unplug."""

    target: WriteTarget
    text: str
    path: str = ""
    pid: int = 0


def add_pending(tree: Transaction, write: Pending) -> int:
    """Record that a write is under way; return its number."""
    number = serial(tree)
    tree.put(f"{_PENDING}/{number:08}", records.dump(write))
    return number


def is_under_way(tree: Transaction, number: int) -> bool:
    """Return whether a write has not ended yet."""
    return tree.exists(f"{_PENDING}/{number:08}")


def is_locked(tree: Transaction, address: str) -> bool:
    """Return whether a write under way keeps a function locked."""
    if drivers.is_leaving(tree, address):
        return True
    return any(write.target.address == address for _name, write in _pending(tree))


def resume_pending(tree: Transaction) -> Iterator[Write]:
    """Resume all writes under way; return those that end."""
    for name, write in _pending(tree):
        outcome = WriteOutcome.DONE.value
        try:
            perform(tree, write.target, write.text)
        except holders.Blocked:
            continue
        except OSError as error:
            outcome = name_of(error)
        tree.drop(f"{_PENDING}/{name}")
        if write.path:
            yield Write(write.path, write.text, outcome, write.pid)


def forget_pending(tree: Transaction) -> None:
    """Drop all writes under way for a reboot."""
    tree.drop(_PENDING)


def _pending(tree: Transaction) -> list[tuple[str, Pending]]:
    return [
        (name, records.load(Pending, tree.read(f"{_PENDING}/{name}")))
        for name in tree.list(_PENDING)
    ]
