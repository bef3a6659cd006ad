# SPDX-License-Identifier: Apache-2.0

"""The kernel's PCI attributes, written by hand: what os_acc is held against."""

from __future__ import annotations

import os
from pathlib import Path

BUS = Path("/sys/bus/pci")
DEVICES = BUS / "devices"


def store(path: Path, text: str) -> None:
    """Write an attribute with one ``write(2)``.

    :raises OSError: as the kernel refused it.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def read(bdf: str, name: str) -> str:
    """An attribute of a function, without the newline."""
    return (DEVICES / bdf / name).read_text(encoding="ascii").strip()


def write(bdf: str, name: str, text: str) -> None:
    """Write an attribute of a function.

    :raises OSError: as the kernel refused it.
    """
    store(DEVICES / bdf / name, text)


def exists(bdf: str) -> bool:
    """Whether the function is on the bus."""
    return (DEVICES / bdf).exists()


def driver(bdf: str) -> str | None:
    """The name of the bound driver."""
    link = DEVICES / bdf / "driver"
    return link.readlink().name if link.is_symlink() else None


def override(bdf: str) -> str | None:
    """``driver_override``, None where it is unset."""
    text = read(bdf, "driver_override")
    return None if text == "(null)" else text


def iommu_group(bdf: str) -> int:
    """The number of the function's IOMMU group."""
    return int((DEVICES / bdf / "iommu_group").readlink().name)


def group_members(bdf: str) -> frozenset[str]:
    """Every function of the same IOMMU group, itself too."""
    return frozenset(os.listdir(DEVICES / bdf / "iommu_group" / "devices"))


def numa_node(bdf: str) -> int:
    """The NUMA node; -1 is unknown."""
    return int(read(bdf, "numa_node"))


def vfio_node(bdf: str) -> Path:
    """The character device of the function's group."""
    return Path("/dev/vfio") / str(iommu_group(bdf))


def virtual_functions(pf: str) -> tuple[str, ...]:
    """The addresses of the VFs of ``pf``, in the order of their index."""
    links = sorted((DEVICES / pf).glob("virtfn*"), key=lambda link: int(link.name[6:]))
    return tuple(link.readlink().name for link in links)


def unbind(bdf: str) -> None:
    """Take the driver away, if there is one. Blocks while vfio is held."""
    if driver(bdf) is not None:
        write(bdf, "driver/unbind", bdf)


def rebind(bdf: str, driver_name: str | None) -> None:
    """Let ``driver_name`` have the function; None: whichever matches it."""
    write(bdf, "driver_override", driver_name or "\n")
    unbind(bdf)
    store(BUS / "drivers_probe", bdf)
