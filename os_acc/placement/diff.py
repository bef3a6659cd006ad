# SPDX-License-Identifier: Apache-2.0

"""What has to change in Placement so that it holds what is wanted; pure.

Ours is what our names and uuids prove ours (:mod:`os_acc.objects.naming`) or
the record says. All else is left as it is: others' providers, and what of our
own others have added.
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
from os_acc.placement import published, region_traits
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


@dataclasses.dataclass(frozen=True, slots=True)
class DesiredState:
    """What Placement is to hold of this node.

    :ivar wanted: all that is offered or leased.
    :ivar told: what is ours of what it holds already.
    :ivar node_name: of which our providers' names are made.
    :ivar named: the resource classes that the operator has given devices.
    """

    wanted: Sequence[Capacity]
    told: PublishedNames
    node_name: str
    named: frozenset[str] = frozenset()

    @property
    def cards(self) -> Mapping[str, CardProvider]:
        """What is above the wanted providers and below the node, by uuid."""
        found = (each.provider.card for each in self.wanted if each.provider)
        return {card.uuid: card for card in found if card is not None}

    @property
    def classes(self) -> frozenset[str]:
        """The classes that are known to be, or to have been, what os_acc gives."""
        return published.given_classes(self.named, self.given | self.told)

    @property
    def given(self) -> PublishedNames:
        """What the wanted providers are given."""
        return PublishedNames.of_mapping(
            {each.uuid: _names(each) for each in self.wanted if each.provider}
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ActualState:
    """What Placement says of this node.

    :ivar nodes: all providers of its tree, by uuid.
    :ivar contents: of ours, by uuid; a card that is wanted is left out.
    :ivar can_move: whether a provider can be put below another one.
    """

    root: ListedProvider
    nodes: Mapping[str, ListedProvider]
    contents: Mapping[str, ProviderContents]
    can_move: bool


@dataclasses.dataclass(frozen=True, slots=True)
class LookupResults:
    """What has to be asked besides; see :class:`Lookups`.

    :ivar known: the names that there are.
    :ivar allocated: of which classes of a provider somebody has something.
    :ivar gathered: the providers that are in an aggregate of somebody's.
    :ivar elsewhere: providers that are not in the tree, by a name or a uuid
        of ours.
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
    """What a plan depends on, beside the tree.

    :ivar names: are they known?
    :ivar providers: is anything of them allocated?
    :ivar leaving: those that are to be deleted, unless something of them is
        allocated; is one in an aggregate?
    :ivar new: (uuid, name) of those to be made; has anybody else such a one?
    """

    names: frozenset[PlacementName]
    providers: frozenset[str]
    leaving: frozenset[str]
    new: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ChangePlan:
    """What is to be done, in this order, and what cannot be.

    :ivar gone: what is on record and not true any more.
    """

    steps: tuple[Step, ...]
    refused: tuple[RefusedChange, ...]
    gone: PublishedNames


def ours(goal: DesiredState, nodes: Mapping[str, ListedProvider]) -> frozenset[str]:
    """The uuids of our providers in a tree; cards that are wanted are not told."""
    wanted = {each.uuid for each in goal.wanted}
    found = (
        each.uuid
        for each in nodes.values()
        if each.uuid in wanted
        or each.uuid in goal.told.given
        or naming.is_ours(goal.node_name, each.name, each.uuid)
    )
    return frozenset(found) - goal.cards.keys()


