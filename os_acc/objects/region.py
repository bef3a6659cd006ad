# SPDX-License-Identifier: Apache-2.0

"""FPGA regions: the units of partial reconfiguration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from os_acc import exception
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.typed import expect, expect_all, expect_number


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """A part of an FPGA that can be programmed without affecting the others.

    :ivar card: the function through which the host programs it.
    :ivar identity: of that function.
    :ivar number: the number of the region on the card (DFL: the number of its
        port; XRT: that of the user function in the card's slot).
    :ivar interface_id: canonical UUID of the interface that a bitstream must
        match (DFL: ``compat_id``; XRT: ``interface_uuids``); None: it cannot be
        programmed.
    :ivar function_id: canonical UUID of its current function (DFL: ``afu_id``;
        XRT: ``xclbinuuid``), or of one of several functions; None: unknown.
    :ivar pci_functions: the PCI functions through which guests access it, if there
        are several, attached or not.
    :ivar functions: the function of the present contents that each of
        ``pci_functions`` reaches, as canonical UUID. A PCI function that is not
        listed reaches none. Empty: unknown; each one then reaches ``function_id``,
        or another function of the same bitstream.
    :ivar is_authenticated: whether the card itself rejects each bitstream without a
        valid signature, from a guest as from the host.
    :raises ValueError: an attribute has another type, a UUID is not canonical, or
        ``functions`` has a PCI function twice or one that ``pci_functions`` lacks.
    """

    card: PciAddress
    identity: PciIdentity
    number: int
    interface_id: str | None
    function_id: str | None
    pci_functions: tuple[PciAddress, ...] = ()
    functions: tuple[tuple[PciAddress, str], ...] = ()
    is_authenticated: bool = False

    def __post_init__(self) -> None:
        expect("Region.card", self.card, PciAddress)
        expect("Region.identity", self.identity, PciIdentity)
        self.identity.check("Region.identity")
        expect_number("Region.number", self.number)
        expect_all("Region.pci_functions", self.pci_functions, tuple, PciAddress)
        expect_all("Region.functions", self.functions, tuple, tuple)
        expect("Region.is_authenticated", self.is_authenticated, bool)
        for name in ("interface_id", "function_id"):
            if getattr(self, name) is not None:
                _expect_uuid(f"Region.{name}", getattr(self, name))
        for place, function in self.functions:
            expect("a PCI function of Region.functions", place, PciAddress)
            _expect_uuid("a function of Region.functions", function)
        places = [place for place, _ in self.functions]
        if len({*places}) < len(places) or not {*places} <= {*self.pci_functions}:
            named = ", ".join(map(str, self.pci_functions)) or "not named"
            raise ValueError(
                f"{self} has functions at {', '.join(map(str, places))}, but its PCI "
                f"functions are {named}"
            )

    @property
    def key(self) -> str:
        """Its name in the store, derived from its place.

        Serial numbers are not suitable: cards without a programmed one share the
        same. A card that is moved loses power and thus its contents; one that a
        reboot renumbers may keep them (``doc/source/user/fpga.rst``, "Reboot").
        """
        return f"{_card_name(self.card, self.identity)}_{self.number}"

    def __str__(self) -> str:
        return f"region {self.number} of {self.card}"


def _expect_uuid(what: str, value: object) -> None:
    if type(value) is not str or canonical_uuid(value) != value:
        raise ValueError(
            f"{what} is {exception.show(value)}, which is no canonical UUID"
        )


def card_key(card: PciAddress, identity: PciIdentity) -> str:
    """Return the name in the store for the regions of a card that cannot be read."""
    return f"{_card_name(card, identity)}_*"


def card_key_of(key: str) -> str:
    """Return the name in the store for the regions of a region's card."""
    return f"{key.rpartition('_')[0]}_*"


def _card_name(card: PciAddress, identity: PciIdentity) -> str:
    return f"{identity.vendor:04x}_{identity.product:04x}_{card}"


def function_at(region: Region, address: DeviceAddress) -> str | None:
    """Return the function that a PCI function of a region reaches; None: none."""
    if not region.functions:
        return region.function_id
    return next((each for place, each in region.functions if place == address), None)


def functions_held(region: Region) -> frozenset[str]:
    """Return the known functions of a region's present contents."""
    if not region.functions:
        return frozenset(filter(None, [region.function_id]))
    return frozenset(function for _, function in region.functions)


@dataclasses.dataclass(frozen=True, slots=True)
class Programming:
    """The required contents of a lease's region for the lifetime of the lease.

    :ivar region: its state when the lease was prepared.
    :ivar function_id: canonical UUID that the hardware must report; None: any,
        since none is specified.
    :ivar image_id: of the image that it is programmed with; '' if the guest uses
        the current contents.
    :ivar hash_algo: of that image, as in :class:`os_acc.objects.bitstream.Image`:
        another file under the same id is another bitstream.
    :ivar hash_value: hexadecimal.
    :ivar is_exact: whether that image is required, not just the function.
    :ivar boot_id: the boot in which the region was read and verified; '' until it is
        programmed for the first time after a rebuild.
    """

    region: Region
    function_id: str | None
    image_id: str = ""
    hash_algo: str = ""
    hash_value: str = ""
    is_exact: bool = False
    boot_id: str = ""

    @property
    def image(self) -> RecordedImage:
        """The image that it is programmed with, without an id if there is none."""
        return RecordedImage(self.image_id, self.hash_algo, self.hash_value)

    @property
    def is_bound(self) -> bool:
        """Whether it restricts the contents."""
        return self.function_id is not None or bool(self.image_id)

    @property
    def is_pending(self) -> bool:
        """Whether a rebuild has decided the contents, and they are not verified yet."""
        return not self.boot_id

    def region_in(self, boot_id: str) -> Region:
        """Return the region, without its functions after a reboot, which may empty it.

        :param boot_id: the present boot.
        """
        if self.boot_id == boot_id:
            return self.region
        return dataclasses.replace(self.region, function_id=None, functions=())


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedImage:
    """The image with which os_acc last programmed a region and verified it.

    :ivar hash_algo: of that image, as in :class:`os_acc.objects.bitstream.Image`.
    :ivar hash_value: hexadecimal.
    """

    id: str
    hash_algo: str
    hash_value: str


@dataclasses.dataclass(frozen=True, slots=True)
class UnverifiedRegions:
    """Regions whose contents are unverified, and the verified contents of others.

    A region is *in* this object if its programming has started and was not
    verified: its contents may be incomplete, and it must not be attached as it
    is.

    :ivar keys: of those regions.
    :ivar guest_writable: keys of regions that a guest could program itself since
        they were last verified, and the names of cards (:func:`card_key`) whose
        region could not be read then. They hold a function of unknown origin.
    :ivar contents: by keys of regions, the contents last verified, in the
        verifier's notation.
    :ivar verified_since_loss: None: all other regions are verified. Otherwise records
        were lost, and every region is unverified except these.
    :ivar images: by keys of regions, the images with which they were last programmed
        and verified; their contents may be others by now.
    :ivar accepted: keys of regions whose function the operator accepts as reported,
        although a guest could program them (``trust_guest_contents``).
    """

    keys: frozenset[str] = frozenset()
    guest_writable: frozenset[str] = frozenset()
    contents: Mapping[str, str] = dataclasses.field(default_factory=dict)
    verified_since_loss: frozenset[str] | None = None
    images: Mapping[str, RecordedImage] = dataclasses.field(default_factory=dict)
    accepted: frozenset[str] = frozenset()

    def __contains__(self, region: Region) -> bool:
        if region.key in self.keys:
            return True
        if (
            self.verified_since_loss is None
            or region.key in self.verified_since_loss | self.guest_writable
        ):
            return False
        # A region that cannot be programmed cannot be half programmed.
        return region.interface_id is not None

    def __bool__(self) -> bool:
        return bool(self.keys) or self.verified_since_loss is not None

    def is_verified(self, region: Region) -> bool:
        """Return whether no guest can have chosen the function that is reported."""
        keys = {region.key, card_key_of(region.key)}
        return region not in self and self.guest_writable.isdisjoint(keys)

    def trusts(self, region: Region) -> bool:
        """Return whether the function reported by hardware is verified or accepted."""
        return self.is_verified(region) or (
            region not in self and region.key in self.accepted
        )


ALL_VERIFIED: Final = UnverifiedRegions()
