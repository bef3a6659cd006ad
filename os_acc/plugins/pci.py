# SPDX-License-Identifier: Apache-2.0

"""Any PCI function or VF; the providers of cards, as ``nic`` and ``qat`` have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

from os_acc.objects.candidate import MatchedFunction, UsableFunction
from os_acc.objects.device import Device, Erasure
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.plugins import base, families


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
OfferOf: TypeAlias = Callable[[UsableFunction | MatchedFunction], Offer | None]


def offer(
    function: UsableFunction | MatchedFunction,
    traits: frozenset[str] = frozenset(),
) -> Offer:
    """Return how a function is offered, by tags, ids and family.

    :param traits: further ones.
    """
    family = families.family_of(function.function)
    identity = function.function.identity
    by_id = f"CUSTOM_PCI_{identity.vendor:04X}_{identity.product:04X}"
    tags = function.tags
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
    for each in sorted(usable, key=lambda each: each.parent.address.parts):
        of_card = offers.setdefault(each.parent.address, {})
        if (found := offer_once(each)) is not None:
            of_card.setdefault(found, []).append(each)
    matched: dict[PciAddress, dict[Offer, PciFunction]] = {at: {} for at in offers}
    own = {each.function.address for each in usable if each.tags.stays}
    for other in candidates.matched if matched else ():
        parent, address = other.parent.address, other.function.address
        # One that stays on its driver is another plugin's, unless a lease has bound it.
        if other.tags.stays and address not in own:
            continue
        if parent not in matched or address == parent:
            continue
        if (found := offer_once(other)) is not None:
            # Keep the first one: they are sorted.
            matched[parent].setdefault(found, other.function)
    recorded = candidates.provider_addresses
    for card, of_card in offers.items():
        yield from _devices(plugin_name, of_card, matched[card], recorded)


def _once(offer_of: OfferOf) -> OfferOf:
    """Return the same function, which computes the offer of functions alike once.

    Each scan runs it for all VFs of all cards, which share their tags and their PF.
    """
    known: dict[tuple[int, ...], Offer | None] = {}

    def once(each: UsableFunction | MatchedFunction) -> Offer | None:
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


def _devices(
    plugin_name: str,
    offers: Mapping[Offer, list[UsableFunction]],
    matched: Mapping[Offer, PciFunction],
    recorded: frozenset[PciAddress],
) -> Iterator[Device]:
    for each in sorted(offers):
        alike = sorted(offers[each], key=lambda usable: usable.function.address.parts)
        origin = _origin(each, alike[0].parent, matched, recorded)
        yield Device(
            plugin=plugin_name,
            address=origin.address,
            identity=origin.identity,
            resource_class=each.resource_class,
            traits=frozenset(each.traits),
            handles=tuple(usable.handle() for usable in alike),
            numa_node=alike[0].function.numa_node,
            erasure=Erasure.NONE if each.keeps_data else Erasure.RESET,
        )


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
