# SPDX-License-Identifier: Apache-2.0

"""Parts of an FPGA card, as the kernel's DFL driver shows them (drivers/fpga).

:mod:`os_acc.host.dfl` describes the layout of sysfs. Privileged code reads the
same files again, since they determine the target of writes.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from collections.abc import Iterator

from os_acc.objects.dfl import DRIVER, FME, MANAGER, PORT, REGION, canonical
from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, kernel
from os_acc.privsep.outcome import CallRefused, Outcome


@dataclasses.dataclass(frozen=True, slots=True)
class DflPortNode:
    """A port bound to dfl-pci.

    :ivar function: the card, or the VF to which the port belongs.
    :ivar path: directory of its device in sysfs.
    """

    function: PciAddress
    path: str


def fme(card: PciAddress) -> str | None:
    """Return the directory of a card's FPGA Management Engine, or None."""
    return next(_below(card, FME), None)


def own_ports(function: PciAddress) -> list[str]:
    """Return the directories of the ports of a function itself."""
    return list(_below(function, PORT))


def port(card: PciAddress, number: int) -> DflPortNode | None:
    """Return the port of this number, on the card or on one of its VFs."""
    for function in (card, *functions.vfs(card)):
        for path in own_ports(function):
            if _read(path, "id") == str(number):
                return DflPortNode(function, path)
    return None


def interface_id(fme: str) -> str | None:
    """Return ``compat_id`` as canonical UUID; None if missing or ambiguous.

    All regions of a card show the id of their manager (fme_region_probe()).
    """
    found = set()
    for region in _class_devices(fme, REGION, "fpga_region"):
        try:
            found.add(canonical(_read(region, "compat_id")))
        except FileNotFoundError:
            found.add(None)
    return found.pop() if len(found) == 1 else None


def status(fme: str) -> str:
    """Return the FPGA manager's report on the last programming, line by line."""
    for manager in _class_devices(fme, MANAGER, "fpga_manager"):
        return _read(manager, "status")
    return ""


def function_id(port: str) -> str | None:
    """Return ``afu_id`` as canonical UUID; None if it is not a UUID.

    :raises OSError: EBUSY, the port is held in reset (afu_id_show()).
    """
    return canonical(_read(port, "afu_id"))


def open_node(device: str) -> int:
    """Open the node of a port or FME exclusively.

    :raises OSError: EBUSY, the node is open elsewhere; any other, the kernel
        refused it.
    """
    path = kernel.current.path("dev", os.path.basename(device))
    return kernel.current.open_exclusive(path, _read(device, "dev"))


def check_closed(function: PciAddress) -> None:
    """Check that no node of a function on dfl-pci is open.

    dfl-pci releases a function even while its nodes are open. The kernel kills
    a process that closes a port's node afterwards (afu_release() resets the
    port through registers that are no longer mapped).

    :raises CallRefused: IN_USE, with the name of the node.
    :raises OSError: the kernel gives no information.
    """
    if functions.driver(function) != DRIVER:
        return
    for device in (*own_ports(function), *_below(function, FME)):
        try:
            os.close(open_node(device))
        except FileNotFoundError:
            # A missing node cannot be open.
            continue
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            node = os.path.basename(device)
            raise CallRefused(Outcome.IN_USE, errno.EBUSY, node) from error


def _below(function: PciAddress, pattern: re.Pattern[str]) -> Iterator[str]:
    path = os.path.join(functions.directory(function), "fpga_region")
    for region in _list(path):
        above = os.path.join(path, region)
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
