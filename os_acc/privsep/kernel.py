# SPDX-License-Identifier: Apache-2.0

"""The only module where a privileged write reaches the kernel.

All other modules of this package decide *which* attribute; only :class:`Kernel`
opens and writes. The fake kernel of :mod:`os_acc.testing` replaces it, so that
the code above is the same on both.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat


class Kernel:
    """The running Linux kernel.

    :ivar root: parent directory of ``/sys``, ``/proc``, ``/dev`` and ``/run``;
        ``/`` except in tests.
    """

    root: str = "/"

    def path(self, *parts: str) -> str:
        """Return an absolute path below the root."""
        return os.path.join(self.root, *parts)

    def write(self, path: str, text: str) -> None:
        """Write a sysfs attribute with one ``write(2)``.

        :raises OSError: the kernel refused it.
        """
        # Without O_CREAT a missing attribute is ENOENT, not EACCES.
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._check_is_sysfs(fd, path)
            os.write(fd, text.encode("ascii"))
        except OSError as error:
            # write(2) does not name the attribute, which callers report.
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(fd)

    def read(self, path: str) -> str:
        """Read a small attribute.

        :raises OSError: the kernel refused it.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return os.read(fd, 4096).decode("utf-8", "replace")
        except OSError as error:
            # Neither does read(2).
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(fd)

    def probe_vfio_group(self, group: int) -> int:
        """Open and close ``/dev/vfio/<group>``; return 0 or the error number.

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
        """Open a device node exclusively, until it is closed.

        The driver has to support O_EXCL, as those of drivers/fpga do.

        :param device: its device number as in sysfs, ``major:minor``.
        :raises OSError: EBUSY, the node is open elsewhere; ENXIO, the node
            belongs to another device.
        """
        # O_PATH first: opening the wrong device may have side effects.
        path_fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(path_fd)
            number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
            if not stat.S_ISCHR(found.st_mode) or number != device:
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), path)
            flags = os.O_RDWR | os.O_EXCL | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{path_fd}", flags)
        finally:
            os.close(path_fd)

    def ioctl(self, fd: int, request: int, argument: bytes) -> None:
        """Send a request to the driver of an open node (ioctl(2)).

        :param argument: the structure or number to which the request points.
        :raises OSError: the driver refused it.
        """
        fcntl.ioctl(fd, request, argument)

    def _check_is_sysfs(self, fd: int, path: str) -> None:
        # All sysfs attributes share the device number of sysfs.
        if os.fstat(fd).st_dev != os.stat(self.path("sys")).st_dev:
            raise OSError(errno.EINVAL, "not a sysfs attribute", path)


#: The kernel that privileged code uses; tests replace it by a fake one.
current: Kernel = Kernel()
