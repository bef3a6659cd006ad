# SPDX-License-Identifier: Apache-2.0

"""Inventory and traits in Nova's provider tree."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, cast, runtime_checkable

from oslo_log import log

from os_acc import exception
from os_acc.objects import provider_names
from os_acc.placement import diff
from os_acc.placement.capacity import Capacity
from os_acc.placement.changes import (
    Create,
    ListedProvider,
    ProviderContents,
    SetInventories,
    SetTraits,
    Step,
    withdrawn,
)
from os_acc.placement.published import PublishedCache

LOG = log.getLogger(__name__)

_Inventory = dict[str, dict[str, Any]]


class ProviderData(Protocol):
    """A snapshot of one provider."""

    @property
    def name(self) -> str:
        """The name of the provider."""

    @property
    def inventory(self) -> _Inventory:
        """Placement's inventory records by resource class."""

    @property
    def traits(self) -> set[str]:
        """The names of its traits."""


@runtime_checkable
class ProviderTree(Protocol):
    """The methods of ``nova.compute.provider_tree.ProviderTree`` that are used."""

    def get_provider_uuids(self, name_or_uuid: str | None = None) -> list[str]:
        """Return the UUIDs of all providers."""

    def exists(self, name_or_uuid: str) -> bool:
        """Return whether the provider exists."""

    def data(self, name_or_uuid: str) -> ProviderData:
        """Return a snapshot of a provider."""

    def new_child(self, name: str, parent: str, uuid: str) -> object:
        """Add a child provider."""

    def update_inventory(self, name_or_uuid: str, inventory: _Inventory) -> object:
        """Replace a provider's inventory."""

    def add_traits(self, name_or_uuid: str, *traits: str) -> None:
        """Add traits to a provider."""

    def remove_traits(self, name_or_uuid: str, *traits: str) -> None:
        """Remove traits of a provider."""


class TreeWriter:
    """Write the inventory into Nova's provider trees; thread-safe.

    :param node_name: the prefix of our providers' names.
    :param memory: the names that any process published before.
    :param named: the resource classes that the operator configured for devices.
    :ivar traits: the traits of each provider in the last tree, before it was written.
    """

    def __init__(
        self, node_name: str, memory: PublishedCache, named: Collection[str] = ()
    ) -> None:
        self._node_name = node_name
        self._memory = memory
        self._named = frozenset(named)
        self.traits: Mapping[str, frozenset[str]] = MappingProxyType({})
        self._warned: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """Replace the lock; in a forked child no thread holds it."""
        # Held while a tree is written.
        self._lock = threading.Lock()

    def write(
        self, tree: object, nodename: object, wanted: Sequence[Capacity]
    ) -> Mapping[str, str]:
        """Write the capacity into a tree; other contents of the tree stay.

        :returns: one resource class of each provider that is ours by its name, but
            neither on record nor wanted.
        :raises InvalidInput: ``tree`` is no provider tree, ``nodename`` no text, or
            the tree lacks the node.
        """
        tree, nodename = _checked(tree, nodename)
        with self._lock:
            if nodename.partition(".")[0] != self._node_name.partition(".")[0]:
                self._warn_once(
                    f"Nova calls this node {nodename!r}, but [os_acc] node_name "
                    f"is {self._node_name!r}: set node_name to a name that no "
                    "other host has, since the names of the providers contain it"
                )
            state = _NovaState(tree, nodename)
            self.traits = MappingProxyType(
                {uuid: each.traits for uuid, each in state.contents.items()}
            )
            goal = diff.DesiredState(
                wanted, self._memory.names, self._node_name, self._named
            )
            plan = diff.plan(goal, state)
            for step in plan.steps:
                _carry_out(step, tree)
            for each in plan.refused:
                # Placement rejects a duplicate name, and Nova's entire update fails.
                self._warn_once(f"cannot publish through Nova: {each}")
            # Names stay on record until a tree lacks them: Nova may fail to pass on
            # the change.
            if gone := goal.gone(state.contents):
                self._memory.note_gone(gone)
        return plan.recognized

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            LOG.warning("%s", text)


class _NovaState(diff.ActualState):
    """The contents of Nova's tree. Their parents do not matter: none can be moved."""

    def __init__(self, tree: ProviderTree, nodename: str) -> None:
        found = {uuid: tree.data(uuid) for uuid in tree.get_provider_uuids()}
        self.nodes = {
            uuid: ListedProvider(uuid, each.name, None, 0)
            for uuid, each in found.items()
        }
        self.contents = {
            uuid: ProviderContents(0, each.inventory, frozenset(each.traits))
            for uuid, each in found.items()
        }
        self.root = next(
            each for each in self.nodes.values() if nodename in (each.uuid, each.name)
        )


def _carry_out(step: Step, tree: ProviderTree) -> None:
    match step:
        case Create():
            tree.new_child(step.name, step.parent, uuid=step.uuid)
        case SetTraits():
            tree.add_traits(step.uuid, *step.added)
            tree.remove_traits(step.uuid, *step.removed)
        case SetInventories():
            inventory = {name: {**each} for name, each in step.inventories.items()}
            tree.update_inventory(step.uuid, inventory)


def withdraw(
    tree: object, nodename: object, node_name: str, added: Mapping[str, Collection[str]]
) -> int:
    """Reserve all units of a node's providers; return the number of providers.

    They are recognized by name and UUID alone; see :func:`os_acc.withdraw_providers`.

    :param node_name: the prefix of our providers' names.
    :param added: see :func:`os_acc.withdraw_providers`.
    :raises InvalidInput: as :meth:`TreeWriter.write` raises it.
    """
    tree, _nodename = _checked(tree, nodename)
    count = 0
    for uuid in tree.get_provider_uuids():
        found = tree.data(uuid)
        if not provider_names.is_ours(node_name, found.name, uuid):
            continue
        count += 1
        novas = {*added.get(uuid, ()), *added.get(found.name, ())}
        inventory = {
            name: withdrawn(each)
            for name, each in found.inventory.items()
            if name not in novas
        }
        if inventory != found.inventory:
            tree.update_inventory(uuid, inventory)
        if any(each != found.inventory[name] for name, each in inventory.items()):
            LOG.warning(
                "os_acc does not serve node %s: all units of provider %s are reserved",
                node_name,
                found.name,
            )
    return count


def _checked(tree: object, nodename: object) -> tuple[ProviderTree, str]:
    # isinstance() lists the members of the protocol in each call.
    if not issubclass(type(tree), ProviderTree):
        raise exception.InvalidInput(
            f"provider_tree is {exception.show(tree)}, not a provider tree"
        )
    if not isinstance(nodename, str):
        raise exception.InvalidInput(
            f"nodename is {exception.show(nodename)}, not text"
        )
    found = cast(ProviderTree, tree)
    if not found.exists(nodename):
        raise exception.InvalidInput(
            f"the provider tree has no compute node {exception.show(nodename)}",
            hint="pass the name of the compute node's root provider, as given by Nova",
        )
    return found, nodename
