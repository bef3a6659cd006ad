# SPDX-License-Identifier: Apache-2.0

"""NVMe controllers that answer admin commands, and the media of their namespaces.

NVM Express Base Specification 2.0 describes the commands, drivers/nvme/host/ioctl.c
how they get there. A VF's controller belongs to the subsystem of its PF. An exclusive
open of a disk is a lock on the file that is its medium.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import signal
import struct
from collections.abc import Callable
from typing import Final

from os_acc.testing import faults, functions, holders, nvme_resources, records
from os_acc.testing.device_specs import MANAGES, VIRTUALIZES, NvmeSpec
from os_acc.testing.dfl_nodes import DflNodes
from os_acc.testing.drivers import CONTROLLERS
from os_acc.testing.faults import Effect
from os_acc.testing.specs import FunctionSpec
from os_acc.testing.tree import PRIVATE, Transaction, refuse

_COMMAND = struct.Struct("=BBHIIIQQIIIIIIIIII")
_LOG, _IDENTIFY, _FORMAT, _SANITIZE, _MANAGE = 0x02, 0x06, 0x80, 0x84, 0x1C
#: The names of commands, for faults.
NAMES = {
    _LOG: "log",
    _IDENTIFY: "identify",
    _FORMAT: "format",
    _SANITIZE: "sanitize",
    _MANAGE: "virtualization management",
}
_INVALID_FIELD, _SANITIZING, _INVALID_OPCODE = 0x2, 0x1D, 0x1
_FLUSH_BUFFERS, _RESCAN, _DISCARD = 0x1261, 0x125F, 0x1277
_MEDIA, _STATES = f"{PRIVATE}/media", f"{PRIVATE}/nvme"
#: Size of each namespace: 128 blocks of 512 bytes.
MEDIUM = 1 << 16
# SSTAT bits 2:0.
_RUNNING: Final = 2


@dataclasses.dataclass(frozen=True, slots=True)
class SubsystemState:
    """The state of a subsystem.

    :ivar sanitize: SSTAT bits 2:0.
    :ivar progress: SPROG.
    :ivar action: SANACT of the last operation.
    :ivar is_written: user data was written since it, or no operation ever ended.
    :ivar warning: the Critical Warning field of its health.
    :ivar media_errors: as in its health; so are ``spare`` and ``used``.
    """

    sanitize: int = 0
    progress: int = 0xFFFF
    action: int = 0
    is_written: bool = True
    warning: int = 0
    media_errors: int = 0
    spare: int = 100
    used: int = 0


class NvmeNodes(DflNodes):
    """The part of the simulated kernel that is below ``/dev/nvme*``."""

    # -- called by os_acc ----------------------------------------------------

    def open_controller(self, path: str, device: str) -> int:
        """Open the character device of a controller on the nvme driver."""
        address = self._address_of(path, device)
        node = f"{CONTROLLERS}/{address}"
        with self._tree.transaction() as tree:
            if not tree.exists(node):
                tree.put(node, "", 0o600)
        return os.open(self._file(node), os.O_RDWR | os.O_CLOEXEC)

    def nvme_admin(
        self, fd: int, command: Callable[[int], bytes], size: int
    ) -> tuple[int, bytes]:
        """Carry out an admin command of a controller, unless it has left its driver."""
        fields = _COMMAND.unpack(command(1))
        opcode, number, cdw10, cdw11 = fields[0], fields[3], *fields[10:12]
        path = os.readlink(f"/proc/self/fd/{fd}")
        if not os.fstat(fd).st_nlink:
            raise refuse(errno.ENODEV, path)
        address = os.path.basename(path)
        with self._tree.transaction() as tree:
            fault = faults.take(tree, address, NAMES.get(opcode, ""))
        effect = fault.effect if fault else ""
        if fault is not None and effect == Effect.FAIL:
            raise refuse(fault.errno, path)
        self._wait_while(lambda tree: faults.hangs(tree, fault))
        if effect == Effect.KILL_BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        if effect == Effect.IGNORE:
            return 0, bytes(size)
        answer = self._answer(address, opcode, number, cdw10, cdw11)
        if effect == Effect.KILL_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(answer, int):
            return answer, bytes(size)
        return 0, answer.ljust(size, b"\0")

    def open_disk(self, path: str, device: str, flags: int = 0) -> int:
        """Open the medium of a disk; EBUSY while the host uses it, or it is claimed."""
        name = os.path.basename(path)
        with self._tree.transaction() as tree:
            if tree.read(f"sys/class/block/{name}/dev").strip() != device:
                raise refuse(errno.ENXIO, path)
            if holders.is_claimed(tree, name):
                raise refuse(errno.EBUSY, path)
            medium = _medium_of(tree, name)
        fd = os.open(self._file(medium), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_size != MEDIUM:
                os.ftruncate(fd, MEDIUM)
        except OSError:
            os.close(fd)
            raise refuse(errno.EBUSY, path) from None
        return fd

    def ioctl(self, fd: int, request: int, argument: bytes) -> None:
        """Do an ioctl of a disk; other nodes are those of :class:`.DflNodes`."""
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.dirname(path) != self._file(_MEDIA):
            super().ioctl(fd, request, argument)
        elif request == _DISCARD:
            drive = os.path.basename(path).rpartition("-")[0]
            with self._tree.transaction() as tree:
                address = _with_drive(tree, drive)
                fault = faults.take(tree, address, "discard")
                spec = _spec(tree, address)
            if fault is None:
                os.pwrite(fd, (b"\0" if spec.dlfeat != 2 else b"\xff") * MEDIUM, 0)
        elif request not in (_FLUSH_BUFFERS, _RESCAN):
            raise refuse(errno.ENOTTY, path)

    # -- events around the kernel --------------------------------------------

    def claim(self, disk: str, client: str = "a journal") -> None:
        """Let a client inside the kernel open a disk or a partition exclusively.

        It leaves no trace but the EBUSY that other exclusive opens get.

        :param disk: such as ``nvme0n1`` or ``sda2``.
        :raises OSError: ENXIO: no such disk; EBUSY: it is claimed.
        """
        with self._tree.transaction() as tree:
            holders.claim(tree, disk, client)

    def unclaim(self, disk: str) -> None:
        """Let the client close the disk."""
        with self._tree.transaction() as tree:
            holders.unclaim(tree, disk)

    def lost(self) -> tuple[str, ...]:
        """Return the clients whose disks have left the host under them."""
        with self._tree.transaction() as tree:
            return holders.lost(tree)

    def write_medium(self, address: object, number: int, data: bytes) -> None:
        """Let a guest write the beginning of a namespace of a function."""
        with self._tree.transaction() as tree:
            path = self._file(_medium(tree, str(address), number))
            _change(tree, str(address), is_written=True)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data.ljust(MEDIUM, b"\0"))

    def read_medium(self, address: object, number: int) -> bytes:
        """Return the contents of a namespace of a function."""
        with self._tree.transaction() as tree:
            path = self._file(_medium(tree, str(address), number))
        if not os.path.exists(path):
            return bytes(MEDIUM)
        with open(path, "rb") as file:
            return file.read()

    def advance_sanitize(self, address: object, part: float) -> bool:
        """Let a sanitize operation come this far; 1.0 ends it.

        :returns: whether one was running.
        """
        with self._tree.transaction() as tree:
            pf = _primary(tree, str(address))
            if _state(tree, pf).sanitize != _RUNNING:
                return False
            if part < 1:
                _change(tree, pf, progress=int(part * 0x10000))
                return True
        # First the media: a process may be killed between the two.
        self._fill(self._drive(pf), None, bytes(MEDIUM))
        with self._tree.transaction() as tree:
            _change(tree, pf, sanitize=1, progress=0xFFFF, is_written=False)
        return True

    def fail_sanitize(self, address: object) -> None:
        """Let a running sanitize operation fail."""
        with self._tree.transaction() as tree:
            _change(tree, str(address), sanitize=3)

    def wear_out(
        self,
        address: object,
        warning: int = 0,
        *,
        media_errors: int = 0,
        spare: int = 100,
        used: int = 0,
    ) -> None:
        """Let a controller report this health; that of a new drive by default."""
        with self._tree.transaction() as tree:
            health = {"media_errors": media_errors, "spare": spare, "used": used}
            _change(tree, str(address), warning=warning, **health)

    # -- within --------------------------------------------------------------

    def _file(self, path: str) -> str:
        return os.path.join(self.root, path)

    def _address_of(self, path: str, device: str) -> str:
        name = os.path.basename(path)
        with self._tree.transaction() as tree:
            if not tree.exists(f"sys/class/nvme/{name}"):
                raise refuse(errno.ENOENT, path)
            if tree.read(f"sys/class/nvme/{name}/dev").strip() != device:
                raise refuse(errno.ENXIO, path)
            return _function_of(tree, name)

    def _answer(
        self, address: str, opcode: int, number: int, cdw10: int, cdw11: int
    ) -> bytes | int:
        with self._tree.transaction() as tree:
            spec, state = _spec(tree, address), _state(tree, address)
        if opcode == _LOG:
            return _log_page(spec, state, cdw10 & 0xFF)
        if opcode == _IDENTIFY:
            return self._identify(address, spec, cdw10 & 0xFF, number)
        if opcode == _MANAGE and _virtualizes(spec):
            with self._tree.transaction() as tree:
                return nvme_resources.manage(tree, address, cdw10, cdw11)
        if state.sanitize == _RUNNING:
            return _SANITIZING
        if spec.refusal and opcode in (_FORMAT, _SANITIZE):
            return spec.refusal
        if opcode == _FORMAT:
            return self._format(address, spec, number, cdw10 >> 9 & 0b111)
        if opcode == _SANITIZE and spec.sanicap:
            with self._tree.transaction() as tree:
                _change(tree, address, sanitize=_RUNNING, progress=0, action=cdw10 & 7)
            return 0
        return _INVALID_OPCODE

    def _format(
        self, address: str, spec: NvmeSpec, number: int, secure_erase: int
    ) -> int:
        if number not in spec.namespaces:
            return _INVALID_FIELD
        with self._tree.transaction() as tree:
            pf = _primary(tree, address)
        # Without the old key, the data reads as noise.
        content = os.urandom(MEDIUM) if secure_erase == 2 else bytes(MEDIUM)
        self._fill(self._drive(pf), None if spec.fna & 0b11 else number, content)
        return 0

    def _drive(self, address: str) -> str:
        with self._tree.transaction() as tree:
            return _drive(tree, address)

    def _fill(self, drive: str, number: int | None, content: bytes) -> None:
        """Erase one namespace of a subsystem, or all."""
        os.makedirs(self._file(_MEDIA), exist_ok=True)
        for name in os.listdir(self._file(_MEDIA)):
            of, _, its_number = name.rpartition("-")
            if of == drive and number in (None, int(its_number)):
                with open(self._file(f"{_MEDIA}/{name}"), "r+b") as file:
                    file.write(content)

    def _identify(
        self, address: str, spec: NvmeSpec, cns: int, number: int
    ) -> bytes | int:
        with self._tree.transaction() as tree:
            pf = _primary(tree, address)
            primary = _spec(tree, pf)
            vfs = {vf: i + 1 for i, vf in enumerate(functions.vfs(tree, pf))}
        if cns == 0x00:
            return _namespace(spec, number)
        if cns == 0x01:
            return _controller(spec, vfs.get(address, 0), self._drive(address))
        if cns == 0x02:
            return struct.pack(f"<{len(spec.namespaces)}I", *spec.namespaces)
        if cns in (0x14, 0x15) and address == pf and _virtualizes(primary):
            with self._tree.transaction() as tree:
                return _of_vfs(tree, pf, cns)
        if not primary.oacs & MANAGES or address != pf:
            return _INVALID_FIELD
        return _of_subsystem(primary, cns, number, len(vfs))


def _of_subsystem(spec: NvmeSpec, cns: int, number: int, vfs: int) -> bytes | int:
    """Return a list that only a controller with Namespace Management has."""
    private = dict(enumerate(spec.private, 1))
    if cns == 0x10:
        every = {*spec.namespaces, *spec.unattached, *sum(spec.private, ())}
        return struct.pack(f"<{len(every)}I", *sorted(every))
    if cns == 0x12:
        attached = [0] if number in spec.namespaces else []
        attached += [vf for vf, own in private.items() if number in own]
        attached += list(spec.others[:1]) if number in spec.shared else []
        return _controller_list(attached)
    if cns == 0x13:
        return _controller_list([0, *range(1, vfs + 1), *spec.others])
    return _INVALID_FIELD


def _virtualizes(spec: NvmeSpec) -> bool:
    return bool(spec.oacs & VIRTUALIZES or spec.vq_flexible)


def _of_vfs(tree: Transaction, pf: str, cns: int) -> bytes:
    """Return what a primary controller reports of its VFs."""
    if cns == 0x14:
        return nvme_resources.capabilities(tree, pf)
    found = nvme_resources.secondaries(tree, pf)
    entries = (
        struct.pack("<HHB3xHHH18x", vf, 0, each.is_online, vf, *each.resources)
        for vf, each in enumerate(found, 1)
    )
    return bytes([len(found)]).ljust(32, b"\0") + b"".join(entries)


def _controller_list(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers) + 1}H", len(numbers), *sorted(numbers))


def _controller(spec: NvmeSpec, number: int, serial: str) -> bytes:
    data = bytearray(4096)
    data[4:24] = serial.encode("ascii").ljust(20)
    data[24:64] = b"os_acc".ljust(40)
    data[76] = spec.cmic
    struct.pack_into("<H", data, 78, number)
    struct.pack_into("<H", data, 256, spec.oacs)
    data[296:312] = spec.unvmcap.to_bytes(16, "little")
    struct.pack_into("<I", data, 328, spec.sanicap)
    struct.pack_into("<H", data, 520, spec.oncs)
    data[524] = spec.fna
    return bytes(data)


def _namespace(spec: NvmeSpec, number: int) -> bytes:
    data = bytearray(4096)
    if number in spec.namespaces:
        struct.pack_into("<QQQ", data, 0, *(MEDIUM // 512,) * 3)
        data[30] = number in spec.shared
        data[33] = spec.dlfeat
        struct.pack_into("<I", data, 128, 9 << 16)
    return bytes(data)


def _log_page(spec: NvmeSpec, state: SubsystemState, number: int) -> bytes | int:
    data = bytearray(512)
    if number == 0x02:
        data[0], data[3:6] = state.warning, bytes((state.spare, 10, state.used))
        struct.pack_into("<Q", data, 160, state.media_errors)
        return bytes(data)
    if number != 0x81 or not spec.sanicap:
        return _INVALID_FIELD
    erased = not state.is_written
    struct.pack_into(
        "<HHI", data, 0, state.progress, state.sanitize | erased << 8, state.action
    )
    return bytes(data)


def _function_of(tree: Transaction, controller: str) -> str:
    return _above(tree, f"sys/class/nvme/{controller}")


def _above(tree: Transaction, device: str) -> str:
    """Return the name of the device above a class device."""
    return os.path.basename(str(tree.follow(f"{tree.follow(device)}/device")))


def _primary(tree: Transaction, address: str) -> str:
    return functions.physfn(tree, address) or address


def _medium(tree: Transaction, address: str, number: int) -> str:
    tree.mkdir(_MEDIA)
    return f"{_MEDIA}/{_drive(tree, address)}-{number}"


def _drive(tree: Transaction, address: str) -> str:
    """Return the name under which a drive keeps its data, wherever it is plugged in."""
    primary = _primary(tree, address)
    return functions.spec(tree, primary).serial or primary


def _with_drive(tree: Transaction, drive: str) -> str:
    """Return the address of a drive."""
    there = tree.list(functions.FUNCTIONS)
    return next(each for each in there if _drive(tree, each) == drive)


def _medium_of(tree: Transaction, disk: str) -> str:
    if not tree.exists(f"sys/class/block/{disk}/nsid"):
        tree.mkdir(_MEDIA)
        return f"{_MEDIA}/{disk}"
    address = _function_of(tree, _above(tree, f"sys/class/block/{disk}"))
    return _medium(tree, address, int(tree.read(f"sys/class/block/{disk}/nsid")))


def _spec(tree: Transaction, address: str) -> NvmeSpec:
    function: FunctionSpec = functions.spec(tree, address)
    return function.nvme or NvmeSpec()


def _state(tree: Transaction, address: str) -> SubsystemState:
    path = f"{_STATES}/{_drive(tree, address)}"
    if not tree.exists(path):
        return SubsystemState()
    return records.load(SubsystemState, tree.read(path))


def _change(tree: Transaction, address: str, **changes: int) -> None:
    state = dataclasses.replace(_state(tree, address), **changes)  # type: ignore[arg-type]
    tree.put(f"{_STATES}/{_drive(tree, address)}", records.dump(state))
