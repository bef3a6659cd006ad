# SPDX-License-Identifier: Apache-2.0

"""A compute node that os_acc serves in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from os_acc.attach import migration, serialize
from os_acc.attach.manager import Manager
from os_acc.objects.api import (
    AcceleratorEntry,
    HostInfo,
    InstanceDict,
    MigratingDevice,
    ProviderEntry,
    SyncReport,
)
from os_acc.placement.provider_tree import ProviderTree


class Node:
    """A compute node that os_acc serves, as :func:`os_acc.initialize` returns it.

    Its methods are the functions of the same names of :mod:`os_acc`, for this node.
    A process with one compute node can use either. The handle is thread-safe, and
    stays valid when :func:`os_acc.initialize` resets the node.

    :ivar name: the name of the node, which begins the names of its providers.
    """

    def __init__(self, name: str, manager: Callable[[], Manager]) -> None:
        self.name = name
        self._manager = manager

    def __repr__(self) -> str:
        return f"<os_acc.Node {self.name!r}>"

    def plug(
        self,
        instance_info: InstanceDict,
        selected_rp: Mapping[str, Any] | None = None,
        flavor_extra_specs: Mapping[str, str] | None = None,
    ) -> list[AcceleratorEntry]:
        """See :func:`os_acc.plug`."""
        return self._manager().plug(instance_info, selected_rp, flavor_extra_specs)

    def unplug(self, instance_info: InstanceDict) -> int:
        """See :func:`os_acc.unplug`."""
        return self._manager().unplug(instance_info)

    def rekey(self, consumer: str, new_consumer: str) -> int:
        """See :func:`os_acc.rekey`."""
        return self._manager().rekey(consumer, new_consumer)

    def requests_accelerators(
        self, flavor_extra_specs: Mapping[str, str] | None
    ) -> bool:
        """See :func:`os_acc.requests_accelerators`."""
        return self._manager().requests_accelerators(flavor_extra_specs)

    def owns_any(self, allocations: Mapping[str, Mapping[str, Any]] | None) -> bool:
        """See :func:`os_acc.owns_any`."""
        return self._manager().owns_any(allocations)

    def attached(
        self, instance_info: InstanceDict | None = None
    ) -> dict[str, list[AcceleratorEntry]]:
        """See :func:`os_acc.attached`."""
        return self._manager().attached(instance_info)

    def migration_source(self, instance_info: InstanceDict) -> list[MigratingDevice]:
        """See :func:`os_acc.migration_source`."""
        return migration.source(self._manager(), instance_info)

    def migration_pairs(
        self, instance_info: InstanceDict, devices: Sequence[MigratingDevice]
    ) -> dict[str, str]:
        """See :func:`os_acc.migration_pairs`."""
        return migration.pairs(self._manager(), instance_info, devices)

    def providers(self) -> list[ProviderEntry]:
        """See :func:`os_acc.providers`."""
        return [serialize.provider(each) for each in self._manager().providers()]

    def update_provider_tree(
        self,
        provider_tree: ProviderTree,
        nodename: str,
        unallocated: Collection[str] = (),
    ) -> None:
        """See :func:`os_acc.update_provider_tree`."""
        self._manager().update_provider_tree(provider_tree, nodename, unallocated)

    def sync_placement(self) -> SyncReport:
        """See :func:`os_acc.sync_placement`."""
        result = self._manager().publish()
        return serialize.sync_report(
            result.done, result.refused, result.reads, result.writes
        )

    def host_info(self) -> HostInfo:
        """See :func:`os_acc.host_info`."""
        return self._manager().host_info()
