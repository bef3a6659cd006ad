# SPDX-License-Identifier: Apache-2.0

"""Use the kernel's DFL drivers by hand, as the reference for os_acc."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

from . import kernel_modules, sysfs
from .dfl_card import Card

DRIVER = sysfs.BUS / "drivers" / "dfl-pci"
#: The interface id of the two cards, and the function that a card has after
#: power-on.
INTERFACE = uuid.UUID("9926ab6d-6c92-5a68-aabc-a7d84c545738")
OTHER_INTERFACE = uuid.UUID("69528db6-eb31-577a-8c36-68f9faa081f6")
FIRST_FUNCTION = uuid.UUID("d8424dc4-a4a3-4413-8fd9-4e9a4bc0a3a1")
#: QEMU's bochs-display, whose BAR 0 is plain memory.
PRODUCT = "1234 1111"

#: <linux/fpga-dfl.h>
GET_API_VERSION, PORT_RESET, PORT_PR = 0xB600, 0xB640, 0xB680
_PORT_PR = struct.Struct("<IIIIQ")


def load() -> None:
    """Insert the modules, and bind the prepared cards to dfl-pci."""
    for name in kernel_modules.MODULES:
        _insert(name)
    sysfs.store(DRIVER / "new_id", PRODUCT)


def _insert(name: str) -> None:
    module = kernel_modules.module(name, os.uname().release)
    subprocess.run(["insmod", module], check=True)


@contextlib.contextmanager
def preceded_by(module: str, *bdfs: str) -> Iterator[None]:
    """Load another driver of these cards, and let the bus probe it before dfl-pci.

    The cards are bound to dfl-pci at the beginning and at the end.
    """
    subprocess.run(["rmmod", "dfl-pci"], check=True)
    for bdf in bdfs:
        sysfs.write(bdf, "driver_override", DRIVER.name)
    subprocess.run(["modprobe", module], check=True)
    _insert("dfl-pci")
    sysfs.store(DRIVER / "new_id", PRODUCT)
    for bdf in bdfs:
        sysfs.write(bdf, "driver_override", "\n")
    yield
    subprocess.run(["modprobe", "--remove", module], check=True)


def power_on(card: Card) -> None:
    """Power a card on, and let the driver probe it."""
    sysfs.write(card.bdf, "driver_override", "\n")
    sysfs.unbind(card.bdf)
    card.power_on_function(FIRST_FUNCTION)
    bind(card.bdf)


def bind(bdf: str) -> None:
    """Bind a card without a driver to dfl-pci."""
    sysfs.store(sysfs.BUS / "drivers_probe", bdf)


def fme(bdf: str) -> Path:
    """Return the platform device of the card's management engine."""
    (found,) = (sysfs.DEVICES / bdf).glob("fpga_region/region*/dfl-fme.*")
    return found


def port(bdf: str, number: int = 0) -> Path:
    """Return the platform device of one of its ports."""
    found = (sysfs.DEVICES / bdf).glob("fpga_region/region*/dfl-port.*")
    (match,) = (each for each in found if read(each / "id") == str(number))
    return match


def afu_id(bdf: str, number: int = 0) -> str:
    """Return the function id that a port reports.

    :raises OSError: as raised by the kernel.
    """
    return read(port(bdf, number) / "afu_id")


def compat_ids(bdf: str) -> set[str]:
    """Return the interface ids that the card's regions report."""
    regions = fme(bdf).glob("dfl-fme-region.*/fpga_region/region*")
    return {read(each / "compat_id") for each in regions}


def manager(bdf: str) -> Path:
    """Return the card's FPGA manager."""
    (found,) = fme(bdf).glob("dfl-fme-mgr.*/fpga_manager/fpga*")
    return found


def state(bdf: str) -> tuple[str, str]:
    """Return the manager's ``state`` and ``status``."""
    return read(manager(bdf) / "state"), read(manager(bdf) / "status")


def node(device: Path) -> Path:
    """Return the device node of an engine or a port."""
    return Path("/dev", device.name)


def program(bdf: str, payload: bytes, number: int = 0) -> None:
    """Program a region, as any client of the driver would.

    :raises OSError: as raised by the kernel.
    """
    fd = os.open(node(fme(bdf)), os.O_RDWR | os.O_CLOEXEC)
    try:
        port_pr(fd, payload, number)
    finally:
        os.close(fd)


def port_pr(fd: int, payload: bytes, number: int = 0, flags: int = 0) -> None:
    """Call the ioctl DFL_FPGA_FME_PORT_PR."""
    buffer = ctypes.create_string_buffer(payload, len(payload))
    address = ctypes.addressof(buffer)
    size = _PORT_PR.size
    request = _PORT_PR.pack(size, flags, number, len(payload), address)
    fcntl.ioctl(fd, PORT_PR, request)


def read(path: Path) -> str:
    """Read an attribute, without the newline at its end."""
    return path.read_text(encoding="ascii").strip()
