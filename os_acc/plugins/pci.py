# SPDX-License-Identifier: Apache-2.0

"""Any PCI function or VF, and the providers of cards that the other plugins share.

PCI ids and class codes identify a family of devices. They are compared as numbers,
never as the text of a database of names, which some hosts do not have and which names
no new card.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, TypeAlias

from os_acc import exception
from os_acc.objects import qat
from os_acc.objects.device import (
    Device,
    Erasure,
    MatchedFunction,
    RejectedDevice,
    RejectReason,
    UsableFunction,
)
from os_acc.objects.drivers import DFL_IDS
from os_acc.objects.pci import PciAddress, PciFunction, PciIdentity
from os_acc.objects.region import Region
from os_acc.plugins import base

_INTEL: Final = 0x8086
_INSPUR: Final = 0x1BD4
_HUAWEI: Final = 0x19E5


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """A family of devices.

    :ivar kind: the type in the resource class ``CUSTOM_ACCELERATOR_<type>``.
    :ivar traits: those of the family, beside that of the device's ids.
    :ivar keeps_data: a reset does not erase the data that a guest has written.
    """

    kind: str
    traits: frozenset[str] = frozenset()
    keeps_data: bool = False


_FPGA: Final = Family("FPGA")
_FPGA_STORAGE: Final = Family("FPGA", keeps_data=True)
_QAT: Final = Family("QAT")
#: High precision time synchronisation, a family of Cyborg's first specification.
_HPTS: Final = Family("HPTS", frozenset({"CUSTOM_HPTS"}))
_ANY: Final = Family("PCI")


def _ascend(model: str) -> Family:
    return Family("AICHIP", frozenset({"CUSTOM_ASCEND", f"CUSTOM_ASCEND_{model}"}))


#: By vendor and product.
BY_ID: Final[Mapping[tuple[int, int], Family]] = MappingProxyType(
    {
        # The VFs of Intel's N3000 are in no table of the kernel.
        **dict.fromkeys((*DFL_IDS, (_INTEL, 0x0B31)), _FPGA),
        **dict.fromkeys(qat.IDS, _QAT),
        # PFs and VFs of one id, as Huawei's driver package lists them.
        (_HUAWEI, 0xD100): _ascend("310"),
        (_HUAWEI, 0xD500): _ascend("310P"),
        (_HUAWEI, 0xD801): _ascend("910"),
        (_HUAWEI, 0xD802): _ascend("910B"),
        (_HUAWEI, 0xD803): _ascend("910C"),
        # Time cards (drivers/ptp/ptp_ocp.c): Meta, Celestica, Orolia, Adva.
        (0x1D9B, 0x0400): _HPTS,
        (0x18D4, 0x1008): _HPTS,
        (0x1AD7, 0xA000): _HPTS,
        (0xAD5A, 0x0400): _HPTS,
    }
)
# By vendor, base class and sub class, as in the PCI Code and ID Assignment
# Specification; None: any.
_BY_CLASS: Final[Mapping[tuple[int | None, int | None, int | None], Family]] = (
    MappingProxyType(
        {
            # The accelerators of these vendors are FPGAs under any class code. As
            # storage they keep data all the same.
            **{
                (vendor, *code): family
                for vendor in (0x10EE, 0x1172)
                for code, family in (
                    ((None, None), _FPGA),
                    ((0x01, None), _FPGA_STORAGE),
                    ((0x05, 0x01), _FPGA_STORAGE),
                    ((0x05, 0x02), _FPGA_STORAGE),
                )
            },
            # Inspur's FPGAs and disks differ by class alone. The traits are Cyborg's.
            (_INSPUR, 0x12, None): Family("FPGA", frozenset({"CUSTOM_FPGA_INSPUR"})),
            (_INSPUR, 0x01, 0x08): Family(
                "SSD", frozenset({"CUSTOM_SSD_INSPUR"}), keeps_data=True
            ),
            (None, 0x01, 0x08): Family("SSD", keeps_data=True),
            # Mass storage of other interfaces: the disks behind it, or its own.
            (None, 0x01, None): Family("PCI", keeps_data=True),
            (None, 0x02, None): Family("NIC"),
            (None, 0x03, None): Family("GPU"),
            # Flash memory keeps its contents without power, and a function level reset
            # leaves CXL.mem as it is (Compute Express Link Specification, section 9.5).
            (None, 0x05, 0x01): Family("PCI", keeps_data=True),
            (None, 0x05, 0x02): Family("PCI", keeps_data=True),
            # SD and USB host controllers, and Fibre Channel: they lead to the same
            # disks.
            (None, 0x08, 0x05): Family("PCI", keeps_data=True),
            (None, 0x0C, 0x03): Family("PCI", keeps_data=True),
            (None, 0x0C, 0x04): Family("PCI", keeps_data=True),
            # Communications synchronization plus time and frequency test/measurement.
            (None, 0x11, 0x10): _HPTS,
            (None, 0x12, None): Family("AICHIP"),
        }
    )
)


def family_of(function: PciFunction) -> Family:
    """Return the family of a function; ``PCI`` if no row of the tables fits."""
    vendor, product = function.identity.vendor, function.identity.product
    if (known := BY_ID.get((vendor, product))) is not None:
        return known
    base_class, sub_class = function.class_code >> 16, function.class_code >> 8 & 0xFF
    for key in (
        (vendor, base_class, sub_class),
        (vendor, base_class, None),
        (vendor, None, None),
        (None, base_class, sub_class),
        (None, base_class, None),
    ):
        if key in _BY_CLASS:
            return _BY_CLASS[key]
    return _ANY


def keeps_data_beside(function: PciFunction, other: PciFunction) -> bool:
    """Return whether a function of the same IOMMU group keeps the data of a guest.

    The USB host controller of a graphics card has a connector for a display.
    """
    is_usb = other.class_code >> 8 == 0x0C03
    if is_usb and family_of(function).kind == "GPU":
        return not other.address.same_slot(function.address)
    return family_of(other).keeps_data


def id_trait(identity: PciIdentity) -> str:
    """Return the trait of a function's vendor and product."""
    return f"CUSTOM_PCI_{identity.vendor:04X}_{identity.product:04X}"


