# SPDX-License-Identifier: Apache-2.0

"""The difference between the desired and the actual state of Placement; pure.

Both ways of publishing write this difference: into Nova's provider tree, and through
Placement's API. A provider is ours if its name and UUID prove it
(:mod:`os_acc.objects.provider_names`) or the record says so. Other providers, and
additions of others to our providers, are not changed.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from os_acc import exception
from os_acc.objects import provider_names
from os_acc.objects.device import CardProvider
from os_acc.objects.records import (
    NameKind,
    PlacementName,
    PublishedNames,
    classes,
    traits,
)
from os_acc.placement import device_traits, published
from os_acc.placement.capacity import Capacity
from os_acc.placement.changes import (
    EMPTY,
    Create,
    DeleteName,
    ListedProvider,
    MakeName,
    Move,
    ProviderContents,
    Record,
    RefusedChange,
    Remove,
    SetInventories,
    SetTraits,
    Step,
    record,
    withdrawn,
)

_OF_EARLIER_NODE: Final = (
    "os_acc has made it below an earlier compute node of this host: check that "
    "'openstack resource provider show --allocations {0}' has no allocation, then run "
    "'openstack resource provider delete {0}'"
)


@dataclasses.dataclass(frozen=True)
class DesiredState:
    """The desired state of this node in Placement.

    :ivar wanted: the capacity of all providers that are offered or leased.
    :ivar published_names: the names that os_acc has published.
    :ivar node_name: the prefix of our providers' names.
    :ivar named: the resource classes that the operator configured for devices.
    :ivar names: the resource classes and traits that each wanted provider is to have.
    """

    wanted: Sequence[Capacity]
    published_names: PublishedNames
    node_name: str
    named: frozenset[str] = frozenset()
    names: Mapping[str, frozenset[PlacementName]] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        names = {each.uuid: _names_of(each) for each in self.wanted}
        object.__setattr__(self, "names", names)

    @property
    def cards(self) -> Mapping[str, CardProvider]:
        """The card providers, between the node and its devices, by UUID."""
        found = (each.provider.card for each in self.wanted if each.provider)
        return {card.uuid: card for card in found if card is not None}

    @property
    def assigned(self) -> PublishedNames:
        """The names that the wanted providers are to have; others only keep leases."""
        return PublishedNames(
            {each.uuid: self.names[each.uuid] for each in self.wanted if each.provider}
        )

    def ours(self, nodes: Mapping[str, ListedProvider]) -> frozenset[str]:
        """Return the UUIDs of our providers in a tree, without wanted cards."""
        mine = {*self.published_names.assigned, *(each.uuid for each in self.wanted)}
        return frozenset(
            each.uuid
            for each in nodes.values()
            if each.uuid in mine
            or provider_names.is_ours(self.node_name, each.name, each.uuid)
        ).difference(self.cards)

    def gone(self, contents: Mapping[str, ProviderContents]) -> PublishedNames:
        """Return the names on record that are neither wanted nor present."""
        gone = {}
        for uuid, names in self.published_names.assigned.items():
            if unwanted := names.difference(self.names.get(uuid, ())):
                gone[uuid] = unwanted - contents.get(uuid, EMPTY).names
        return PublishedNames(gone)


class ActualState:
    """The current state of a node's providers.

    The methods answer for Nova's provider tree, which shows neither allocations nor
    aggregates: any unit may be allocated, and no provider or name can be deleted.

    :ivar root: the compute node.
    :ivar nodes: all providers of the tree, by UUID.
    :ivar contents: contents of our providers, by UUID; wanted cards have none.
    :ivar can_move: whether the parent of a provider can be changed.
    :ivar shows_owners: whether a class that is not ours is passed on. Nova adds
        those of its ``provider.yaml`` later, and fails if they are there.
    """

    root: ListedProvider
    nodes: Mapping[str, ListedProvider]
    contents: dict[str, ProviderContents]
    can_move = False
    shows_owners = False

    def existing(self, names: frozenset[PlacementName]) -> frozenset[PlacementName]:
        """Return the names that exist in Placement."""
        return names

    def deletable(
        self, names: frozenset[PlacementName], record: PublishedNames
    ) -> frozenset[PlacementName]:
        """Return the names that no other service is known to use."""
        del names, record
        return frozenset()

    def allocated(self, uuid: str) -> frozenset[str]:
        """Return the resource classes of a provider that may have allocations."""
        return frozenset(self.contents[uuid].inventories)

    def has_aggregates(self, uuid: str) -> bool:
        """Return whether a provider may be a member of an aggregate."""
        del uuid
        return True

    def elsewhere(self, uuid: str, name: str) -> ListedProvider | None:
        """Return a provider of another tree with this UUID or name, or None."""
        del uuid, name
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class ChangePlan:
    """The steps in order, and the changes that are impossible.

    :ivar recognized: providers that are ours by their names, but neither on
        record nor wanted, each with one of its resource classes.
    """

    steps: tuple[Step, ...]
    refused: tuple[RefusedChange, ...]
    recognized: Mapping[str, str]


def plan(goal: DesiredState, tree: ActualState) -> ChangePlan:
    """Return the changes that lead from the actual to the desired state."""
    return _Planning(goal, tree).plan()


class _Planning:
    def __init__(self, goal: DesiredState, tree: ActualState) -> None:
        self._goal = goal
        self._tree = tree
        self._record = goal.published_names
        self._our_classes = published.given_classes(goal.named, self._record).union(
            *(each.units for each in goal.wanted)
        )
        self._taken = {each.name: each for each in tree.nodes.values()}
        self._there = set(tree.nodes)
        #: The contents of our providers after the steps.
        self._after = dict(tree.contents)
        self._refused: list[RefusedChange] = []
        #: Standard names that Placement does not have.
        self._unusable: set[str] = set()

    def plan(self) -> ChangePlan:
        places = [*self._cards(), *self._places()]
        present = [each for each in self._goal.wanted if each.uuid in self._there]
        makes = list(self._makes(each.uuid for each in present))
        contents = [step for each in present for step in self._contents(each)]
        wanted = {each.uuid for each in self._goal.wanted}
        leaving = self._goal.ours(self._tree.nodes) - wanted - {self._tree.root.uuid}
        withdrawals = [*self._withdrawals(leaving), *self._emptied_cards()]
        return ChangePlan(
            (*makes, *places, *contents, *withdrawals, *self._deletes()),
            tuple(self._refused),
            self._recognized(leaving),
        )

    # -- positions in the tree ---------------------------------------------------

    def _cards(self) -> Iterator[Step]:
        # A region that is there and cannot be moved needs no card.
        needed = {
            each.provider.card.uuid
            for each in self._goal.wanted
            if each.provider is not None
            and each.provider.card is not None
            and (self._tree.can_move or each.uuid not in self._tree.nodes)
        }
        for uuid, card in sorted(self._goal.cards.items()):
            if uuid in needed:
                yield from self._place(uuid, card.name, self._tree.root)

    def _places(self) -> Iterator[Step]:
        for each in self._goal.wanted:
            if each.provider is None:
                # Its name is unknown; if it does not exist, it has no allocations.
                continue
            card = each.provider.card
            is_below = card is not None and card.uuid in self._there
            parent = card if card and is_below else self._tree.root
            yield from self._place(each.uuid, each.provider.name, parent)

    def _place(
        self, uuid: str, name: str, parent: CardProvider | ListedProvider
    ) -> Iterator[Step]:
        if node := self._tree.nodes.get(uuid):
            if self._is_to_move(node, parent.uuid):
                yield Move(uuid, node.name, parent.uuid, parent.name)
            return
        other = self._taken.get(name) or self._tree.elsewhere(uuid, name)
        if other is None:
            self._there.add(uuid)
            yield Create(uuid, name, parent.uuid, parent.name)
            return
        # The UUID is derived from the name: no other service has both.
        is_ours = other.uuid == uuid
        error = exception.ServiceRefused(
            f"cannot create {name} ({uuid}): {other.name} ({other.uuid}) exists "
            + ("in another tree" if is_ours else "already"),
            service=exception.ServiceType.PLACEMENT,
            reason=exception.RefusalReason.NAME_TAKEN,
            hint=_OF_EARLIER_NODE.format(uuid) if is_ours else "",
        )
        self._refused.append(RefusedChange(f"create {name}", error))

    def _is_to_move(self, node: ListedProvider, parent: str) -> bool:
        """Return whether a provider at the root, or below a card, belongs elsewhere.

        The device of one plugin may become a region of another plugin's card. A
        provider that an operator moved stays there.
        """
        root = self._tree.root.uuid
        return (
            self._tree.can_move
            and parent not in (node.parent, root)
            and node.parent in (root, *self._goal.cards)
        )

    # -- inventories and traits ---------------------------------------------------

    def _makes(self, present: Iterable[str]) -> Iterator[Step]:
        """Yield the creation of missing custom names; refuse missing standard names."""
        new = frozenset[PlacementName]().union(
            *(self._goal.names[uuid] - self._have(uuid).names for uuid in present)
        )
        for name in _sorted(new - self._tree.existing(new)):
            if name.is_custom:
                yield MakeName(name)
                continue
            self._unusable.add(name.text)
            error = exception.ServiceRefused(
                f"Placement does not have the {name}",
                hint="upgrade Placement: this standard name is newer than its release",
                service=exception.ServiceType.PLACEMENT,
            )
            self._refused.append(RefusedChange(f"use {name}", error))

    def _have(self, uuid: str) -> ProviderContents:
        return self._tree.contents.get(uuid, EMPTY)

    def _contents(self, wanted: Capacity) -> Iterator[Step]:
        """Yield the trait step first, so that no unit is offered without its traits."""
        uuid, have = wanted.uuid, self._have(wanted.uuid)
        due = have.traits
        if wanted.provider is not None:
            device = wanted.provider.device
            mine = self._record.texts(uuid, NameKind.TRAIT)
            mine |= device_traits.published_of(device, have.traits)
            due = (have.traits - mine) | (device.traits - self._unusable)
        ours = self._classes(uuid)
        ended = ours & have.inventories.keys() - wanted.units.keys()
        kept = self._tree.allocated(uuid) if ended else ()
        inventories = self._left(have, ours, kept)
        inventories |= {
            name: record(units)
            for name, units in wanted.units.items()
            if name not in self._unusable
        }
        name = wanted.provider.name if wanted.provider else wanted.uuid
        if node := self._tree.nodes.get(uuid):
            name = node.name
        yield from self._set(uuid, name, due, inventories)

    def _classes(self, uuid: str) -> frozenset[str]:
        """Return our resource classes of a provider.

        A class may have been published before the record was lost.
        """
        return self._record.texts(uuid, NameKind.RESOURCE_CLASS) | published.classes_of(
            self._have(uuid).inventories, self._our_classes
        )

    def _left(
        self, have: ProviderContents, ours: Container[str], kept: Container[str]
    ) -> dict[str, Record]:
        """Return the foreign inventories of a provider, and ours with no free unit.

        :param ours: see :meth:`_classes`.
        :param kept: the classes of ours that stay.
        """
        found = {}
        for name, each in have.inventories.items():
            if name not in ours and self._tree.shows_owners:
                found[name] = each
            elif name in ours and name in kept:
                found[name] = withdrawn(each)
        return found

    def _set(
        self,
        uuid: str,
        name: str,
        traits: frozenset[str],
        inventories: dict[str, Record],
    ) -> Iterator[Step]:
        have = self._have(uuid)
        self._after[uuid] = dataclasses.replace(
            have, inventories=inventories, traits=traits
        )
        if traits != have.traits:
            yield SetTraits(uuid, name, traits, have.traits)
        if inventories != have.inventories:
            yield SetInventories(uuid, name, inventories, have.inventories)

    # -- providers that are not wanted ----------------------------------------------

    def _withdrawals(self, leaving: frozenset[str]) -> Iterator[Step]:
        """Remove providers, or reserve all of their units; leaves first."""
        children = defaultdict(set)
        for node in self._tree.nodes.values():
            children[node.parent].add(node.uuid)
        there, left = set(self._tree.nodes), set(leaving)
        while leaves := {each for each in left if children[each].isdisjoint(left)}:
            for uuid in sorted(leaves):
                name, have = self._tree.nodes[uuid].name, self._have(uuid)
                if children[uuid].isdisjoint(there) and self._is_free(uuid, have):
                    there.remove(uuid)
                    del self._after[uuid]
                    yield Remove(uuid, name)
                elif not (ours := self._classes(uuid)).isdisjoint(have.inventories):
                    inventories = self._left(have, ours, have.inventories)
                    yield from self._set(uuid, name, have.traits, inventories)
            left -= leaves

    def _emptied_cards(self) -> Iterator[Step]:
        """Remove the inventories of cards from Nova's tree: os_acc gives them none."""
        if self._tree.shows_owners:
            return
        for uuid, node in sorted(self._tree.nodes.items()):
            if provider_names.is_card(self._goal.node_name, node.name, uuid):
                yield from self._set(uuid, node.name, self._have(uuid).traits, {})

    def _is_free(self, uuid: str, have: ProviderContents) -> bool:
        return (
            have.names <= self._record.of(uuid)
            and not (have.inventories and self._tree.allocated(uuid))
            and not self._tree.has_aggregates(uuid)
        )

    def _recognized(self, leaving: frozenset[str]) -> Mapping[str, str]:
        found = {
            uuid: self._classes(uuid) for uuid in leaving - self._record.assigned.keys()
        }
        return {uuid: min(names) for uuid, names in found.items() if names}

    # -- names ------------------------------------------------------------------------

    def _deletes(self) -> Iterator[Step]:
        unused = self._record.created.difference(*self._goal.names.values())
        if unused:
            unused = unused.difference(*(each.names for each in self._after.values()))
        for name in _sorted(self._tree.deletable(unused, self._record)):
            yield DeleteName(name)


def _names_of(wanted: Capacity) -> frozenset[PlacementName]:
    """Return the resource classes and traits that a provider is to have."""
    found = traits(wanted.provider.device.traits) if wanted.provider else frozenset()
    return classes(wanted.units) | found


def _sorted(names: Iterable[PlacementName]) -> list[PlacementName]:
    return sorted(names, key=lambda each: (each.kind.value, each.text))
