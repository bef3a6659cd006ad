# SPDX-License-Identifier: Apache-2.0

"""PCI functions and IOMMU groups, as Linux shows them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Iterable
from typing import Self, final

from os_acc import exception
from os_acc.objects.typed import expect_number, expect_text

# More than the functions of any host, so that a scan reuses the last one's values.
_KEPT = 16384
# The domain is up to 32 bits wide: VMD puts its devices into domains above
# FFFF (Documentation/ABI/testing/sysfs-bus-pci, drivers/pci/controller/vmd.c).
_ADDRESS = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2})"
    r":(?P<slot>[01][0-9a-f])\.(?P<function>[0-7])",
    re.IGNORECASE | re.ASCII,
)
# The format of file2alias.c and pci-sysfs.c (modalias_show).
_MODALIAS = re.compile(
    r"pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})sv0000([0-9A-F]{4})"
    r"sd0000([0-9A-F]{4})bc([0-9A-F]{2})sc([0-9A-F]{2})i([0-9A-F]{2})",
    re.ASCII,
)
#: The host bridge and the ISA bridge of a chipset, by class: their registers decode
#: the host's memory and firmware.
CHIPSET = frozenset({0x0600, 0x0601})
#: Methods that work while a function is alone on its bus. The kernel lists them when it
#: finds a function: that of slot 0 of a card comes before the others of the card.
BUS_RESETS = frozenset({"bus", "cxl_bus"})
# A Device Serial Number, as serial_number_show() in drivers/pci/pci-sysfs.c prints it:
# it is longer than the number of a drive.
_OF_CARD = re.compile(r"(?:[0-9a-f]{2}-){7}[0-9a-f]{2}", re.ASCII)
_HINT = "use the form 0000:3b:02.1"
# A serial number is part of the name of a provider, which Placement limits to 200.
_LONGEST_SERIAL = 64


@final
@dataclasses.dataclass(frozen=True, order=True, slots=True)
class PciAddress:
    """The address of a PCI function: domain, bus, slot (device), function.

    :raises InvalidInput: a part is out of its range.
    """

    domain: int
    bus: int
    slot: int
    function: int

    def __post_init__(self) -> None:
        limits = (0xFFFF_FFFF, 0xFF, 0x1F, 0x7)
        for part, limit in zip(self.parts, limits, strict=True):
            is_number = isinstance(part, int) and not isinstance(part, bool)
            if not (is_number and 0 <= part <= limit):
                raise exception.InvalidInput(
                    f"{exception.show(self.parts)} is not a PCI address", hint=_HINT
                )

    @staticmethod
    def parse(text: str) -> PciAddress:
        """Parse ``dddd:bb:ss.f``; the domain may have up to eight digits.

        :raises InvalidInput: the text is not such an address.
        """
        if not isinstance(text, str):
            raise exception.InvalidInput(
                f"{exception.show(text)} is not a PCI address", hint=_HINT
            )
        return _parse(str.__str__(text))

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function:x}"

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """The four numbers, in the helper's format."""
        return (self.domain, self.bus, self.slot, self.function)

    def same_slot(self, other: PciAddress) -> bool:
        """Return whether both are functions of one multi-function device."""
        return self.parts[:3] == other.parts[:3]


@functools.lru_cache(_KEPT)
def _parse(text: str) -> PciAddress:
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise exception.InvalidInput(
            f"{exception.show(text)} is not a PCI address", hint=_HINT
        )
    return PciAddress(*(int(part, 16) for part in match.groups()))


@functools.lru_cache(_KEPT)
def function_named(text: str) -> PciAddress | None:
    """Return the address that a text is; None: it is none."""
    try:
        return PciAddress.parse(text)
    except exception.InvalidInput:
        return None


# The VFs of a card, and cards of one model, share it.
@functools.lru_cache(1024)
def parse_modalias(text: str) -> tuple[int, int, int, int, int]:
    """Return vendor, product, subsystem vendor and product, and class.

    :raises InvalidInput: the text is not the ``modalias`` of a PCI function.
    """
    match = _MODALIAS.fullmatch(text)
    if match is None:
        raise exception.InvalidInput(
            f"modalias contains {text[:80]!r}, expected the ids of a PCI function"
        )
    vendor, product, subvendor, subproduct = (int(match[n], 16) for n in range(1, 5))
    class_code = int(match[5] + match[6] + match[7], 16)
    return vendor, product, subvendor, subproduct, class_code


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class PciIdentity:
    """The identity of a device, independent of its slot.

    The address alone does not identify a card: after a reboot, another card may
    have it. ``serial`` is empty if no readable attribute provides it.

    :ivar drive: the part of an NVMe drive (:func:`part_of_device`) while the nvme
        driver has the function, or the PF of a VF. In a lease also the part of another
        device, as the privileged helper has read it. Otherwise ''.
    """

    vendor: int
    product: int
    subsystem_vendor: int
    subsystem_product: int
    revision: int
    serial: str = ""
    drive: str = ""

    def __str__(self) -> str:
        text = (
            f"{self.vendor:04x}:{self.product:04x}"
            f":{self.subsystem_vendor:04x}:{self.subsystem_product:04x}"
            f":{self.revision:02x}"
        )
        return ":".join(filter(None, (text, self.serial, self.drive)))

    def check(self, what: str) -> None:
        """Check the parts of an identity that a vendor's code may have made.

        :param what: the attribute that has it.
        :raises ValueError: a part has another type, or a serial number is too long.
        """
        for number in self.numbers:
            expect_number(what, number)
        for text in (self.serial, self.drive):
            expect_text(f"a serial number of {what}", text)
            if len(text) > _LONGEST_SERIAL:
                raise ValueError(
                    f"a serial number of {what} is longer than {_LONGEST_SERIAL} "
                    "characters"
                )

    def may_be(self, other: Self) -> bool:
        """Return whether both may belong to one device.

        An unreadable serial number matches any: whether it can be read depends on
        the kernel and on the reader's privileges.
        """
        serials, drives = {self.serial, other.serial}, {self.drive, other.drive}
        is_same = len(serials - {""}) < 2 and len(drives - {""}) < 2
        is_known = bool(self.drive) and self.key == other.key
        return is_same and (is_known or self.numbers == other.numbers)

    def completed(self, other: Self) -> Self:
        """Return it with the serial numbers of another one that it does not show."""
        return dataclasses.replace(
            self, serial=self.serial or other.serial, drive=self.drive or other.drive
        )

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Its name among numbered devices; of a drive also after an update."""
        return self.drive, lasting_ids(self.numbers, self.drive)

    @property
    def number(self) -> str:
        """Its part of a device, in the helper's format; '' if that is unknown."""
        return self.drive if self.drive.isprintable() else ""

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        """The five numbers, in the helper's format."""
        return (
            self.vendor,
            self.product,
            self.subsystem_vendor,
            self.subsystem_product,
            self.revision,
        )