class PciPlugin(base.PluginBase):
    """One provider for each card; its functions are the capacity.

    Nothing erases mass storage, which is offered with ``allow_no_erase`` alone.
    """

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    is_fallback: ClassVar[bool] = True

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        return devices(self.name, candidates, candidates.usable, offer)


class Offer(NamedTuple):
    """The properties that all functions of one provider have in common.

    :ivar traits: sorted.
    :ivar keeps_data: a reset does not erase the data of a guest.
    :ivar may_keep_data: the operator permits that, with ``allow_no_erase``.
    """

    resource_class: str
    traits: tuple[str, ...]
    keeps_data: bool
    may_keep_data: bool


#: Returns how a function is offered; None: another plugin offers it.
OfferOf: TypeAlias = Callable[[MatchedFunction], Offer | None]


def offer(
    function: MatchedFunction,
    traits: frozenset[str] = frozenset(),
) -> Offer:
    """Return how a function is offered, by tags, ids and family.

    :param traits: further ones.
    """
    family, tags = family_of(function.function), function.tags
    by_id = id_trait(function.function.identity)
    return Offer(
        tags.resource_class or f"CUSTOM_ACCELERATOR_{family.kind}",
        tuple(sorted({by_id} | tags.traits | family.traits | traits)),
        family.keeps_data,
        family.keeps_data and tags.allow_no_erase,
    )


