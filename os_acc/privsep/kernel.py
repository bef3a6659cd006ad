# SPDX-License-Identifier: Apache-2.0

"""All paths that root opens to write: of the kernel, and of the helper's own files.

All other modules of this package decide *which* attribute; only :class:`Kernel`
opens and writes, attributes of sysfs and nodes of devices. The fake kernel of
:mod:`os_acc.testing` replaces it, so that the code above is the same on both. Root's
own files are below :data:`LOCKS` and :data:`COPIES` (:class:`StateFile`).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable, Iterator
from typing import Final

#: Directory of the locks, and of files for a boot: owned by root, removed at reboot.
LOCKS: Final = "run/os_acc"
#: Bytes of the longest file that :meth:`Kernel.read` reads, a page of sysfs.
LONGEST: Final = 4096
#: Directory of the copies of records: only root can write to it, or replace it, since
#: its parent is root's as well.
COPIES: Final = "var/lib/os-acc-privileged"
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

# _IOWR('N', 0x41, struct nvme_passthru_cmd), include/uapi/linux/nvme_ioctl.h.
_NVME_ADMIN_CMD = 0xC048_4E41
# include/uapi/linux/vfio.h.
_VFIO_SET_IOMMU, _VFIO_TYPE1V2_IOMMU = 0x3B66, 3
_VFIO_GROUP_SET_CONTAINER, _VFIO_GROUP_GET_DEVICE_FD = 0x3B68, 0x3B6A
_VFIO_DEVICE_PCI_HOT_RESET = 0x3B71
_VFIO_DEVICE_FEATURE, _FEATURE_GET = 0x3B75, 1 << 16
_VFIO_DEVICE_BIND_IOMMUFD = 0x3B76
_MIGRATION, _MIG_DATA_SIZE = 1, 9
# kcmp(2): its number, by architecture; include/uapi/linux/kcmp.h.
_KCMP: Final = {
    **dict.fromkeys(("aarch64", "riscv64", "loongarch64"), 272),
    "x86_64": 312,
    "s390x": 343,
    "ppc64le": 354,
}
_KCMP_FILES = 2
_syscall = ctypes.CDLL(None).syscall


class Kernel:
    """The running Linux kernel.

    :ivar root: parent directory of ``/sys``, ``/proc``, ``/dev`` and ``/run``;
        ``/`` except in tests.
    """

    root: str = "/"

    def path(self, *parts: str) -> str:
        """Return an absolute path below the root."""
        return os.path.join(self.root, *parts)

    def names(self, *parts: str) -> list[str]:
        """Return the sorted names in a directory below the root; none without it."""
        try:
            return sorted(os.listdir(self.path(*parts)))
        except OSError as error:
            # ENODEV: its device is being removed.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            return []

    def write(self, path: str, text: str) -> None:
        """Write a sysfs attribute with one ``write(2)``.

        :raises OSError: the kernel refused it.
        """
        # Without O_CREAT a missing attribute is ENOENT, not EACCES.
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # All sysfs attributes share the device number of sysfs.
            if os.fstat(fd).st_dev != os.stat(self.path("sys")).st_dev:
                raise OSError(errno.EINVAL, "not a sysfs attribute", path)
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
            return os.read(fd, LONGEST).decode("utf-8", "replace")
        except OSError as error:
            # Neither does read(2).
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(fd)

    def shares_files(self, task: int, other: int) -> bool:
        """Return whether two tasks have one table of descriptors; False: perhaps."""
        call = _KCMP.get(os.uname().machine)
        if call is None:
            return False
        arguments = (call, task, other, _KCMP_FILES, 0, 0)
        return bool(_syscall(*map(ctypes.c_long, arguments)) == 0)

    def probe_vfio_group(self, group: int) -> int:
        """Open and close ``/dev/vfio/<group>``; return 0 or the error number.

        EBUSY: a process holds the group or one of its devices. Opening the
        group resets nothing (drivers/vfio/group.c).
        """
        path = self.path("dev/vfio", str(group))
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            return error.errno or errno.EIO
        os.close(fd)
        return 0

    def probe_vfio_device(self, name: str) -> int:
        """Bind a device to an iommufd of our own, close both; return 0 or the error.

        vfio_df_ioctl_bind_iommufd() in drivers/vfio/device_cdev.c. EBUSY: a process
        holds the device or its group; one that has only opened the node does not.
        EPERM: another iommufd, or a driver of the host, has the group
        (iommu_device_claim_dma_owner()). ENOENT: the device has no node. The bind opens
        the device as a monitor does: vfio-pci resets a function.

        :param name: of a function, or the UUID of a mediated device.
        """
        try:
            with self._bound_device(name):
                return 0
        except OSError as error:
            # vfio_df_open() answers EINVAL if the device is open through its node.
            is_held = error.errno == errno.EINVAL
            return errno.EBUSY if is_held else error.errno or errno.EIO

    def hot_reset(self, group: int, function: str) -> None:
        """Reset the bus or slot of a function; VFIO must have all functions of it.

        Without a node of the group, the function is bound to an iommufd, which then
        owns its group (vfio_pci_dev_set_hot_reset() in
        drivers/vfio/pci/vfio_pci_core.c).

        :raises OSError: ENODEV, the kernel resets neither (pci_probe_reset_bus());
            EINVAL, one of them is in another group, or not on a VFIO driver; EBUSY, a
            process holds the group; EPERM, the group is not viable.
        """
        with self._vfio_device(group, function) as (owner, device):
            # struct vfio_pci_hot_reset: argsz, flags, count, group_fds.
            owners = () if owner is None else (owner,)
            size = 12 + 4 * len(owners)
            request = struct.pack(f"III{len(owners)}i", size, 0, len(owners), *owners)
            fcntl.ioctl(device, _VFIO_DEVICE_PCI_HOT_RESET, request)

    def migration(self, group: int | None, name: str) -> tuple[int, int]:
        """Ask VFIO whether it can migrate a device; this opens it, which may reset it.

        :param name: of a function, or the UUID of a mediated device.
        :returns: ``VFIO_MIGRATION_*``, 0 if its driver has no migration; and the size
            of its state in bytes, 0 if its driver gives none.
        :raises OSError: EBUSY, a process holds the group; EPERM, it is not viable.
        """
        with self._vfio_device(group, name) as (_owner, device):
            flags, size = _feature(device, _MIGRATION), 0
            with contextlib.suppress(OSError):
                size = _feature(device, _MIG_DATA_SIZE) if flags else 0
            return flags, size

    @contextlib.contextmanager
    def _vfio_device(
        self, group: int | None, name: str
    ) -> Iterator[tuple[int | None, int]]:
        """Open a device; yield the descriptors of its group, or None, and its own."""
        if not os.path.exists(self.path("dev/vfio", str(group))):
            with self._bound_device(name) as fd:
                yield None, fd
            return
        with (
            open(self.path("dev/vfio/vfio"), "r+b", buffering=0) as container,
            open(self.path("dev/vfio", str(group)), "r+b", buffering=0) as owner,
        ):
            number = struct.pack("i", container.fileno())
            fcntl.ioctl(owner, _VFIO_GROUP_SET_CONTAINER, number)
            fcntl.ioctl(container, _VFIO_SET_IOMMU, _VFIO_TYPE1V2_IOMMU)
            text = bytearray(name.encode() + b"\0")
            fd = fcntl.ioctl(owner, _VFIO_GROUP_GET_DEVICE_FD, text)
            with open(fd, "r+b", buffering=0) as device:
                yield owner.fileno(), device.fileno()

    @contextlib.contextmanager
    def _bound_device(self, name: str) -> Iterator[int]:
        """Open a device through its node, and bind it to an iommufd of our own.

        Documentation/driver-api/vfio.rst, "VFIO Device cdev". A node that libvirt has
        given to another user can be opened to read with CAP_DAC_READ_SEARCH alone.
        """
        bus = "pci" if ":" in name else "mdev"
        place = self.path("sys/bus", bus, "devices", name, "vfio-dev")
        # It disappears as soon as the device leaves its driver.
        (device,) = os.listdir(place) or [""]
        number = self.read(os.path.join(place, device, "dev")).strip()
        node = self.path("dev/vfio/devices", device)
        fd = _open_node(node, number, stat.S_ISCHR, os.O_RDONLY)
        with (
            open(fd, "rb", buffering=0),
            open(self.path("dev/iommu"), "r+b", buffering=0) as iommu,
        ):
            # struct vfio_device_bind_iommufd: argsz, flags, iommufd, out_devid.
            request = bytearray(struct.pack("IIiI", 16, 0, iommu.fileno(), 0))
            fcntl.ioctl(fd, _VFIO_DEVICE_BIND_IOMMUFD, request)
            yield fd

    def open_exclusive(self, path: str, device: str) -> int:
        """Open a character device, whose driver supports O_EXCL, until it is closed.

        :param device: its device number as in sysfs, ``major:minor``.
        :raises OSError: EBUSY, it is open elsewhere; ENXIO, it is another device.
        """
        return _open_node(path, device, stat.S_ISCHR, os.O_RDWR | os.O_EXCL)

    def open_disk(
        self, path: str, device: str, flags: int = os.O_RDWR | os.O_DIRECT
    ) -> int:
        """Claim a block device with its partitions until it is closed.

        While it is claimed, it can be neither mounted nor be made part of a volume
        (open(2), O_EXCL of a block device; bd_prepare_to_claim() in block/bdev.c).

        :param flags: by default for reads without the cache, and changes.
        :raises OSError: EBUSY, the host has claimed it or a partition of it; ENXIO,
            it is another device.
        """
        return _open_node(path, device, stat.S_ISBLK, os.O_EXCL | flags)

    def open_controller(self, path: str, device: str) -> int:
        """Open the character device of an NVMe controller.

        While it is open, no other controller gets its number (nvme_free_ctrl() in
        drivers/nvme/host/core.c).

        :raises OSError: ENXIO, it is another device.
        """
        return _open_node(path, device, stat.S_ISCHR, os.O_RDWR)

    def nvme_admin(
        self, fd: int, command: Callable[[int], bytes], size: int
    ) -> tuple[int, bytes]:
        """Send an admin command to an NVMe controller; return its status and data.

        :param fd: of :meth:`open_controller`.
        :param command: returns the structure nvme_passthru_cmd of
            include/uapi/linux/nvme_ioctl.h, given the address of the data.
        :param size: of the data that the controller returns, in bytes.
        :raises OSError: EACCES, no CAP_SYS_ADMIN; EAGAIN, the controller is being
            reset; the controller has left the host.
        """
        data = ctypes.create_string_buffer(size)
        structure = bytearray(command(ctypes.addressof(data)))
        return fcntl.ioctl(fd, _NVME_ADMIN_CMD, structure), data.raw

    def ioctl(self, fd: int, request: int, argument: bytes) -> None:
        """Send a request to the driver of an open node (ioctl(2)).

        :param argument: the structure or number to which the request points.
        """
        fcntl.ioctl(fd, request, argument)


def _feature(device: int, feature: int) -> int:
    """Read a 64-bit feature of a VFIO device; 0: its driver does not have it.

    struct vfio_device_feature: argsz, flags, data.
    """
    request = bytearray(struct.pack("IIQ", 16, _FEATURE_GET | feature, 0))
    try:
        fcntl.ioctl(device, _VFIO_DEVICE_FEATURE, request)
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EINVAL):
            return 0
        raise
    return int(struct.unpack("IIQ", request)[2])


def _open_node(
    path: str, device: str, is_kind: Callable[[int], bool], flags: int
) -> int:
    # O_PATH first: opening the wrong device may have side effects.
    path_fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(path_fd)
        number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
        if not is_kind(found.st_mode) or number != device:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), path)
        return os.open(f"/proc/self/fd/{path_fd}", flags | os.O_CLOEXEC)
    finally:
        os.close(path_fd)


#: The kernel that privileged code uses; tests replace it by a fake one.
current: Kernel = Kernel()


@dataclasses.dataclass(frozen=True, slots=True)
class StateFile:
    """A file that is written under the lock of a device.

    :ivar place: its path below the root of :class:`.kernel.Kernel`.
    """

    place: str

    @property
    def path(self) -> str:
        """The absolute path."""
        return current.path(self.place)

    def read(self) -> str | None:
        """Return the text; None: there is no such file."""
        try:
            return current.read(self.path).strip()
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
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        fresh = f"{self.path}.new"
        self._write(fresh, text, os.O_TRUNC, durable=durable)
        os.rename(fresh, self.path)
        if durable:
            self._sync_directory()

    def put_back(self, restore: Callable[[str], None]) -> None:
        """Restore the value that the file notes, if any, also after a killed worker."""
        if (value := self.read()) is None:
            return
        # Empty: the worker was killed before it changed anything.
        if value:
            restore(value)
        self.remove()

    def remove(self, *, durable: bool = False) -> None:
        """Remove the file, if it is there; ``durable`` as for :meth:`replace`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
            if durable:
                self._sync_directory()

    def _sync_directory(self) -> None:
        directory = os.path.dirname(self.path)
        fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, directory) from error
        finally:
            os.close(fd)

    def _write(self, path: str, text: str, flag: int, *, durable: bool) -> None:
        data = text.encode("ascii")
        fd = os.open(path, _CREATE | flag, 0o600)
        try:
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            if durable:
                os.fsync(fd)
        except OSError as error:
            # Neither write(2) nor fsync(2) names the file.
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(fd)
