# SPDX-License-Identifier: Apache-2.0

"""Where the kernel's DFL driver shows an FPGA card's parts (drivers/fpga).

:mod:`os_acc.host.dfl` has the layout of sysfs. What it says to a caller is
read here once more, where it decides what is written to.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from collections.abc import Iterator

from os_acc.exception import InvalidPciAddress
from os_acc.objects.dfl import DRIVER, FME, MANAGER, PORT, REGION, canonical
from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, kernel


@dataclasses.dataclass(frozen=True, slots=True)
class DflPortNode:
    """A port that dfl-pci has.

    :ivar function: the card, or the VF that it was released for.
    :ivar path: of its device in sysfs.
    """

    function: PciAddress
    path: str


def fme(card: PciAddress) -> str | None:
    """The directory of a card's FPGA Management Engine; None: it has none."""
    return next(_below(card, FME), None)


def own_ports(function: PciAddress) -> list[str]:
    """The directories of the ports that a function itself has."""
    return list(_below(function, PORT))


def port(card: PciAddress, number: int) -> DflPortNode | None:
    """The port of this number, on the card or on a VF of it."""
    for function in (card, *vfs(card)):
        for path in own_ports(function):
            if _read(path, "id") == str(number):
                return DflPortNode(function, path)
    return None


def interface_id(fme: str) -> str | None:
    """``compat_id`` as canonical UUID; None: there is none, or no one.

    All regions of a card show that of their manager (fme_region_probe()).
    """
    found = set()
    for region in _class_devices(fme, REGION, "fpga_region"):
        try:
            found.add(canonical(_read(region, "compat_id")))
        except FileNotFoundError:
            found.add(None)
    return found.pop() if len(found) == 1 else None


def status(fme: str) -> str:
    """What the FPGA manager reports of the last programming, line by line."""
    for manager in _class_devices(fme, MANAGER, "fpga_manager"):
        return _read(manager, "status")
    return ""


def function_id(port: str) -> str | None:
    """``afu_id`` as canonical UUID; None: what is there is none.

    :raises OSError: EBUSY, the port is held in reset (afu_id_show()).
    """
    return canonical(_read(port, "afu_id"))


def open_node(device: str) -> int:
    """Open the node of a port or FME, which nobody else may have open.

    :raises OSError: EBUSY, somebody has it open; as the kernel refuses it.
    """
    path = kernel.current.path("dev", os.path.basename(device))
    return kernel.current.open_exclusive(path, _read(device, "dev"))


def held(function: PciAddress) -> str | None:
    """The node of a function which somebody has open; None: nobody has any.

    dfl-pci leaves a function whoever has its nodes open. Who closes that of a
    port afterwards is killed by the kernel (afu_release() resets the port,
    by registers that are not mapped any more).

    :raises OSError: the kernel does not tell.
    """
    if functions.driver(function) != DRIVER:
        return None
    for device in (*own_ports(function), *_below(function, FME)):
        try:
            os.close(open_node(device))
        except FileNotFoundError:
            # Without a node nobody can open it.
            continue
        except OSError as error:
            if error.errno == errno.EBUSY:
                return os.path.basename(device)
            raise
    return None


def vfs(card: PciAddress) -> Iterator[PciAddress]:
    """The VFs that a card has now."""
    place = functions.directory(card)
    for name in sorted(_list(place)):
        if name.startswith("virtfn"):
            try:
                link = os.readlink(os.path.join(place, name))
                yield PciAddress.parse(os.path.basename(link))
            except (FileNotFoundError, InvalidPciAddress):
                continue


def _below(function: PciAddress, pattern: re.Pattern[str]) -> Iterator[str]:
    place = os.path.join(functions.directory(function), "fpga_region")
    for region in _list(place):
        above = os.path.join(place, region)
        yield from (
            os.path.join(above, name)
            for name in _list(above)
            if pattern.fullmatch(name)
        )


def _class_devices(fme: str, pattern: re.Pattern[str], kind: str) -> Iterator[str]:
    for name in _list(fme):
        if pattern.fullmatch(name):
            above = os.path.join(fme, name, kind)
            yield from (os.path.join(above, own) for own in _list(above))


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
            return []
        raise


def _read(directory: str, name: str) -> str:
    return kernel.current.read(os.path.join(directory, name)).strip()