def devices(
    plugin_name: str,
    candidates: base.Candidates,
    usable: Sequence[UsableFunction],
    offer_of: OfferOf,
) -> Iterator[Device]:
    """Yield one device for each card, or one for each offer of its functions.

    The name of a provider follows from the functions alone, not from the plugin:
    a plugin that takes over devices from another one keeps their providers.

    :param usable: those of ``candidates.usable`` that the plugin recognises.
    """
    offer_once = _once(offer_of)
    # Functions of one card with different tags need different providers: a
    # provider has one resource class and one set of traits.
    offers: dict[PciAddress, dict[Offer, list[UsableFunction]]] = {}
    own: dict[PciAddress, Offer | None] = {}
    for each in usable:
        own[each.function.address] = found = offer_once(each)
        if found is not None:
            of_card = offers.setdefault(each.parent.address, {})
            of_card.setdefault(found, []).append(each)
    matched: dict[PciAddress, dict[Offer, PciFunction]] = {at: {} for at in offers}
    for other in candidates.matched if matched else ():
        parent, address = other.parent.address, other.function.address
        if parent not in matched or address == parent:
            continue
        # Another plugin offers a function that stays on its driver and is not usable.
        if address not in own and other.tags.stays:
            continue
        found = own[address] if address in own else offer_once(other)
        if found is not None:
            # Keep the first one: they are sorted.
            matched[parent].setdefault(found, other.function)
    recorded = candidates.provider_addresses
    for card in sorted(offers):
        for common in sorted(offers[card]):
            alike = offers[card][common]
            origin = _origin(common, alike[0].parent, matched[card], recorded)
            yield Device(
                plugin=plugin_name,
                address=origin.address,
                identity=origin.identity,
                resource_class=common.resource_class,
                traits=frozenset(common.traits),
                handles=tuple([usable.handle() for usable in alike]),
                numa_node=alike[0].function.numa_node,
                erasure=Erasure.NONE if common.keeps_data else Erasure.RESET,
            )


def _once(offer_of: OfferOf) -> OfferOf:
    """Return the same function, which computes the offer of functions alike once.

    Each scan runs it for all VFs of all cards, which share their tags and their PF.
    """
    known: dict[tuple[int, ...], Offer | None] = {}

    def once(each: MatchedFunction) -> Offer | None:
        function, identity = each.function, each.function.identity
        alike = (
            id(each.parent),
            id(each.tags),
            identity.vendor,
            identity.product,
            function.class_code,
        )
        if alike not in known:
            known[alike] = offer_of(each)
        return known[alike]

    return once


def _origin(
    own_offer: Offer,
    card: PciFunction,
    matched: Mapping[Offer, PciFunction],
    recorded: frozenset[PciAddress],
) -> PciFunction:
    """Return the function that names the provider of one of a card's offers.

    The card itself names its only offer; several offers need a function each.
    All matched VFs count, usable or not, and a recorded provider keeps its
    function.

    :param matched: the first matched VF of each offer of the card, lowest first;
        empty if the entire card is offered.
    :param recorded: the functions that recorded providers are named after.
    """
    own = matched.get(own_offer, card)
    if own.address in recorded:
        return own
    is_first = own == next(iter(matched.values()), card)
    if len(matched) <= 1 or (is_first and card.address in recorded):
        return card
    return own


def region_device(
    plugin_name: str, usable: UsableFunction, region: Region | None
) -> Device:
    """Return the device of an FPGA's region with one function.

    :param region: None: the type and contents of the region are unknown.
    """
    function, tags = usable.function, usable.tags
    return Device(
        plugin=plugin_name,
        address=function.address,
        identity=function.identity,
        resource_class=tags.resource_class or f"CUSTOM_ACCELERATOR_{_FPGA.kind}",
        traits=tags.traits | {id_trait(function.identity)},
        handles=(usable.handle(),),
        numa_node=function.numa_node,
        region=region,
        # Of the function: the region keeps its own until it is programmed again.
        erasure=Erasure.RESET,
    )


def unreadable(
    usable: UsableFunction, error: exception.HostStepFailed
) -> RejectedDevice:
    """Return the rejection of a single unreadable card.

    If the error left the plugin, a plugin without regions could give its cards to
    guests, and their contents to the next guest.

    :raises HostStepFailed: descriptors or memory ran out.
    """
    if exception.is_exhaustion(error):
        raise error
    return RejectedDevice(
        usable.function.address, RejectReason.UNREADABLE, error.message
    )
