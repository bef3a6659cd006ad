# SPDX-License-Identifier: Apache-2.0

"""The accelerators of a guest: PCI functions, and mediated devices.

libvirt names a PCI function by its address and a mediated device by its UUID
(https://libvirt.org/formatdomain.html, "Host device assignment").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from nova import exception as nova_exception
from nova.conf import CONF
from nova.pci import utils as pci_utils
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import guest as libvirt_guest

from os_acc.objects.api import AcceleratorEntry

_MEDIATED: Final = "MDEV"
#: The first libvirt whose ``<driver>`` has the attribute ``iommufd``.
LIBVIRT_WITH_IOMMUFD: Final = (12, 1, 0)


class IommufdFunction(vconfig.LibvirtConfigGuestHostdevPCI):  # type: ignore[misc]
    """A PCI function that libvirt opens through iommufd, not through its group."""

    def format_dom(self) -> Any:
        """Return the ``<hostdev>`` with ``<driver iommufd='yes'/>``."""
        found = super().format_dom()
        found.insert(0, vconfig.etree.Element("driver", iommufd="yes"))
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class GuestDevices:
    """Devices of the host that a guest has, or shall have.

    :ivar addresses: of PCI functions.
    :ivar mdevs: UUIDs of mediated devices.
    :ivar unmanaged: those of the addresses whose driver libvirt must not change.
    :ivar iommufd: whether a guest gets the functions through iommufd.
    """

    addresses: frozenset[str] = frozenset()
    mdevs: frozenset[str] = frozenset()
    unmanaged: frozenset[str] = frozenset()
    iommufd: bool = dataclasses.field(default=False, kw_only=True)

    @classmethod
    def of_entries(
        cls, entries: Iterable[AcceleratorEntry], *, iommufd: bool = False
    ) -> GuestDevices:
        """Return the devices that a guest gets, without those that stay with the host.

        An entry has the key ``pci_id`` only if a guest gets the function.
        """
        found = list(entries)
        functions = [each for each in found if "pci_id" in each]
        return cls(
            frozenset(each["pci_id"] for each in functions),
            frozenset(
                each["attach_handle_uuid"]
                for each in found
                if each["attach_handle_type"] == _MEDIATED
            ),
            frozenset(each["pci_id"] for each in functions if "vfio_driver" in each),
            iommufd=iommufd,
        )

    @classmethod
    def of_xml(cls, text: str) -> GuestDevices:
        """Return the devices in a definition that Nova has saved."""
        config = vconfig.LibvirtConfigGuest()
        config.parse_str(text)
        return cls.of_definition(config)

    @classmethod
    def of_definition(cls, config: Any) -> GuestDevices:
        """Return the devices in a guest's definition, be they of os_acc or not.

        :param config: a ``LibvirtConfigGuest``.
        """
        return cls(
            frozenset(
                f"{int(each.domain, 16):04x}:{int(each.bus, 16):02x}:"
                f"{int(each.slot, 16):02x}.{int(each.function, 16):x}"
                for each in config.devices
                if isinstance(each, vconfig.LibvirtConfigGuestHostdevPCI)
            ),
            frozenset(
                each.uuid
                for each in config.devices
                if isinstance(each, vconfig.LibvirtConfigGuestHostdevMDEV)
            ),
        )

    def __bool__(self) -> bool:
        return bool(self.addresses or self.mdevs)

    def __sub__(self, other: GuestDevices) -> GuestDevices:
        return dataclasses.replace(
            self,
            addresses=self.addresses - other.addresses,
            mdevs=self.mdevs - other.mdevs,
        )

    def __and__(self, other: GuestDevices) -> GuestDevices:
        return GuestDevices(self.addresses & other.addresses, self.mdevs & other.mdevs)

    def __str__(self) -> str:
        return ", ".join(sorted(self.addresses | self.mdevs))

    def functions(self) -> list[Any]:
        """Return the PCI functions as parts of a guest's definition."""
        found = []
        plain = vconfig.LibvirtConfigGuestHostdevPCI
        kind = IommufdFunction if self.iommufd else plain
        for address in sorted(self.addresses):
            device = kind()
            place = pci_utils.parse_address(address)
            device.domain, device.bus, device.slot, device.function = place
            device.managed = "no" if address in self.unmanaged else "yes"
            found.append(device)
        return found

    def mediated(self) -> list[Any]:
        """Return the mediated devices as parts of a guest's definition."""
        found = []
        for uuid in sorted(self.mdevs):
            device = vconfig.LibvirtConfigGuestHostdevMDEV()
            device.uuid = uuid
            found.append(device)
        return found


_KINDS: Final = {
    "pci": vconfig.LibvirtConfigGuestHostdevPCI,
    "mdev": vconfig.LibvirtConfigGuestHostdevMDEV,
}


def redefined(definition: str, devices: GuestDevices, others: GuestDevices) -> str:
    """Return the definition of a guest with these devices.

    :param definition: XML that has other devices of os_acc, or none.
    :param others: the devices of other services that the guest keeps.
    """
    domain = vconfig.etree.fromstring(definition)
    parts = domain.find("devices")
    missing = devices
    for each in parts.findall("hostdev"):
        if (kind := _KINDS.get(each.get("type"))) is None:
            continue
        config = vconfig.LibvirtConfigGuest()
        config.add_device(device := kind())
        device.parse_dom(each)
        found = GuestDevices.of_definition(config)
        missing -= found
        if not (found & devices or found & others):
            parts.remove(each)
    for device in (*missing.functions(), *missing.mediated()):
        parts.append(device.format_dom())
    return str(vconfig.etree.tostring(domain, encoding="unicode"))


def through_iommufd(function: Any) -> IommufdFunction:
    """Return a function of Nova's, as a part of a definition with iommufd."""
    found = IommufdFunction()
    found.__dict__ |= function.__dict__
    return found


def attach_missing(guest: Any, devices: GuestDevices) -> None:
    """Attach those devices to a running guest that it does not have.

    :param guest: a ``nova.virt.libvirt.guest.Guest``.
    :raises InternalError: libvirt cannot attach them.
    """
    missing = devices - GuestDevices.of_definition(guest.get_config())
    try:
        for definition in (*missing.functions(), *missing.mediated()):
            guest.attach_device(definition, live=True)
    except libvirt_guest.libvirt.libvirtError as error:
        raise nova_exception.InternalError(
            f"libvirt cannot attach {missing}: {error}"
        ) from error


def detach_functions(guest: Any, devices: GuestDevices) -> None:
    """Detach the PCI functions among the devices of a running guest.

    :raises PciDeviceDetachFailed: the guest still has one.
    """
    for definition in devices.functions():
        guest.detach_device(definition, live=True)
    left = devices & GuestDevices.of_definition(guest.get_config())
    if left.addresses:
        raise nova_exception.PciDeviceDetachFailed(reason="timeout", dev=left)


def saved_definition(server: str) -> Path:
    """Return where Nova saves the definition that ``unrescue`` gives back to a guest.

    :param server: its uuid.
    """
    return Path(CONF.instances_path, server, "unrescue.xml")
