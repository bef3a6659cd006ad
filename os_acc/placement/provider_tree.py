# SPDX-License-Identifier: Apache-2.0

"""Inventory and traits in Nova's provider tree."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from oslo_log import log

from os_acc import exception
from os_acc.objects import naming
from os_acc.objects.published import NameKind
from os_acc.placement import cell_traits, published, region_traits
from os_acc.placement.api_model import record, withdrawn
from os_acc.placement.capacity import Capacity
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

    def has_inventory_changed(self, name_or_uuid: str, inventory: _Inventory) -> bool:
        """Return whether the inventory differs from the provider's."""

    def update_inventory(self, name_or_uuid: str, inventory: _Inventory) -> object:
        """Replace a provider's inventory."""

    def add_traits(self, name_or_uuid: str, *traits: str) -> None:
        """Add traits to a provider."""

    def remove_traits(self, name_or_uuid: str, *traits: str) -> None:
        """Remove traits of a provider."""


class TreeWriter:
    """Write the inventory into Nova's provider trees, and remember the last one.

    :param node_name: the prefix of our providers' names.
    :param memory: the names that any process published before.
    :param named: the resource classes that the operator configured for devices.
    """

    def __init__(
        self, node_name: str, memory: PublishedCache, named: Collection[str] = ()
    ) -> None:
        self._node_name = node_name
        self._memory = memory
        self._named = frozenset(named)
        self._heard: Mapping[str, frozenset[str]] = MappingProxyType({})
        self._warned: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """Replace the lock; in a forked child no thread holds it."""
        # Held while a tree is written.
        self._lock = threading.Lock()

    @property
    def heard(self) -> Mapping[str, frozenset[str]]:
        """The traits of each provider in the last tree, before it was written."""
        return self._heard

    def write(
        self,
        tree: object,
        nodename: object,
        wanted: Sequence[Capacity],
        ours: Mapping[str, str],
    ) -> Mapping[str, str]:
        """Write the capacity into a tree; other contents of the tree stay.

        :param ours: the resource class of every provider that was ever offered.
        :returns: one resource class of each provider that is ours by its name but
            not in ``ours``.
        :raises InvalidInput: ``tree`` is no provider tree, ``nodename`` no text, or
            the tree lacks the node.
        """
        tree, nodename = _checked(tree, nodename)
        with self._lock:
            self._compare(nodename)
            known = {uuid: tree.data(uuid) for uuid in tree.get_provider_uuids()}
            self._heard = MappingProxyType(
                {uuid: frozenset(found.traits) for uuid, found in known.items()}
            )
            given = published.given_classes(self._named, self._memory.names)
            for each in wanted:
                if each.uuid in known or self._create(tree, nodename, each):
                    self._update(tree, each, given)
            left = known.keys() - {each.uuid for each in wanted}
            named = self._recognized({uuid: known[uuid] for uuid in left}, given)
            for uuid in sorted(left & (ours.keys() | named.keys())):
                # At most one class is on record, but it may have had several.
                also = {ours[uuid]} if uuid in ours else set()
                classes = self._classes(uuid) | named.get(uuid, frozenset()) | also
                self._withdraw(tree, uuid, classes)
            return {uuid: min(named[uuid]) for uuid in named.keys() - ours.keys()}

    def _recognized(
        self, left: Mapping[str, ProviderData], given: Collection[str]
    ) -> dict[str, frozenset[str]]:
        """Return the classes of providers that are ours by their names.

        After the loss of the record, the names are the only evidence.
        """
        found = {
            uuid: published.classes_of(self._classes(uuid), each.inventory, given)
            for uuid, each in left.items()
            if naming.is_ours(self._node_name, each.name, uuid)
        }
        return {uuid: classes for uuid, classes in found.items() if classes}

    def _create(self, tree: ProviderTree, nodename: str, wanted: Capacity) -> bool:
        if wanted.provider is None:
            # Its name is unknown; without a provider, it has no allocations.
            return False
        parent, card = nodename, wanted.provider.card
        if card is not None and (
            tree.exists(card.uuid) or self._make(tree, card.name, card.uuid, nodename)
        ):
            parent = card.uuid
        return self._make(tree, wanted.provider.name, wanted.uuid, parent)

    def _make(self, tree: ProviderTree, name: str, uuid: str, parent: str) -> bool:
        if tree.exists(name):
            # Placement rejects a duplicate name, and Nova's whole update fails.
            self._warn_once(
                f"cannot create provider {name}: another provider has this name"
            )
            return False
        tree.new_child(name, parent, uuid=uuid)
        return True

    def _update(
        self, tree: ProviderTree, wanted: Capacity, given: Collection[str]
    ) -> None:
        there = tree.data(wanted.uuid).inventory
        # It may have had another class before the record was lost.
        classes = self._classes(wanted.uuid) | published.classes_of(
            frozenset(), there, given
        )
        _set_inventory(
            tree,
            wanted.uuid,
            _withdrawn(tree, wanted.uuid, classes)
            | {name: record(units) for name, units in wanted.units.items()},
        )
        if wanted.provider is None:
            return
        device, has = wanted.provider.device, tree.data(wanted.uuid).traits
        if new := device.traits - has:
            tree.add_traits(wanted.uuid, *sorted(new))
        published_traits = self._memory.names.texts(wanted.uuid, NameKind.TRAIT)
        before = (
            published_traits
            | region_traits.published_of(device, has)
            | cell_traits.published_of(has)
        ) - device.traits
        if gone := before & has:
            tree.remove_traits(wanted.uuid, *sorted(gone))
        # Kept on record until a tree lacks them: Nova may fail to pass on the change.
        if ended := before - has:
            self._memory.end(wanted.uuid, ended)

    def _classes(self, uuid: str) -> frozenset[str]:
        return self._memory.names.texts(uuid, NameKind.RESOURCE_CLASS)

    def _withdraw(
        self, tree: ProviderTree, uuid: str, classes: Collection[str]
    ) -> None:
        """Reserve all units of a provider that is not offered.

        The provider stays: only Placement knows its allocations, and the removal of
        an allocated provider makes Nova's whole update fail.
        """
        inventory = _withdrawn(tree, uuid, classes)
        if inventory:
            _set_inventory(tree, uuid, inventory)

    def _compare(self, nodename: str) -> None:
        if nodename.partition(".")[0] != self._node_name.partition(".")[0]:
            self._warn_once(
                f"Nova calls this node {nodename!r}, but [os_acc] node_name "
                f"is {self._node_name!r}: set node_name to a name that no "
                "other host has, since the names of the providers contain it"
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            LOG.warning("%s", text)


def withdraw(tree: object, nodename: object, node_name: str) -> int:
    """Reserve all units of a node's providers; return the number of providers.

    They are recognized by name and UUID alone; see :func:`os_acc.withdraw_providers`.

    :param node_name: the prefix of our providers' names.
    :raises InvalidInput: as :meth:`TreeWriter.write` raises it.
    """
    tree, _nodename = _checked(tree, nodename)
    found = {uuid: tree.data(uuid) for uuid in tree.get_provider_uuids()}
    ours = [
        uuid
        for uuid, each in found.items()
        if naming.is_ours(node_name, each.name, uuid)
    ]
    for uuid in ours:
        if _set_inventory(tree, uuid, _withdrawn(tree, uuid, found[uuid].inventory)):
            LOG.warning(
                "os_acc does not serve node %s: all units of provider %s are reserved",
                node_name,
                found[uuid].name,
            )
    return len(ours)


def _checked(tree: object, nodename: object) -> tuple[ProviderTree, str]:
    if not isinstance(tree, ProviderTree):
        raise exception.InvalidInput(
            f"provider_tree is {exception.show(tree)}, not a provider tree"
        )
    if not isinstance(nodename, str):
        raise exception.InvalidInput(
            f"nodename is {exception.show(nodename)}, not text"
        )
    if not tree.exists(nodename):
        raise exception.InvalidInput(
            f"the provider tree has no compute node {exception.show(nodename)}",
            hint="pass the name of the compute node's root provider, as given by Nova",
        )
    return tree, nodename


def _withdrawn(tree: ProviderTree, uuid: str, classes: Collection[str]) -> _Inventory:
    """Return a provider's inventory of these classes, with all units reserved.

    A class stays, as a provider does: it may have allocations.
    """
    there = tree.data(uuid).inventory
    return {name: withdrawn(there[name]) for name in there if name in classes}


def _set_inventory(tree: ProviderTree, uuid: str, inventory: _Inventory) -> bool:
    """Replace an inventory; return whether it differs from the provider's."""
    if not tree.has_inventory_changed(uuid, inventory):
        return False
    tree.update_inventory(uuid, inventory)
    return True