def questions(goal: DesiredState, tree: ActualState) -> Lookups:
    """What has to be asked before a plan can be made."""
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
        if not _foreign(tree.contents[uuid], uuid, goal.told)
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
    kept: Collection[PlacementName] = (),
) -> ChangePlan:
    """What is to be done.

    :param kept: names of our making that are known to be used by others.
    """
    return _Planning(goal, tree, answers).plan(kept)


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

    def plan(self, kept: Collection[PlacementName]) -> ChangePlan:
        places = [*self._cards(), *self._places()]
        contents = [step for each in self._present() for step in self._contents(each)]
        withdrawals = list(self._withdrawals())
        makes = [MakeName(each) for each in self._made()]
        deletes = [DeleteName(each) for each in self._unused(kept)]
        return ChangePlan(
            (*makes, *places, *contents, *withdrawals, *deletes),
            tuple(self._refused),
            self._gone(),
        )

    # -- where providers stand --------------------------------------------------

    def _cards(self) -> Iterator[Step]:
        root = self._tree.root
        for uuid, card in sorted(self._goal.cards.items()):
            yield from self._place(uuid, card.name, root.uuid, root.name)

    def _places(self) -> Iterator[Step]:
        root = self._tree.root
        for each in self._goal.wanted:
            if each.provider is None:
                # What it was called is not known; where it is not there, nothing
                # of it can be allocated.
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
                exception.ProviderTaken(
                    f"{name} ({uuid}) cannot be made: there is {other.name} "
                    f"({other.uuid}) "
                    + ("already" if other.uuid != uuid else "in another tree")
                ),
            )
            return
        self._there.add(uuid)
        yield Create(uuid, name, parent, below)

    def _is_to_move(self, node: ListedProvider, parent: str) -> bool:
        """Whether an older os_acc has put it elsewhere.

        It goes below its card, never back; where an operator has put it, it stays.
        """
        if node.parent == parent or parent == self._tree.root.uuid:
            return False
        mine = node.parent in (self._tree.root.uuid, *self._goal.cards)
        return mine and self._tree.can_move

    def _present(self) -> list[Capacity]:
        return [each for each in self._goal.wanted if each.uuid in self._there]

    # -- what they have -----------------------------------------------------------

    def _contents(self, wanted: Capacity) -> Iterator[Step]:
        """Traits come first: none is given out that has not all of them."""
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
            told = self._goal.told.texts(wanted.uuid, NameKind.TRAIT)
            told |= region_traits.published_of(device, have.traits)
            due = have.traits - (told - device.traits) | device.traits - refused
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

    # -- what is not wanted any more ------------------------------------------------

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
        if _foreign(have, uuid, self._goal.told) or uuid in self._answers.gathered:
            return False
        return not have.inventories or self._answers.allocated.get(uuid) == _NOTHING

    # -- names ------------------------------------------------------------------------

    def _made(self) -> list[PlacementName]:
        for name in _sorted(self._unknown):
            if not name.is_custom:
                self._refuse(
                    f"use {name}",
                    exception.PlacementRefused(
                        f"Placement does not know the {name}",
                        hint="it is a standard one, and younger than Placement",
                    ),
                )
        return [name for name in _sorted(self._unknown) if name.is_custom]

    def _unused(self, kept: Collection[PlacementName]) -> list[PlacementName]:
        used = {name for each in self._goal.wanted for name in _names(each)}
        for uuid in self._tree.nodes.keys() & self._goal.told.given.keys():
            if uuid not in self._removed:
                used |= self._goal.told.of(uuid) & self._stays(uuid)
        return _sorted(self._goal.told.made - used - frozenset(kept))

    def _stays(self, uuid: str) -> frozenset[PlacementName]:
        """What of a provider's is not on its way out."""
        have = self._tree.contents.get(uuid, EMPTY)
        for each in self._goal.wanted:
            if each.uuid == uuid and each.provider is not None:
                allocated = self._answers.allocated.get(uuid, _NOTHING)
                return _names(each) | classes(allocated)
        return have.names

    def _gone(self) -> PublishedNames:
        """What is on record, not wanted, and not there either."""
        wanted = {each.uuid: each for each in self._goal.wanted}
        given = {}
        for uuid, names in self._goal.told.given.items():
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
    """Our classes of a provider that it is not to have any more."""
    mine = goal.told.texts(wanted.uuid, NameKind.RESOURCE_CLASS)
    left = have.inventories.keys() - wanted.units.keys()
    if others := left - mine:
        # It may have had another one before the record was lost.
        mine |= published.classes_of(_NOTHING, others, goal.classes)
    return mine & left


def _foreign(
    have: ProviderContents, uuid: str, told: PublishedNames
) -> frozenset[PlacementName]:
    """What others have added to a provider of ours."""
    return have.names - told.of(uuid)


def recognized(goal: DesiredState, tree: ActualState) -> Mapping[str, str]:
    """Providers of ours that nothing but their names tells: they are not on record.

    Each is told with one of its classes, by its uuid; the others have none.
    """
    found = {
        uuid: _classes_of(uuid, goal, tree.contents[uuid])
        for uuid in _leaving(goal, tree)
        if uuid not in goal.told.given
    }
    return {uuid: min(names) for uuid, names in found.items() if names}


def _classes_of(
    uuid: str, goal: DesiredState, have: ProviderContents
) -> frozenset[str]:
    told = goal.told.texts(uuid, NameKind.RESOURCE_CLASS)
    return published.classes_of(told, have.inventories, goal.classes)


def _leaving(goal: DesiredState, tree: ActualState) -> list[str]:
    """Ours that are not wanted, those at the bottom first."""
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
