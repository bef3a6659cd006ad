# SPDX-License-Identifier: Apache-2.0

"""Instances, allocations and the provider tree, as Nova passes them.

The tree behaves as nova.compute.provider_tree.
"""

from __future__ import annotations

import copy
import dataclasses
import uuid as uuids
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from os_acc.objects.device import Provider

Inventory = dict[str, dict[str, Any]]


def uuid_of(number: int) -> str:
    """Return the UUID of the instance with this number."""
    return f"{number:08x}-1111-4111-8111-111111111111"


def instance(number: int) -> dict[str, Any]:
    """Return an instance as Nova passes it."""
    return {"uuid": uuid_of(number), "name": f"instance-{number}"}


def request(
    *providers: Provider, amount: int = 1
) -> tuple[dict[str, Any], dict[str, str]]:
    """Build ``selected_rp`` and extra specs, with one request group per provider.

    :param providers: a provider that occurs twice has one allocation for two groups.
    :param amount: units of each group.
    """
    allocations: dict[str, Any] = {}
    mappings: dict[str, list[str]] = {}
    specs = {"group_policy": "none"}
    for number, provider in enumerate(providers, start=1):
        resource_class = provider.device.resource_class
        resources = allocations.setdefault(provider.uuid, {"resources": {}})
        taken = resources["resources"].get(resource_class, 0)
        resources["resources"][resource_class] = taken + amount
        mappings[str(number)] = [provider.uuid]
        specs[f"resources{number}:{resource_class}"] = str(amount)
    return {"allocations": allocations, "mappings": mappings}, specs


class FakeProviderData(NamedTuple):
    """A provider at one moment; changing it changes nothing in the tree."""

    uuid: str
    name: str
    generation: int | None
    parent_uuid: str | None
    inventory: Inventory
    traits: set[str]
    aggregates: set[str]
    resources: dict[str, Any]


@dataclasses.dataclass(slots=True)
class _Provider:
    uuid: str
    name: str
    generation: int | None
    parent_uuid: str | None
    inventory: Inventory = dataclasses.field(default_factory=dict)
    traits: set[str] = dataclasses.field(default_factory=set)
    aggregates: set[str] = dataclasses.field(default_factory=set)

    def has_inventory_changed(self, new: Inventory) -> bool:
        if self.inventory.keys() != new.keys():
            return True
        return any(
            # Inventories that the new record omits count as unchanged.
            new[name].keys() - record.keys()
            or any(new[name].get(key, old) != old for key, old in record.items())
            for name, record in self.inventory.items()
        )


class FakeProviderTree:
    """All providers of a compute node, found by uuid or by name.

    Each method raises :class:`ValueError` for an unknown provider.
    """

    def __init__(self) -> None:
        self._providers: dict[str, _Provider] = {}

    def get_provider_uuids(self, name_or_uuid: str | None = None) -> list[str]:
        """Return all providers, or one and those below it, from the top down."""
        if name_or_uuid is not None:
            return list(self._below(self._find(name_or_uuid)))
        roots = [each for each in self._providers.values() if each.parent_uuid is None]
        return [uuid for root in roots for uuid in self._below(root)]

    def exists(self, name_or_uuid: str) -> bool:
        """Return whether there is such a provider."""
        try:
            self._find(name_or_uuid)
        except ValueError:
            return False
        return True

    def data(self, name_or_uuid: str) -> FakeProviderData:
        """Return a copy of the data of a provider."""
        found = self._find(name_or_uuid)
        return FakeProviderData(
            found.uuid,
            found.name,
            found.generation,
            found.parent_uuid,
            copy.deepcopy(found.inventory),
            set(found.traits),
            set(found.aggregates),
            {},
        )

    def new_root(self, name: str, uuid: str, generation: int | None = None) -> str:
        """Make a provider at the top."""
        self._check_new(uuid)
        return self._add(_Provider(uuid, name, generation, None))

    def new_child(
        self,
        name: str,
        parent: str,
        uuid: str | None = None,
        generation: int | None = None,
    ) -> str:
        """Make a provider below another; a uuid makes its name unchecked."""
        self._check_new(uuid or name)
        above = self._find(parent).uuid
        uuid = uuid or str(uuids.uuid4())
        return self._add(_Provider(uuid, name, generation, above))

    def remove(self, name_or_uuid: str) -> None:
        """Remove a provider and all providers below it."""
        for uuid in list(self._below(self._find(name_or_uuid))):
            del self._providers[uuid]

    def has_inventory_changed(self, name_or_uuid: str, inventory: Inventory) -> bool:
        """Return whether an inventory differs from a provider's."""
        return self._find(name_or_uuid).has_inventory_changed(inventory)

    def update_inventory(
        self, name_or_uuid: str, inventory: Inventory, generation: int | None = None
    ) -> bool:
        """Replace a provider's inventory; return whether it has changed."""
        found = self._at(name_or_uuid, generation)
        changed = found.has_inventory_changed(inventory)
        if changed:
            found.inventory = copy.deepcopy(inventory)
        return changed

    def update_traits(
        self, name_or_uuid: str, traits: Iterable[str], generation: int | None = None
    ) -> bool:
        """Replace a provider's traits; return whether they have changed."""
        found = self._at(name_or_uuid, generation)
        before, found.traits = found.traits, set(traits)
        return found.traits != before

    def add_traits(self, name_or_uuid: str, *traits: str) -> None:
        """Add to a provider's traits."""
        if traits:
            self._find(name_or_uuid).traits |= set(traits)

    def remove_traits(self, name_or_uuid: str, *traits: str) -> None:
        """Remove some of a provider's traits."""
        if traits:
            self._find(name_or_uuid).traits -= set(traits)

    def update_aggregates(
        self,
        name_or_uuid: str,
        aggregates: Iterable[str],
        generation: int | None = None,
    ) -> bool:
        """Replace a provider's aggregates; return whether they have changed."""
        found = self._at(name_or_uuid, generation)
        before, found.aggregates = found.aggregates, set(aggregates)
        return found.aggregates != before

    def _find(self, name_or_uuid: str) -> _Provider:
        if found := self._providers.get(name_or_uuid):
            return found
        for provider in self._providers.values():
            if provider.name == name_or_uuid:
                return provider
        raise ValueError(f"No such provider {name_or_uuid}")

    def _at(self, name_or_uuid: str, generation: int | None) -> _Provider:
        found = self._find(name_or_uuid)
        if generation is not None:
            found.generation = generation
        return found

    def _check_new(self, name_or_uuid: str) -> None:
        if self.exists(name_or_uuid):
            raise ValueError(f"Provider {name_or_uuid} already exists.")

    def _add(self, provider: _Provider) -> str:
        self._providers[provider.uuid] = provider
        return provider.uuid

    def _below(self, top: _Provider) -> Iterator[str]:
        yield top.uuid
        for provider in list(self._providers.values()):
            if provider.parent_uuid == top.uuid:
                yield from self._below(provider)
