# SPDX-License-Identifier: Apache-2.0

"""The one place where a privileged write reaches the kernel.

Everything else in this package decides *which* attribute; only
:class:`Kernel` opens and writes. The fake kernel of :mod:`os_acc.testing`
takes its place, so that the code above it is the same on both.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat


class Kernel:
    """The running Linux kernel.

    :ivar root: where ``/sys``, ``/proc``, ``/dev`` and ``/run`` are found;
        ``/`` but in tests.
    """

    root: str = "/"

    def path(self, *parts: str) -> str:
        """An absolute path below the root."""
        return os.path.join(self.root, *parts)

    def write(self, path: str, text: str) -> None:
        """Write a sysfs attribute with one ``write(2)``.

        :raises OSError: as the kernel refused it.
        """
        # Without O_CREAT a missing attribute is ENOENT, not EACCES.
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._check_is_sysfs(fd, path)
            os.write(fd, text.encode("ascii"))
        except OSError as error:
            # write(2) does not say which attribute; whoever reads the error
            # has to know.
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(fd)

    def read(self, path: str) -> str:
        """Read a small attribute.

        :raises OSError: as the kernel refused it.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return os.read(fd, 4096).decode("utf-8", "replace")
        except OSError as error:
            # Nor does read(2).
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(fd)

    def probe_vfio_group(self, group: int) -> int:
        """Open and close ``/dev/vfio/<group>``; 0, or the error number.

        EBUSY: a process holds the group or one of its devices. Opening the
        group resets nothing (drivers/vfio/group.c).
        """
        try:
            fd = os.open(
                self.path("dev/vfio", str(group)),
                os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW,
            )
        except OSError as error:
            return error.errno or errno.EIO
        os.close(fd)
        return 0

    def open_exclusive(self, path: str, device: str) -> int:
        """Open a node which nobody has open, and nobody can open meanwhile.

        Drivers have to support it: those of drivers/fpga do for O_EXCL.

        :param device: its device number as sysfs shows it, ``major:minor``.
        :raises OSError: EBUSY, somebody has it open; ENXIO, it is the node of
            something else.
        """
        # First without opening: to open the wrong device may have an effect.
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(place)
            number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
            if not stat.S_ISCHR(found.st_mode) or number != device:
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), path)
            flags = os.O_RDWR | os.O_EXCL | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{place}", flags)
        finally:
            os.close(place)

    def ioctl(self, fd: int, request: int, argument: bytes) -> None:
        """Have a driver do something with a node that is open (ioctl(2)).

        :param argument: the structure or number that the request points to.
        :raises OSError: as the driver refused it.
        """
        fcntl.ioctl(fd, request, argument)

    def _check_is_sysfs(self, fd: int, path: str) -> None:
        # Every sysfs attribute lives on the one device number of sysfs.
        if os.fstat(fd).st_dev != os.stat(self.path("sys")).st_dev:
            raise OSError(errno.EINVAL, "not a sysfs attribute", path)


#: The kernel that privileged code talks to; tests put a fake one here.
current: Kernel = Kernel()
