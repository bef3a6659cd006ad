# SPDX-License-Identifier: Apache-2.0

"""The parts of FPGAs that are programmed as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from os_acc.objects.pci import PciAddress, PciIdentity


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """A part of an FPGA which is programmed without disturbing the others.

    :ivar card: the function through which the host programs it.
    :ivar identity: of that function.
    :ivar number: which region of the card it is (DFL: the number of its port;
        XRT: that of the user function in the card's slot).
    :ivar interface_id: canonical UUID of what a bitstream for it has to be
        built for (DFL: ``compat_id``; XRT: ``interface_uuids``); None: it
        cannot be programmed.
    :ivar function_id: canonical UUID of what it holds (DFL: ``afu_id``; XRT:
        ``xclbinuuid``), or of one of several functions; None: nothing is known
        of it.
    :ivar functions: the PCI functions by which guests reach it, where these
        are several, whoever has them. Each then may be of another function of
        the one bitstream.
    """

    card: PciAddress
    identity: PciIdentity
    number: int
    interface_id: str | None
    function_id: str | None
    functions: tuple[PciAddress, ...] = ()

    @property
    def key(self) -> str:
        """Its name in the store: that of its place.

        Cards whose serial number nobody has programmed all have the same. One
        that is moved has been without power, and holds nothing of before.
        """
        product = f"{self.identity.vendor:04x}_{self.identity.product:04x}"
        return f"{product}_{self.card}_{self.number}"

    def __str__(self) -> str:
        return f"region {self.number} of {self.card}"


@dataclasses.dataclass(frozen=True, slots=True)
class Programming:
    """What the region behind a lease has to hold for as long as it lasts.

    :ivar region: as it was when the lease was made ready.
    :ivar function_id: canonical UUID of what its hardware has to say; None:
        anything, since nobody has named it.
    :ivar image_id: of the image that it is programmed with; '' where the
        guest takes what it finds.
    :ivar hash_algo: of that image, as :class:`os_acc.objects.image.Image`
        has it: another file under the same id is another bitstream.
    :ivar hash_value: hexadecimal.
    :ivar is_exact: whether it has to be that image, and not just the function.
    :ivar boot_id: the boot in which the region was read, and found right.
    """

    region: Region
    function_id: str | None
    image_id: str = ""
    hash_algo: str = ""
    hash_value: str = ""
    is_exact: bool = False
    boot_id: str = ""

    @property
    def is_bound(self) -> bool:
        """Whether its guest may not find just anything."""
        return self.function_id is not None or bool(self.image_id)


@dataclasses.dataclass(frozen=True, slots=True)
class UnverifiedRegions:
    """Of which regions it is not known what they hold, and what is of others.

    A region is *in* this where a programming of it has begun and not been
    proved: it may be half-way between two functions, and goes to nobody as it
    is.

    :ivar keys: of those regions.
    :ivar guest_writable: keys of those that a guest could program itself since they
        were last proved. They hold a function, of whose making nobody knows.
    :ivar contents: by keys of regions, what they were last proved to hold, in
        the words of whoever has proved it.
    :ivar proved: None: the others are not in this. Otherwise what was recorded
        is damaged, so that every region is but those that were proved since.
    """

    keys: frozenset[str] = frozenset()
    guest_writable: frozenset[str] = frozenset()
    contents: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    proved: frozenset[str] | None = None

    def __contains__(self, region: Region) -> bool:
        if region.key in self.keys:
            return True
        if self.proved is None or region.key in self.proved | self.guest_writable:
            return False
        # What cannot be programmed has not been left half-way.
        return region.interface_id is not None

    def __bool__(self) -> bool:
        return bool(self.keys) or self.proved is not None

    def believes(self, region: Region) -> bool:
        """Whether what the hardware says of a region can be taken for the truth."""
        return region not in self and region.key not in self.guest_writable


NO_DOUBTS: Final = UnverifiedRegions()
