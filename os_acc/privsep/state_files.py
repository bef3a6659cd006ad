# SPDX-License-Identifier: Apache-2.0

"""Small files in which a call of the helper leaves its state for later calls."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from typing import Final, Self

from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel

#: Directory of these files and of the locks: owned by root, removed at reboot.
LOCKS: Final = "run/os_acc"
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclasses.dataclass(frozen=True, slots=True)
class StateFile:
    """A file that is written under the lock of a device.

    :ivar place: its path below the root of :class:`.kernel.Kernel`.
    """

    place: str

    @classmethod
    def beside_lock(cls, address: PciAddress, suffix: str) -> Self:
        """Return a file of a function, which lasts until a reboot."""
        return cls(f"{LOCKS}/{address}.{suffix}")

    @property
    def path(self) -> str:
        """The absolute path."""
        return kernel.current.path(self.place)

    def read(self) -> str | None:
        """Return the text; None: there is no such file."""
        try:
            return kernel.current.read(self.path).strip()
        except FileNotFoundError:
            return None

    def create(self, text: str) -> None:
        """Create the file; a killed worker leaves it empty, or complete.

        :raises OSError: EEXIST: it exists; ENOSPC: there is no space for it.
        """
        self._write(self.path, text, os.O_EXCL, durable=False)

    def replace(self, text: str, *, durable: bool = False) -> None:
        """Create or replace the file; a killed worker leaves the old or the new text.

        :param durable: also after a loss of power; ``/run`` is empty then anyway.
        :raises OSError: it cannot be written, for lack of space for example.
        """
        directory = os.path.dirname(self.path)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        fresh = f"{self.path}.new"
        self._write(fresh, text, os.O_TRUNC, durable=durable)
        os.rename(fresh, self.path)
        if durable:
            fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def remove(self) -> None:
        """Remove the file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _write(self, path: str, text: str, flag: int, *, durable: bool) -> None:
        data = text.encode("ascii")
        fd = os.open(path, _FLAGS | flag, 0o600)
        try:
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