def lasting_ids(numbers: tuple[int, ...], serial: str) -> tuple[int, ...]:
    """Return the ids of a device with a serial number that its firmware cannot change.

    Of a drive, its vendor; several cards of a vendor may have one Device Serial Number.

    :param numbers: all ids, the vendor first.
    """
    return numbers if _OF_CARD.match(serial) else numbers[:1]


def part_of_device(serial: str, address: PciAddress, physfn: PciAddress | None) -> str:
    """Return a name for a function of a device, the same one in each slot.

    :param serial: of the device; without one there is no name: ''.
    :param physfn: the PF of a VF.
    """
    # Linux shows these two until the driver has read it (lib/vsprintf.c).
    if serial in ("", "(null)", "(efault)"):
        return ""
    place = physfn or address
    number = f".{place.function}" if place.function else ""
    # A VF keeps its distance from its PF (SR-IOV specification, First VF Offset).
    one, other = (
        each.bus << 8 | each.slot << 3 | each.function for each in (address, place)
    )
    return f"{serial}{number}+{one - other}" if physfn else f"{serial}{number}"


def pf_of_part(part: str) -> str:
    """Return the name of the PF of a VF by that of the VF; '' if it names no VF."""
    name, _, distance = part.rpartition("+")
    return name if distance.isdecimal() else ""


class PciRole(enum.Enum):
    """The role of a function in SR-IOV."""

    PLAIN = "plain"
    PF = "PF"
    VF = "VF"


@dataclasses.dataclass(frozen=True, slots=True)
class PciFunction:
    """A snapshot of one PCI function in sysfs.

    :ivar class_code: 24 bits: base class, sub class, programming interface.
    :ivar driver: the name of its driver; None: it has none.
    :ivar iommu_group: the number of its group; None: it is in none.
    :ivar numa_node: None if the kernel reports -1 (unknown, never node 0).
    :ivar reset_methods: as in sysfs, the preferred one first.
    :ivar physfn: of a VF: its PF.
    :ivar total_vfs: ``sriov_totalvfs``, 0 without SR-IOV.
    :ivar vfs: of a PF: its VFs, in the order of their index.
    :ivar has_bridge_header: whether its header is that of a PCI or CardBus bridge
        (header types 1 and 2), as no class code states.

    Attributes whose read takes the device's lock
    (``driver_override``, ``sriov_numvfs``) are excluded: a stuck write may hold
    that lock for hours.
    """

    address: PciAddress
    identity: PciIdentity
    class_code: int
    driver: str | None
    iommu_group: int | None
    numa_node: int | None
    reset_methods: tuple[str, ...]
    physfn: PciAddress | None
    total_vfs: int
    vfs: tuple[PciAddress, ...]
    has_bridge_header: bool = False

    @property
    def role(self) -> PciRole:
        if self.physfn is not None:
            return PciRole.VF
        return PciRole.PF if self.total_vfs else PciRole.PLAIN

    @property
    def resets_alone(self) -> bool:
        """Whether it has a reset that leaves the others of its bus alone."""
        return not BUS_RESETS.issuperset(self.reset_methods)

    @property
    def is_bridge(self) -> bool:
        """Whether it is never attached: a bridge, or one of :data:`CHIPSET`.

        Other functions of class 06 are endpoints, such as the NVSwitches of NVIDIA.
        """
        return self.has_bridge_header or self.class_code >> 8 in CHIPSET


def physfns(functions: Iterable[PciFunction]) -> tuple[PciAddress, ...]:
    """Return the PFs of those functions that are VFs, sorted."""
    found = {each.physfn for each in functions if each.physfn is not None}
    return tuple(sorted(found))


@dataclasses.dataclass(frozen=True, slots=True)
class IommuGroup:
    """The smallest set of functions that the IOMMU can isolate.

    ``reserved`` are the lines of ``reserved_regions``: (start, end, type).
    ``unsafe`` marks a group made by VFIO's no-IOMMU mode.
    """

    number: int
    members: tuple[PciAddress, ...]
    reserved: tuple[tuple[int, int, str], ...] = ()
    unsafe: bool = False
