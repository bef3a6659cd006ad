# SPDX-License-Identifier: Apache-2.0

"""Run Placement inside the process of the tests, on SQLite in memory."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from oslo_config import cfg
from placement import conf as placement_conf
from placement import context as placement_context
from placement import db_api, lib
from placement.db.sqlalchemy import migration
from placement.objects import (
    allocation_candidate,
    inventory,
    resource_class,
    resource_provider,
    trait,
)

from os_acc.objects.request_group import GroupPolicy, RequestGroup
from tests.functional.openstack.placement import Taken

#: (suffix, provider) of each provider that serves a group.
Mapped: TypeAlias = frozenset[tuple[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One provider of a tree.

    :ivar parent: its uuid; None for the root.
    """

    uuid: str
    parent: str | None
    inventory: Mapping[str, int]
    traits: frozenset[str]


def new_uuid(number: int) -> str:
    """Return a uuid, the same one for the same number."""
    return str(uuid.UUID(int=(0xACC << 96) + number, version=4))


class InnerPlacement:
    """One database, with one tree at a time."""

    def __init__(self, classes: Iterable[str], traits: Iterable[str]) -> None:
        config = cfg.ConfigOpts()
        placement_conf.register_opts(config)
        config.set_override("connection", "sqlite://", group="placement_database")
        config([], default_config_files=[], default_config_dirs=[])
        db_api.configure(config)
        migration.create_schema()
        self._context: Any = placement_context.RequestContext(config=config)
        trait.ensure_sync(self._context)
        resource_class.ensure_sync(self._context)
        for name in classes:
            if name.startswith("CUSTOM_"):
                resource_class.ResourceClass(self._context, name=name).create()
        self._traits = {name: self._made(name) for name in traits}
        self._providers: list[Any] = []

    def _made(self, name: str) -> Any:
        made = trait.Trait(self._context, name=name)
        made.create()
        return made

    def plant(self, tree: Collection[Node]) -> None:
        """Replace the tree by this one; each node follows its parent."""
        for provider in reversed(self._providers):
            provider.destroy()
        self._providers = [self._planted(node) for node in tree]

    def _planted(self, node: Node) -> Any:
        provider = resource_provider.ResourceProvider(
            self._context,
            name=node.uuid,
            uuid=node.uuid,
            parent_provider_uuid=node.parent,
        )
        provider.create()
        provider.set_inventory(
            [
                inventory.Inventory(
                    resource_provider=provider,
                    resource_class=name,
                    total=total,
                    reserved=0,
                    min_unit=1,
                    max_unit=total,
                    step_size=1,
                    allocation_ratio=1.0,
                )
                for name, total in node.inventory.items()
            ]
        )
        provider.set_traits([self._traits[name] for name in sorted(node.traits)])
        return provider

    def candidates(
        self, groups: Iterable[RequestGroup], policy: GroupPolicy | None
    ) -> dict[Taken, set[Mapped]]:
        """Return all candidates: the allocations of each, and its possible mappings."""
        query = {
            group.suffix: lib.RequestGroup(
                use_same_provider=bool(group.suffix),
                resources=dict(group.resources),
                required_traits=[{name} for name in sorted(group.required)],
                forbidden_traits=set(group.forbidden),
            )
            for group in groups
        }
        wide = lib.RequestWideParams(group_policy=policy and policy.value)
        found = allocation_candidate.AllocationCandidates.get_by_requests(
            self._context, query, wide
        )
        candidates: dict[Taken, set[Mapped]] = {}
        for request in found.allocation_requests:
            taken = frozenset(
                (each.resource_provider.uuid, each.resource_class, each.amount)
                for each in request.resource_requests
            )
            mapped = frozenset(
                (suffix, provider)
                for suffix, providers in request.mappings.items()
                for provider in providers
            )
            candidates.setdefault(taken, set()).add(mapped)
        return candidates
