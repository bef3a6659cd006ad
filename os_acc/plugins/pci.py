# SPDX-License-Identifier: Apache-2.0

"""Plain PCI functions and SR-IOV virtual functions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, TypeAlias

from os_acc.objects.candidate import MatchedFunction, UsableFunction
from os_acc.objects.device import Device
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.vfio_driver import VfioDriver
from os_acc.plugins import base

# A resource class, and traits.
_Offer: TypeAlias = tuple[str, tuple[str, ...]]

# FPGAs that the class code does not identify: (vendor, product).
_FPGA_VENDORS = frozenset({0x10EE, 0x1172})
_INTEL = 0x8086
_INTEL_FPGAS = frozenset({0x09C4, 0x09C5, 0x0B30, 0x0B31, 0xBCCE, 0xBCCF})
# Intel QuickAssist: PFs and VFs (drivers/crypto/intel/qat).
_INTEL_QATS = frozenset(
    {
        *(0x0435, 0x0443, 0x37C8, 0x37C9, 0x19E2, 0x19E3, 0x6F54, 0x6F55),
        *(0x18A0, 0x18A1, 0x4940, 0x4941, 0x4942, 0x4943, 0x4944, 0x4945),
    }
)
# PCI Code and ID Assignment Specification: base class, sub class.
_TYPES = {
    (0x01, 0x08): "SSD",
    (0x02, None): "NIC",
    (0x03, None): "GPU",
    (0x12, None): "AICHIP",
}


def accelerator_type(function: PciFunction) -> str:
    """Return the type in ``CUSTOM_ACCELERATOR_<type>``; PCI by default."""
    vendor, product = function.identity.vendor, function.identity.product
    if vendor in _FPGA_VENDORS or (vendor == _INTEL and product in _INTEL_FPGAS):
        return "FPGA"
    if vendor == _INTEL and product in _INTEL_QATS:
        return "QAT"
    major, minor = function.class_code >> 16, function.class_code >> 8 & 0xFF
    return _TYPES.get((major, minor)) or _TYPES.get((major, None)) or "PCI"


class PciPlugin(base.PluginBase):
    """One provider for each card; its functions are the capacity."""

    contract_version: ClassVar[tuple[int, int]] = (1, 2)
    is_fallback: ClassVar[bool] = True

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        matched: defaultdict[PciAddress, dict[_Offer, PciFunction]] = defaultdict(dict)
        for each in candidates.matched:
            if each.function.address != each.parent.address:
                # Keep the first one: they are sorted.
                matched[each.parent.address].setdefault(_offer(each), each.function)
        # No function is ready for a guest on the driver that it has on the host.
        left = [each for each in candidates.usable if not _stays(each.driver)]
        in_order = sorted(left, key=_card)
        for _, of_card in itertools.groupby(in_order, key=_card):
            # Functions of one card with different tags need different providers: a
            # provider has one resource class and one set of traits.
            offers: defaultdict[_Offer, list[UsableFunction]] = defaultdict(list)
            for usable in of_card:
                offers[_offer(usable)].append(usable)
            vfs = matched[usable.parent.address]
            yield from self._devices(offers, vfs, candidates.provider_addresses)

    def _devices(
        self,
        offers: Mapping[_Offer, list[UsableFunction]],
        matched: Mapping[_Offer, PciFunction],
        recorded: frozenset[PciAddress],
    ) -> Iterator[Device]:
        for offer in sorted(offers):
            resource_class, traits = offer
            alike = sorted(offers[offer], key=_own_address)
            origin = _origin(offer, alike[0].parent, matched, recorded)
            yield Device(
                plugin=self.name,
                address=origin.address,
                identity=origin.identity,
                resource_class=resource_class,
                traits=frozenset(traits),
                handles=tuple(usable.handle() for usable in alike),
                numa_node=alike[0].function.numa_node,
            )


def _origin(
    offer: _Offer,
    card: PciFunction,
    matched: Mapping[_Offer, PciFunction],
    recorded: frozenset[PciAddress],
) -> PciFunction:
    """Return the function that names the provider of one of a card's offers.

    The card itself names its only offer; several offers need a function each.
    All matched VFs count, usable or not, and a recorded provider keeps its
    function.

    :param matched: the first matched VF of each offer of the card, lowest first;
        empty if the card is offered as a whole.
    :param recorded: the functions that recorded providers are named after.
    """
    own = matched.get(offer, card)
    if own.address in recorded:
        return own
    is_first = own == next(iter(matched.values()), card)
    if len(matched) <= 1 or (is_first and card.address in recorded):
        return card
    return own


def _stays(driver: str) -> bool:
    return driver == VfioDriver.NVIDIA


def _own_address(usable: UsableFunction) -> tuple[int, int, int, int]:
    return usable.function.address.parts


def _card(usable: UsableFunction) -> tuple[int, int, int, int]:
    return usable.parent.address.parts


def _offer(usable: UsableFunction | MatchedFunction) -> _Offer:
    identity = usable.function.identity
    kind = accelerator_type(usable.function)
    return (
        usable.tags.resource_class or f"CUSTOM_ACCELERATOR_{kind}",
        tuple(
            sorted(
                usable.tags.traits
                | {f"CUSTOM_PCI_{identity.vendor:04X}_{identity.product:04X}"}
            )
        ),
    )
