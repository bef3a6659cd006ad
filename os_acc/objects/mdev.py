# SPDX-License-Identifier: Apache-2.0

"""Mediated devices, and the types that their parents offer.

Names are those of Documentation/ABI/testing/sysfs-bus-vfio-mdev. A parent is a PCI
function or a virtual device; several types may share its capacity.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final, TypeAlias, final

from os_acc import exception
from os_acc.objects.pci import PciAddress, function_named

# Names of directories in sysfs, without slashes and blanks. Two of them and a number
# fit into the name of a file.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,95}", re.ASCII)
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_HINT: Final = "use the form 0000:3b:00.0/nvidia-558, or mtty/mtty-2"


def is_name(value: object) -> bool:
    """Return whether a value may name a parent or a type of mediated devices."""
    # A subclass of str may be written differently than it is matched.
    return type(value) is str and _NAME.fullmatch(value) is not None


@final
@dataclasses.dataclass(frozen=True, order=True, slots=True)
class MdevType:
    """A type of mediated devices of one parent.

    :ivar parent: the parent in ``/sys/class/mdev_bus``: a PCI address, or the name of
        a virtual device.
    :ivar name: the type in ``mdev_supported_types``, such as ``nvidia-558``.
    :raises InvalidInput: a name is invalid.
    """

    parent: str
    name: str

    def __post_init__(self) -> None:
        if not is_name(self.parent) or not is_name(self.name):
            raise exception.InvalidInput(
                f"{exception.show((self.parent, self.name))} is not a type of mediated "
                "devices",
                hint=_HINT,
            )

    @property
    def function(self) -> PciAddress | None:
        """The parent's PCI address; None: it is a virtual device."""
        return function_named(self.parent)

    def __str__(self) -> str:
        return f"{self.parent}/{self.name}"


@final
@dataclasses.dataclass(frozen=True, slots=True)
class MdevSlot:
    """One unit of the capacity of a type; a leased one has a mediated device.

    Slots are sorted behind PCI addresses.

    :ivar number: from 0 on. The kernel does not number mediated devices: only leases
        do, so that no two of them have one unit.
    :raises InvalidInput: the number is negative.
    """

    type: MdevType
    number: int

    def __post_init__(self) -> None:
        if type(self.number) is not int or self.number < 0:
            raise exception.InvalidInput(
                f"{exception.show(self.number)} is not the number of a slot", hint=_HINT
            )

    def __str__(self) -> str:
        return f"{self.type}/{self.number}"

    @property
    def parts(self) -> tuple[str, str, int]:
        """Its parent, type and number, in the helper's format."""
        return (self.type.parent, self.type.name, self.number)

    def __lt__(self, other: object) -> bool:
        if isinstance(other, MdevSlot):
            return (self.type, self.number) < (other.type, other.number)
        return False if isinstance(other, PciAddress) else NotImplemented

    def __gt__(self, other: object) -> bool:
        if isinstance(other, MdevSlot):
            return other < self
        return True if isinstance(other, PciAddress) else NotImplemented


#: The address of an accelerator: a PCI function, or a slot for a mediated device.
DeviceAddress: TypeAlias = PciAddress | MdevSlot
#: The part of a host that a provider is named after.
DeviceName: TypeAlias = PciAddress | MdevType


def nova_names(parent: str) -> frozenset[str]:
    """Return the names that a parent may have in ``[mdev_*] device_addresses`` of Nova.

    A virtual one has the name that libvirt gives it (``mtty_mtty``).
    """
    return frozenset({parent, f"{parent}_{parent}"})


def function_of(address: DeviceAddress | DeviceName) -> PciAddress | None:
    """Return the PCI function that an address is, or is a part of; None: virtual."""
    match address:
        case MdevSlot():
            return address.type.function
        case MdevType():
            return address.function
    return address


def in_order(address: DeviceAddress | DeviceName) -> tuple[object, ...]:
    """Return a key that sorts PCI addresses, then types with their slots."""
    match address:
        case MdevSlot():
            return (1, address.type, address.number)
        case MdevType():
            return (1, address, -1)
    return (0, address.parts)


def parse_address(text: str) -> DeviceAddress:
    """Parse the text of a PCI address or a slot.

    :raises InvalidInput: it is neither.
    """
    parts = text.split("/") if isinstance(text, str) else []
    if len(parts) != 3:
        return PciAddress.parse(text)
    if not _NUMBER.fullmatch(parts[2]):
        raise exception.InvalidInput(
            f"{exception.show(text)} is not a slot for a mediated device", hint=_HINT
        )
    return MdevSlot(MdevType(parts[0], parts[1]), int(parts[2]))
