# SPDX-License-Identifier: Apache-2.0

"""VFIO's hot reset, as the privileged helper requests it, on the real kernel."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.privsep import pci_functions
from os_acc.privsep.kernel import Kernel

from . import sysfs
from .machine import Machine

#: The low byte of the horizontal resolution, in BAR 2 of QEMU's display
#: (docs/specs/standard-vga.rst): a value stays until a reset.
_RESOLUTION = 0x500 + 2 * 1
#: The command register, and its bit for memory.
_COMMAND, _MEMORY = 4, b"\x02\x00"


@pytest.fixture
def pair(the_machine: Machine) -> Iterator[tuple[str, str]]:
    """Bind both functions of the card to vfio-pci."""
    for each in the_machine.pair:
        sysfs.rebind(each, "vfio-pci")
    yield the_machine.pair
    for each in the_machine.pair:
        sysfs.rebind(each, None)


def resolution(display: str, text: bytes = b"") -> bytes:
    """Return a byte of a register of a display, after it has been written."""
    # vfio-pci lets an unused function sleep, and leaves its memory off.
    sysfs.write(display, "power/control", "on")
    with open(sysfs.directory(display) / "config", "r+b", buffering=0) as config:
        os.pwrite(config.fileno(), _MEMORY, _COMMAND)
    fd = os.open(sysfs.directory(display) / "resource2", os.O_RDWR)
    try:
        with mmap.mmap(fd, 0x1000) as registers:
            if text:
                registers[_RESOLUTION : _RESOLUTION + 1] = text
            return registers[_RESOLUTION : _RESOLUTION + 1]
    finally:
        os.close(fd)


def reset(function: str) -> None:
    Kernel().hot_reset(sysfs.iommu_group(function), function)


def test_vfio_pci_itself_migrates_no_device(pair: tuple[str, str]) -> None:
    """os_acc does not ask it, which resets the device."""
    function, _other = pair
    group = sysfs.iommu_group(function)
    assert Kernel().migration(group, function) == (0, 0)


def test_both_functions_of_a_card_are_reset_with_their_bus(
    pair: tuple[str, str],
) -> None:
    display, second = pair
    # Found first, while it was alone on the bus: the method has stopped working.
    assert sysfs.read(display, "reset_method") == "bus"
    with pytest.raises(OSError, match="ioctl") as refused:
        sysfs.write(display, "reset", "1")
    assert refused.value.errno == errno.ENOTTY
    assert not (sysfs.directory(second) / "reset").exists()
    assert pci_functions.resets_with_bus(PciAddress.parse(display))
    assert not pci_functions.resets_with_bus(PciAddress.parse(second))
    assert resolution(display, b"\x40") == b"\x40"
    assert resolution(display) == b"\x40"
    reset(display)
    assert resolution(display) == b"\0"


def test_a_function_that_is_not_on_vfio_prevents_the_reset(
    pair: tuple[str, str],
) -> None:
    display, second = pair
    sysfs.unbind(second)
    with pytest.raises(OSError, match="Invalid") as refused:
        reset(display)
    assert refused.value.errno == errno.EINVAL


def test_a_root_bus_has_no_reset(the_machine: Machine) -> None:
    sysfs.rebind(the_machine.edu, "vfio-pci")
    with pytest.raises(OSError, match="device") as refused:
        reset(the_machine.edu)
    assert refused.value.errno == errno.ENODEV
    sysfs.rebind(the_machine.edu, None)
