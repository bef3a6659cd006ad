# SPDX-License-Identifier: Apache-2.0

"""The difference between the desired and the actual state of Placement; pure.

A provider is ours if its name and UUID prove it (:mod:`os_acc.objects.naming`) or
the record says so. Other providers, and additions of others to our providers,
are not changed.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from os_acc import exception
from os_acc.objects import naming
from os_acc.objects.device import CardProvider
from os_acc.objects.published import (
    NameKind,
    PlacementName,
    PublishedNames,
    classes,
    traits,
)
from os_acc.placement import cell_traits, published, region_traits
from os_acc.placement.api_model import (
    EMPTY,
    ListedProvider,
    ProviderContents,
    Record,
    record,
    withdrawn,
)
from os_acc.placement.capacity import Capacity
from os_acc.placement.changes import (
    Create,
    DeleteName,
    MakeName,
    Move,
    RefusedChange,
    Remove,
    SetInventories,
    SetTraits,
    Step,
)

_NOTHING: Final[frozenset[str]] = frozenset()
_OF_EARLIER_NODE: Final = (
    "os_acc has made it below an earlier compute node of this host: check that "
    "'openstack resource provider show --allocations {0}' has no allocation, then run "
    "'openstack resource provider delete {0}'"
)


@dataclasses.dataclass(frozen=True, slots=True)
class DesiredState:
    """The desired state of this node in Placement.

    :ivar wanted: the capacity of all providers that are offered or leased.
    :ivar published_names: the names that os_acc has published.
    :ivar node_name: the prefix of our providers' names.
    :ivar named: the resource classes that the operator configured for devices.
    """

    wanted: Sequence[Capacity]
    published_names: PublishedNames
    node_name: str
    named: frozenset[str] = frozenset()

    @property
    def cards(self) -> Mapping[str, CardProvider]:
        """The card providers, between the node and its devices, by UUID."""
        found = (each.provider.card for each in self.wanted if each.provider)
        return {card.uuid: card for card in found if card is not None}

    @property
    def classes(self) -> frozenset[str]:
        """The resource classes that os_acc publishes, or has published."""
        return published.given_classes(self.named, self.assigned | self.published_names)

    @property
    def assigned(self) -> PublishedNames:
        """The names that the wanted providers are to have."""
        return PublishedNames.of_mapping(
            {each.uuid: _names(each) for each in self.wanted if each.provider}
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ActualState:
    """The current state of this node in Placement.

    :ivar nodes: all providers of the node's tree, by UUID.
    :ivar contents: contents of our providers, by UUID, without wanted cards.
    :ivar can_move: whether Placement can change the parent of a provider.
    """

    root: ListedProvider
    nodes: Mapping[str, ListedProvider]
    contents: Mapping[str, ProviderContents]
    can_move: bool


@dataclasses.dataclass(frozen=True, slots=True)
class LookupResults:
    """The results of :class:`Lookups`.

    :ivar known: the names that exist.
    :ivar allocated: the resource classes with allocations, by provider.
    :ivar gathered: the providers that are members of an aggregate.
    :ivar elsewhere: providers of other trees with a name or UUID of ours, by
        that name or UUID.
    """

    known: frozenset[PlacementName] = frozenset()
    allocated: Mapping[str, frozenset[str]] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    gathered: frozenset[str] = _NOTHING
    elsewhere: Mapping[str, ListedProvider] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Lookups:
    """The facts that a plan needs besides the tree.

    :ivar names: the names to look up.
    :ivar providers: the providers whose allocations to look up.
    :ivar leaving: the providers to delete, if they have no allocations and are
        in no aggregate.
    :ivar new: (UUID, name) of the providers to create, if no other tree has
        either.
    """

    names: frozenset[PlacementName]
    providers: frozenset[str]
    leaving: frozenset[str]
    new: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ChangePlan:
    """The steps in order, and the changes that are impossible.

    :ivar gone: names on record that do not exist any more.
    """

    steps: tuple[Step, ...]
    refused: tuple[RefusedChange, ...]
    gone: PublishedNames


def ours(goal: DesiredState, nodes: Mapping[str, ListedProvider]) -> frozenset[str]:
    """Return the UUIDs of our providers in a tree, without wanted cards."""
    wanted = {each.uuid for each in goal.wanted}
    found = (
        each.uuid
        for each in nodes.values()
        if each.uuid in wanted
        or each.uuid in goal.published_names.assigned
        or naming.is_ours(goal.node_name, each.name, each.uuid)
    )
    return frozenset(found) - goal.cards.keys()


def questions(goal: DesiredState, tree: ActualState) -> Lookups:
    """Return the facts to look up before a plan can be made."""
    names: set[PlacementName] = set()
    asked: set[str] = set()
    for each in goal.wanted:
        have = tree.contents.get(each.uuid, EMPTY)
        names |= _names(each) - have.names
        if _ended(each, have, goal):
            asked.add(each.uuid)
    leaving = frozenset(
        uuid
        for uuid in _leaving(goal, tree)
        if not _foreign(tree.contents[uuid], uuid, goal.published_names)
    )
    asked |= {uuid for uuid in leaving if tree.contents[uuid].inventories}
    places = [
        *((each.uuid, each.name) for each in goal.cards.values()),
        *((each.uuid, each.provider.name) for each in goal.wanted if each.provider),
    ]
    return Lookups(
        frozenset(names),
        frozenset(asked),
        leaving,
        tuple(each for each in places if each[0] not in tree.nodes),
    )


def plan(
    goal: DesiredState,
    tree: ActualState,
    answers: LookupResults,
    in_use: Collection[PlacementName] = (),
) -> ChangePlan:
    """Return the plan.

    :param in_use: names that os_acc created and others are known to use.
    """
    return _Planning(goal, tree, answers).plan(in_use)


class _Planning:
    def __init__(
        self, goal: DesiredState, tree: ActualState, answers: LookupResults
    ) -> None:
        self._goal = goal
        self._tree = tree
        self._answers = answers
        self._taken = {each.name: each for each in tree.nodes.values()}
        self._there = set(tree.nodes)
        self._refused: list[RefusedChange] = []
        self._unknown: set[PlacementName] = set()
        self._removed: set[str] = set()

    def plan(self, in_use: Collection[PlacementName]) -> ChangePlan:
        places = [*self._cards(), *self._places()]
        contents = [step for each in self._present() for step in self._contents(each)]
        withdrawals = list(self._withdrawals())
        makes = [MakeName(each) for each in self._made()]
        deletes = [DeleteName(each) for each in self._unused(in_use)]
        return ChangePlan(
            (*makes, *places, *contents, *withdrawals, *deletes),
            tuple(self._refused),
            self._gone(),
        )

    # -- placement in the tree --------------------------------------------------

    def _cards(self) -> Iterator[Step]:
        root = self._tree.root
        for uuid, card in sorted(self._goal.cards.items()):
            yield from self._place(uuid, card.name, root.uuid, root.name)

    def _places(self) -> Iterator[Step]:
        root = self._tree.root
        for each in self._goal.wanted:
            if each.provider is None:
                # Its name is unknown; if it does not exist, it has no allocations.
                continue
            card = each.provider.card
            if card is None or card.uuid not in self._there:
                place = root.uuid, root.name
            else:
                place = card.uuid, card.name
            yield from self._place(each.uuid, each.provider.name, *place)

    def _place(self, uuid: str, name: str, parent: str, below: str) -> Iterator[Step]:
        if node := self._tree.nodes.get(uuid):
            if self._is_to_move(node, parent):
                yield Move(uuid, node.name, parent, below)
            return
        elsewhere = self._answers.elsewhere
        other = self._taken.get(name) or elsewhere.get(name) or elsewhere.get(uuid)
        if other is not None:
            self._refuse(
                f"create {name}",
                exception.ServiceRefused(
                    f"cannot create {name} ({uuid}): {other.name} "
                    f"({other.uuid}) exists "
                    + ("already" if other.uuid != uuid else "in another tree"),
                    service=exception.ServiceType.PLACEMENT,
                    reason=exception.RefusalReason.NAME_TAKEN,
                    # The UUID is derived from the name: no other service has both.
                    hint=_OF_EARLIER_NODE.format(uuid) if other.uuid == uuid else "",
                ),
            )
            return
        self._there.add(uuid)
        yield Create(uuid, name, parent, below)

    def _is_to_move(self, node: ListedProvider, parent: str) -> bool:
        """Return whether a provider at the root, or below a card, belongs elsewhere.

        A card that one plugin offered as a whole may become a region of another
        plugin. A provider that an operator moved stays there.
        """
        if node.parent == parent or parent == self._tree.root.uuid:
            return False
        mine = node.parent in (self._tree.root.uuid, *self._goal.cards)
        return mine and self._tree.can_move

    def _present(self) -> list[Capacity]:
        return [each for each in self._goal.wanted if each.uuid in self._there]

    # -- inventories and traits ---------------------------------------------------

    def _contents(self, wanted: Capacity) -> Iterator[Step]:
        """Yield the trait step first, so that no unit is offered without its traits."""
        have = self._tree.contents.get(wanted.uuid, EMPTY)
        name = self._name(wanted)
        missing = {
            each
            for each in _names(wanted) - have.names
            if each not in self._answers.known
        }
        self._unknown |= missing
        refused = frozenset(each.text for each in missing if not each.is_custom)
        if wanted.provider is not None:
            device = wanted.provider.device
            published_traits = self._goal.published_names.texts(
                wanted.uuid, NameKind.TRAIT
            )
            published_traits |= region_traits.published_of(device, have.traits)
            published_traits |= cell_traits.published_of(have.traits)
            due = (
                have.traits - (published_traits - device.traits)
                | device.traits - refused
            )
            if due != have.traits:
                yield SetTraits(
                    wanted.uuid,
                    name,
                    due,
                    added=due - have.traits,
                    removed=have.traits - due,
                )
        inventories = self._inventories(wanted, have, refused)
        if inventories != have.inventories:
            yield SetInventories(wanted.uuid, name, inventories, have.inventories)

    def _inventories(
        self, wanted: Capacity, have: ProviderContents, refused: frozenset[str]
    ) -> dict[str, Record]:
        found: dict[str, Record] = {
            name: record(units)
            for name, units in wanted.units.items()
            if name not in refused
        }
        ended = _ended(wanted, have, self._goal)
        allocated = self._answers.allocated.get(wanted.uuid, _NOTHING)
        for name, before in have.inventories.items():
            if name in ended & allocated:
                found[name] = withdrawn(before)
            elif name not in ended:
                found.setdefault(name, before)
        return found

    # -- providers that are not wanted ----------------------------------------------

    def _withdrawals(self) -> Iterator[Step]:
        children = defaultdict(set)
        for node in self._tree.nodes.values():
            children[node.parent].add(node.uuid)
        for uuid in _leaving(self._goal, self._tree):
            node, have = self._tree.nodes[uuid], self._tree.contents[uuid]
            if self._is_free(uuid, have) and children[uuid] <= self._removed:
                self._removed.add(uuid)
                yield Remove(uuid, node.name)
                continue
            ours = _classes_of(uuid, self._goal, have)
            inventories = {
                name: withdrawn(each) if name in ours else each
                for name, each in have.inventories.items()
            }
            if inventories != have.inventories:
                yield SetInventories(uuid, node.name, inventories, have.inventories)

    def _is_free(self, uuid: str, have: ProviderContents) -> bool:
        if (
            _foreign(have, uuid, self._goal.published_names)
            or uuid in self._answers.gathered
        ):
            return False
        return not have.inventories or self._answers.allocated.get(uuid) == _NOTHING

    # -- names ------------------------------------------------------------------------

    def _made(self) -> list[PlacementName]:
        for name in _sorted(self._unknown):
            if not name.is_custom:
                self._refuse(
                    f"use {name}",
                    exception.ServiceRefused(
                        f"Placement does not have the {name}",
                        hint="upgrade Placement: this standard name is newer than its "
                        "release",
                        service=exception.ServiceType.PLACEMENT,
                    ),
                )
        return [name for name in _sorted(self._unknown) if name.is_custom]

    def _unused(self, in_use: Collection[PlacementName]) -> list[PlacementName]:
        used = {name for each in self._goal.wanted for name in _names(each)}
        for uuid in (
            self._tree.nodes.keys() & self._goal.published_names.assigned.keys()
        ):
            if uuid not in self._removed:
                used |= self._goal.published_names.of(uuid) & self._stays(uuid)
        return _sorted(self._goal.published_names.created - used - frozenset(in_use))

    def _stays(self, uuid: str) -> frozenset[PlacementName]:
        """Return the names of a provider that remain in use."""
        have = self._tree.contents.get(uuid, EMPTY)
        for each in self._goal.wanted:
            if each.uuid == uuid and each.provider is not None:
                allocated = self._answers.allocated.get(uuid, _NOTHING)
                return _names(each) | classes(allocated)
        return have.names

    def _gone(self) -> PublishedNames:
        """Return the names on record that are neither wanted nor present."""
        wanted = {each.uuid: each for each in self._goal.wanted}
        given = {}
        for uuid, names in self._goal.published_names.assigned.items():
            have = self._tree.contents.get(uuid, EMPTY).names
            mine = _names(wanted[uuid]) if uuid in wanted else frozenset()
            given[uuid] = names - have - mine
        return PublishedNames.of_mapping(given)

    def _name(self, wanted: Capacity) -> str:
        if node := self._tree.nodes.get(wanted.uuid):
            return node.name
        return wanted.provider.name if wanted.provider else wanted.uuid

    def _refuse(self, what: str, error: exception.OsAccError) -> None:
        self._refused.append(RefusedChange(what, error))


def _names(wanted: Capacity) -> frozenset[PlacementName]:
    own = wanted.provider.device.traits if wanted.provider else _NOTHING
    return classes(wanted.units) | traits(own)


def _ended(
    wanted: Capacity, have: ProviderContents, goal: DesiredState
) -> frozenset[str]:
    """Return our classes of a provider that are to be removed."""
    mine = goal.published_names.texts(wanted.uuid, NameKind.RESOURCE_CLASS)
    left = have.inventories.keys() - wanted.units.keys()
    if others := left - mine:
        # A class may have been published before the record was lost.
        mine |= published.classes_of(_NOTHING, others, goal.classes)
    return mine & left


def _foreign(
    have: ProviderContents, uuid: str, published_names: PublishedNames
) -> frozenset[PlacementName]:
    """Return the names that others added to our provider."""
    return have.names - published_names.of(uuid)


def recognized(goal: DesiredState, tree: ActualState) -> Mapping[str, str]:
    """Return providers of ours that are not on record, each with one class.

    They are recognised by their names alone. Providers without classes are left out.
    """
    found = {
        uuid: _classes_of(uuid, goal, tree.contents[uuid])
        for uuid in _leaving(goal, tree)
        if uuid not in goal.published_names.assigned
    }
    return {uuid: min(names) for uuid, names in found.items() if names}


def _classes_of(
    uuid: str, goal: DesiredState, have: ProviderContents
) -> frozenset[str]:
    published_classes = goal.published_names.texts(uuid, NameKind.RESOURCE_CLASS)
    return published.classes_of(published_classes, have.inventories, goal.classes)


def _leaving(goal: DesiredState, tree: ActualState) -> list[str]:
    """Return our providers that are not wanted, leaves first."""
    wanted = {each.uuid for each in goal.wanted}
    gone = ours(goal, tree.nodes) - wanted - {tree.root.uuid}
    return sorted(gone, key=lambda each: (-_depth(tree, each), each))


def _depth(tree: ActualState, uuid: str) -> int:
    depth, at = 0, tree.nodes.get(uuid)
    while at is not None and at.parent is not None:
        depth, at = depth + 1, tree.nodes.get(at.parent)
    return depth


def _sorted(names: Collection[PlacementName]) -> list[PlacementName]:
    return sorted(names, key=lambda each: (each.kind.value, each.text))
