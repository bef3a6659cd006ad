# SPDX-License-Identifier: Apache-2.0

"""System calls on the nodes of a card on the DFL driver.

drivers/fpga/dfl-fme-pr.c, dfl-fme-main.c, dfl.h. An exclusive open is a lock
on the node's file: it ends with the process, however that ends.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import struct
from typing import Unpack

from os_acc.objects import pci
from os_acc.objects.mdev import DeviceName
from os_acc.testing import dfl, faults, holders
from os_acc.testing.dfl import NOTHING, function_of
from os_acc.testing.faults import Effect, Struck
from os_acc.testing.tree import Transaction, refuse
from os_acc.testing.writes import LoggedCalls, WriteOutcome, carry_out, end, name_of

#: The names by which faults strike an ioctl.
PROGRAM, RELEASE, ASSIGN = "program", "release", "assign"

# _IO(0xB6, 0x80) and _IOW(0xB6, 0x81 and 0x82, int), linux/fpga-dfl.h.
_REQUESTS = {
    0xB6 << 8 | 0x80: (PROGRAM, "DFL_FPGA_FME_PORT_PR"),
    1 << 30 | 4 << 16 | 0xB6 << 8 | 0x81: (RELEASE, "DFL_FPGA_FME_PORT_RELEASE"),
    1 << 30 | 4 << 16 | 0xB6 << 8 | 0x82: (ASSIGN, "DFL_FPGA_FME_PORT_ASSIGN"),
}
_PORT_PR = struct.Struct("=IIIIQ")
_PORT_ID = struct.Struct("=i")
# The kernel has begun a call that it fails with these.
_BEGUN = frozenset({errno.EIO, errno.ETIMEDOUT})
_OUTCOMES = {
    Effect.IGNORE.value: WriteOutcome.IGNORED,
    Effect.KILL_AFTER.value: WriteOutcome.KILLED_AFTER,
}


class DflNodes(LoggedCalls):
    """The part of the simulated kernel that is below ``/dev/dfl-*``."""

    # -- called by os_acc ----------------------------------------------------

    def open_exclusive(self, path: str, device: str) -> int:
        """Open a node; EBUSY while a process has it open (:meth:`open_node`)."""
        # fme_open() waits for the end of fme_pr().
        with self._tree.lock(os.path.basename(path)):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.pread(fd, 32, 0).decode().strip() != device:
                    raise refuse(errno.ENXIO, path)
                with self._tree.transaction() as tree:
                    if holders.has_node(tree, os.path.basename(path)):
                        raise refuse(errno.EBUSY, path)
                _lock(fd, path)
            except OSError:
                os.close(fd)
                raise
        return fd

    def ioctl(self, fd: int, request: int, argument: bytes) -> None:
        """Do an ioctl of dfl-fme; no other driver has any here."""
        node = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        with self._tree.transaction() as tree:
            card = dfl.card_of(tree, node)
        if card is None or request not in _REQUESTS:
            raise refuse(errno.EINVAL, node)
        what, name = _REQUESTS[request]
        with self._tree.lock(node):
            if what == PROGRAM:
                self._program(card, node, name, argument)
            else:
                self._move(card, node, name, what, *_PORT_ID.unpack(argument))

    # -- faults --------------------------------------------------------------

    def fail_programming(
        self,
        address: str | pci.PciAddress,
        *errors: str,
        error: int = errno.EIO,
        **struck: Unpack[Struck],
    ) -> None:
        """Let the hardware reject a bitstream.

        :param errors: the errors that the FPGA manager then reports, such as
            ``reconfig CRC error``.
        :param error: EIO, or ETIMEDOUT, for which it reports nothing. With
            other numbers :meth:`FakeKernel.fail` lets the kernel refuse
            ``program``, ``release`` or ``assign`` before it begins.
        """
        text = "\n".join(errors)
        self._add_fault(Effect.FAIL, address, PROGRAM, error, text=text, **struck)

    # -- events around the kernel --------------------------------------------

    def open_node(self, node: str, pid: int = 4712, command: str = "fpgainfo") -> None:
        """Let a process open ``dfl-fme.<n>`` or ``dfl-port.<n>``.

        :raises OSError: ENOENT: no such node.
        """
        with self._tree.transaction() as tree:
            if not tree.exists(f"dev/{node}"):
                raise refuse(errno.ENOENT, node)
            holders.open_node(tree, node, pid, command)

    def close_node(self, node: str) -> None:
        """Let the process that has a node open close it."""
        with self._tree.transaction() as tree:
            holders.close_node(tree, node)

    def held_by_hardware(self, address: str | DeviceName) -> tuple[str, ...]:
        """Return the functions in the ports of a card, also of those with a guest.

        :raises OSError: ENOENT: not a card on the DFL driver.
        """
        with self._tree.transaction() as tree:
            return dfl.held(tree, str(address))

    def program_as_guest(
        self, address: str | pci.PciAddress, function_id: str, number: int = 0
    ) -> None:
        """Let the guest that has a card program one of its ports, unseen by the host.

        :raises OSError: ENOENT: not a card on the DFL driver.
        """
        with self._tree.transaction() as tree:
            dfl.write(tree, str(address), number, function_id)

    # -- within --------------------------------------------------------------

    def _program(self, card: str, node: str, name: str, argument: bytes) -> None:
        argsz, flags, number, size, address = _PORT_PR.unpack(argument)
        digest, function_id = self._read(address, size)
        path, text = self.path("dev", node), f"{name} {number} {size} {digest}"
        refused: OSError | None = None
        with self._tree.transaction() as tree:
            fault = faults.take(tree, card, PROGRAM)
            effect = fault.effect if fault is not None else ""
            error = fault.errno if fault is not None and effect == Effect.FAIL else 0
            there = dfl.made(tree, card).manager and number < len(dfl.held(tree, card))
            if argsz < _PORT_PR.size or flags or not there:
                refused = refuse(errno.EINVAL, node)
            elif error and error not in _BEGUN:
                refused = refuse(error, node)
            outcome = name_of(refused) if refused else WriteOutcome.KILLED_BEFORE.value
            begins = refused is None and effect != Effect.KILL_BEFORE
            if begins:
                # fpga_bridges_disable() and so on.
                dfl.change(tree, card, number, "write complete", disabled=1)
            else:
                self._note(tree, path, text, outcome)
        if not begins:
            end(outcome, refused, node)
        self._wait_while(lambda tree: faults.hangs(tree, fault), path, text)
        with self._tree.transaction() as tree:
            if fault is not None and error:
                # The port stays disabled.
                failed, status = "write complete error", fault.text.splitlines()
                dfl.change(
                    tree, card, number, failed, status=status, function_id=NOTHING
                )
                refused = refuse(error, node)
                outcome = name_of(refused)
            else:
                new = None if effect == Effect.IGNORE else function_id
                dfl.change(
                    tree, card, number, "operating", disabled=-1, function_id=new
                )
                outcome = _OUTCOMES.get(effect, WriteOutcome.DONE).value
            self._note(tree, path, text, outcome)
        end(outcome, refused, node)

    def _read(self, address: int, size: int) -> tuple[str, str]:
        """Return the digest of a bitstream, and the function that it implements.

        :param address: in the memory of the caller, which is this process.
        """
        payload = ctypes.string_at(address, size)
        return hashlib.sha256(payload).hexdigest(), function_of(payload)

    def _move(self, card: str, node: str, name: str, what: str, number: int) -> None:
        path, text = self.path("dev", node), f"{name} {number}"
        with self._tree.transaction() as tree:
            fault = faults.take(tree, card, what)
        self._wait_while(lambda tree: faults.hangs(tree, fault), path, text)
        with self._tree.transaction() as tree:
            outcome, error = carry_out(
                tree, card, fault, lambda: self._move_port(tree, card, what, number)
            )
            self._note(tree, path, text, outcome)
        end(outcome, error, node)

    def _move_port(self, tree: Transaction, card: str, what: str, number: int) -> None:
        port = dfl.own_port(tree, card, number)
        if port is None:
            raise refuse(errno.ENODEV, card)
        if port.released == (what == RELEASE):
            raise refuse(errno.EBUSY, card)
        if what == RELEASE and self._is_open(tree, port.name):
            raise refuse(errno.EBUSY, card)
        dfl.move(tree, card, number)

    def _is_open(self, tree: Transaction, node: str) -> bool:
        if holders.has_node(tree, node):
            return True
        path = self.path("dev", node)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _lock(fd, path)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False


def _lock(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise refuse(errno.EBUSY, path) from error
