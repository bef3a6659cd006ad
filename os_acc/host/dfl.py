# SPDX-License-Identifier: Apache-2.0

"""FPGA cards on the kernel's Device Feature List driver, dfl-pci.

Documentation/fpga/dfl.rst, Documentation/ABI/testing/sysfs-platform-dfl-fme,
-port, sysfs-class-fpga-manager, -region. The directory of the PCI function
contains (drivers/fpga of Linux 6.1)::

    fpga_region/region0/            the card; its compat_id is always missing
        dfl-fme.0/                  ports_num, dev
            dfl-fme-mgr.0/fpga_manager/fpga0/    state, status
            dfl-fme-region.0/fpga_region/region1/    compat_id; one a port
        dfl-port.0/                 id, afu_id, dev

The FME has children only if the card supports partial reconfiguration. A port
released for a VF disappears; once the VF is bound to dfl-pci, the port appears
below the VF's directory, with the same ``id``. No read in this module takes the
FME's lock, which is held during programming.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from collections.abc import Iterator

from os_acc.exception import HostStepFailed
from os_acc.host.attributes import function_path, link_address, names, number, read_text
from os_acc.objects.drivers import (
    DFL_FME,
    DFL_MANAGER,
    DFL_PORT,
    DFL_REGION,
    dfl_uuid,
    is_dfl_id,
)
from os_acc.objects.pci import PciAddress

_VIRTFN = re.compile(r"virtfn[0-9]{1,5}", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class DflPort:
    """A port: the unit of programming and of attachment to a guest.

    :ivar number: its number on the card (``id``), used for programming.
    :ivar function: the PCI function of the port: the card, or one of its VFs.
    :ivar function_id: canonical UUID of its current function (``afu_id``); None:
        unknown, for example during programming or after a failed one.
    """

    number: int
    function: PciAddress
    function_id: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class DflCard:
    """An FPGA card, represented by its FPGA Management Engine.

    :ivar ports_num: the number of ports of the card, present or not.
    :ivar ports: the ports currently bound to dfl-pci, by number.
    :ivar manager: the name of its FPGA manager; None: no partial
        reconfiguration.
    :ivar interface_id: canonical UUID that bitstreams must match
        (``compat_id``, the manager's, and thus the same for all ports);
        None: the card cannot be programmed.
    """

    address: PciAddress
    ports_num: int
    ports: tuple[DflPort, ...]
    manager: str | None
    interface_id: str | None

    def port(self, number: int) -> DflPort | None:
        """Return the port with this number, if it is bound to dfl-pci."""
        return next((port for port in self.ports if port.number == number), None)


def read_card(root: str, address: PciAddress) -> DflCard | None:
    """Return the card that is programmed through a function.

    :returns: None without an FME of dfl-pci: the function has another driver or
        none, is a VF, or is gone.
    :raises HostStepFailed: the kernel reports an error or malformed data.
    """
    try:
        return _read_card(root, address)
    except HostStepFailed as error:
        raise HostStepFailed(
            f"{address}: {error.message}", address=str(address), errno=error.errno
        ) from error


def _read_card(root: str, address: PciAddress) -> DflCard | None:
    place = function_path(root, address)
    fmes = list(_below(place, DFL_FME))
    if not fmes:
        return None
    fme = fmes[0]
    manager = next(_class_devices(fme, DFL_MANAGER, "fpga_manager"), None)
    ports = [*_ports(place, address)]
    for vf in map(link_address, _matching(place, _VIRTFN)):
        if vf is not None:
            ports += _ports(function_path(root, vf), vf)
    # Read last: if it is missing, the FME is gone and other absences are void.
    ports_num = read_text(f"{fme}/ports_num")
    if ports_num is None:
        return None
    return DflCard(
        address=address,
        ports_num=number(ports_num, "ports_num"),
        ports=tuple(sorted(ports, key=lambda port: port.number)),
        manager=manager and os.path.basename(manager),
        interface_id=_interface_id(fme),
    )


def _interface_id(fme: str) -> str | None:
    found = {
        _uuid(read_text(f"{region}/compat_id"), "compat_id")
        for region in _class_devices(fme, DFL_REGION, "fpga_region")
    }
    # All regions show the id of their one manager. If they differed, the region
    # of each port would be unknown.
    return found.pop() if len(found) == 1 else None


def _ports(place: str, function: PciAddress) -> Iterator[DflPort]:
    for path in _below(place, DFL_PORT):
        own = read_text(f"{path}/id")
        # None: released in the meantime.
        if own is not None:
            yield DflPort(number(own, "id"), function, _function(path))


def _function(port: str) -> str | None:
    try:
        return _uuid(read_text(f"{port}/afu_id"), "afu_id")
    except HostStepFailed as error:
        # EBUSY by afu_id_show(): the port is held in reset.
        if error.errno == errno.EBUSY:
            return None
        raise


def _uuid(text: str | None, what: str) -> str | None:
    if text is None:
        return None
    if not is_dfl_id(text):
        raise HostStepFailed(f"{what} contains {text[:80]!r}, expected an id")
    return dfl_uuid(text)


def _matching(directory: str, pattern: re.Pattern[str]) -> Iterator[str]:
    return (f"{directory}/{e}" for e in names(directory) if pattern.fullmatch(e))


def _below(place: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the paths of devices that dfl-pci created for a function."""
    for region in names(f"{place}/fpga_region"):
        yield from _matching(f"{place}/fpga_region/{region}", pattern)


def _class_devices(fme: str, pattern: re.Pattern[str], kind: str) -> Iterator[str]:
    for device in _matching(fme, pattern):
        yield from (f"{device}/{kind}/{own}" for own in names(f"{device}/{kind}"))
