# SPDX-License-Identifier: Apache-2.0

"""Hold a device through VFIO without a hypervisor, and move its state by ioctl.

Specification: include/uapi/linux/vfio.h, VFIO_DEVICE_FEATURE_MIG_DEVICE_STATE.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from typing import Self

from . import sysfs

_TYPE1V2 = 3
# _IO(';', 100 + n)
_SET_IOMMU, _SET_CONTAINER, _GET_DEVICE_FD = 0x3B66, 0x3B68, 0x3B6A
_FEATURE = 0x3B75
_GET, _SET = 1 << 16, 1 << 17
_MIGRATION, _DEVICE_STATE, _DATA_SIZE = 1, 2, 9
#: More than the state of any device here.
_LONGEST = 1 << 20


class State(enum.IntEnum):
    """States of a device: ``enum vfio_device_mig_state``."""

    STOP = 1
    RUNNING = 2
    STOP_COPY = 3
    RESUMING = 4


class VfioDevice:
    """A device that this process holds through its group, as QEMU does.

    :param name: the address of a function, or the UUID of a mediated device.
    :raises OSError: EBUSY, a process holds it.
    """

    def __init__(self, name: str) -> None:
        with contextlib.ExitStack() as files:
            container = files.enter_context(_opened("/dev/vfio/vfio"))
            group = files.enter_context(_opened(str(sysfs.vfio_node(name))))
            fcntl.ioctl(group, _SET_CONTAINER, struct.pack("i", container))
            fcntl.ioctl(container, _SET_IOMMU, _TYPE1V2)
            text = bytearray(name.encode() + b"\0")
            self._device = fcntl.ioctl(group, _GET_DEVICE_FD, text)
            files.callback(os.close, self._device)
            self._files = files.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._files.close()

    def read(self, offset: int) -> int:
        """Return a byte of BAR 0 of a mediated device of mtty."""
        return os.pread(self._device, 1, offset)[0]

    def write(self, offset: int, value: int) -> None:
        """Write a byte of BAR 0 of a mediated device of mtty."""
        os.pwrite(self._device, bytes([value]), offset)

    def feature(self, number: int) -> int:
        """Return a feature of one number; 0: the driver has none.

        :param number: ``VFIO_DEVICE_FEATURE_*``.
        """
        request = bytearray(struct.pack("=IIQ", 16, _GET | number, 0))
        try:
            fcntl.ioctl(self._device, _FEATURE, request)
        except OSError as error:
            if error.errno != errno.ENOTTY:
                raise
            return 0
        return int(struct.unpack_from("=Q", request, 8)[0])

    def flags(self) -> int:
        """Return ``VFIO_MIGRATION_*``; 0: the driver cannot migrate the device."""
        return self.feature(_MIGRATION)

    def predicted_size(self) -> int:
        """Return the driver's estimate of the size of the state."""
        return self.feature(_DATA_SIZE)

    def enter(self, state: State) -> int:
        """Enter a state; return the descriptor for its data, or -1."""
        request = bytearray(struct.pack("=IIIi", 16, _SET | _DEVICE_STATE, state, -1))
        fcntl.ioctl(self._device, _FEATURE, request)
        return int(struct.unpack_from("=i", request, 12)[0])

    def save(self) -> bytes:
        """Stop the device, and return its state, read to the end."""
        with open(self.enter(State.STOP_COPY), "rb", buffering=0) as data:
            found = b"".join(iter(lambda: data.read(_LONGEST), b""))
        self.enter(State.STOP)
        return found

    def load(self, state: bytes) -> None:
        """Let the device resume from a state."""
        with open(self.enter(State.RESUMING), "wb", buffering=0) as data:
            data.write(state)
        self.enter(State.STOP)
        self.enter(State.RUNNING)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
