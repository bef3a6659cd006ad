# SPDX-License-Identifier: Apache-2.0

"""Use the kernel's PCI attributes by hand, as the reference for os_acc."""

from __future__ import annotations

import os
from pathlib import Path

BUS = Path("/sys/bus/pci")
DEVICES = BUS / "devices"
MDEVS = Path("/sys/bus/mdev/devices")
#: Of iommufd; only one of the machines has it.
IOMMU = Path("/dev/iommu")


def store(path: Path, text: str) -> None:
    """Write an attribute with one ``write(2)``.

    :raises OSError: as raised by the kernel.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def read(bdf: str, name: str) -> str:
    """Read an attribute of a function, without the newline."""
    return (DEVICES / bdf / name).read_text(encoding="ascii").strip()


def write(bdf: str, name: str, text: str) -> None:
    """Write an attribute of a function.

    :raises OSError: as raised by the kernel.
    """
    store(DEVICES / bdf / name, text)


def exists(bdf: str) -> bool:
    return (DEVICES / bdf).exists()


def driver(bdf: str) -> str | None:
    try:
        return (DEVICES / bdf / "driver").readlink().name
    except FileNotFoundError:
        return None


def override(bdf: str) -> str | None:
    """Return ``driver_override``, or None if it is unset."""
    text = read(bdf, "driver_override")
    return None if text == "(null)" else text


def directory(name: str) -> Path:
    """Return the directory of a function, or of a mediated device by its UUID."""
    return (DEVICES if ":" in name else MDEVS) / name


def iommu_group(name: str) -> int:
    """Return the number of the IOMMU group of a function or a mediated device."""
    return int((directory(name) / "iommu_group").readlink().name)


def group_members(bdf: str) -> frozenset[str]:
    """Return every function of the same IOMMU group, including this one."""
    return frozenset(os.listdir(DEVICES / bdf / "iommu_group" / "devices"))


def numa_node(bdf: str) -> int:
    """Return the NUMA node; -1 is unknown."""
    return int(read(bdf, "numa_node"))


def vfio_node(name: str) -> Path:
    """Return the character device of the group, as for :func:`iommu_group`."""
    return Path("/dev/vfio") / str(iommu_group(name))


def vfio_nodes(name: str) -> frozenset[Path]:
    """Return the nodes that a guest opens: with iommufd, that of the device itself."""
    if not IOMMU.exists():
        return frozenset({vfio_node(name)})
    (cdev,) = (directory(name) / "vfio-dev").iterdir()
    return frozenset({IOMMU, Path("/dev/vfio/devices", cdev.name)})


def virtual_functions(pf: str) -> tuple[str, ...]:
    """Return the addresses of the VFs of ``pf``, in the order of their index."""
    links = sorted((DEVICES / pf).glob("virtfn*"), key=lambda link: int(link.name[6:]))
    return tuple(link.readlink().name for link in links)


def unbind(bdf: str) -> None:
    """Unbind the driver, if there is one. Blocks while vfio is held."""
    if driver(bdf) is not None:
        write(bdf, "driver/unbind", bdf)


def rebind(bdf: str, driver_name: str | None) -> None:
    """Bind the function to ``driver_name``; None: to any matching driver."""
    write(bdf, "driver_override", driver_name or "\n")
    unbind(bdf)
    store(BUS / "drivers_probe", bdf)
