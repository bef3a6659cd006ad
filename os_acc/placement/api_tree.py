# SPDX-License-Identifier: Apache-2.0

"""The state of a node's providers, as Placement's API shows it.

The contents of each provider are kept with its generation, and read again when
Placement lists another one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from oslo_config import cfg

from os_acc import exception
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.published import PlacementName, PublishedNames
from os_acc.placement import options
from os_acc.placement.api_model import ListedProvider, ProviderContents
from os_acc.placement.client import MOVES, Client
from os_acc.placement.diff import ActualState, DesiredState

#: Seconds until a name of ours that others use is tried again, and a standard name
#: that Placement does not know: each try is a wasted request, but neither the end of
#: the use nor an upgrade of Placement is announced.
KEPT_SECONDS: Final = 3600.0


class PlacementTree(ActualState):
    """The node's tree in Placement; :meth:`read` makes it current.

    :ivar client: the client for reads and writes.
    :ivar deadline: the latest end of a request.
    :ivar names: custom and standard names that exist.
    """

    shows_owners = True

    def __init__(self, conf: cfg.ConfigOpts, node_name: str, client: Client) -> None:
        self._conf, self._node_name, self.client = conf, node_name, client
        self.deadline = 0.0
        self.contents = {}
        self.names: set[PlacementName] = set()
        #: Standard names that Placement does not know, with the time of its answer.
        self._unknown: dict[PlacementName, int] = {}
        self._root: ListedProvider | None = None
        self._searches = False

    def read(self, goal: DesiredState, deadline: float, *, searches: bool) -> None:
        """Read what has changed.

        :param searches: whether :meth:`elsewhere` searches other trees.
        :raises OsAccError: see :class:`.Client`; NotFound: Placement does not have the
            compute node.
        """
        self.deadline, self._searches = deadline, searches
        self._list()
        self.contents = {
            uuid: self._read(self.nodes[uuid]) for uuid in sorted(goal.ours(self.nodes))
        }
        # A name that a provider uses exists.
        self.names.update(
            name for each in self.contents.values() for name in each.names
        )
        self.can_move = self.client.version(deadline) >= MOVES

    def _list(self) -> None:
        for _ in range(2):
            if self._root is None:
                self._root = self._find_root()
            found = self.client.tree(self._root.uuid, self.deadline)
            self.nodes = {each.uuid: each for each in found}
            if self._root.uuid in self.nodes:
                self.root = self.nodes[self._root.uuid]
                return
            # The provider may have been created anew.
            self._root = None
        raise exception.NotFound(
            "the compute node's provider was removed from Placement meanwhile",
            kind=exception.ObjectKind.NODE,
        )

    def _find_root(self) -> ListedProvider:
        given = options.PlacementSettings.load(self._conf).node_provider
        name = given or self._node_name
        found = self.client.node(self.deadline, name=name)
        if found is None and canonical_uuid(name):
            found = self.client.node(self.deadline, uuid=name)
        if found is None:
            raise exception.NotFound(
                f"Placement has no provider {name!r} for this compute node",
                kind=exception.ObjectKind.NODE,
            )
        return found

    def _read(self, node: ListedProvider) -> ProviderContents:
        before = self.contents.get(node.uuid)
        if before is not None and before.generation == node.generation:
            return before
        generation, inventories = self.client.inventories(node.uuid, self.deadline)
        # If the provider changes meanwhile, the write detects the outdated generation.
        _later, traits = self.client.traits(node.uuid, self.deadline)
        return ProviderContents(generation, inventories, traits)

    def forget_names(self) -> None:
        """Forget which names exist: one has been deleted since."""
        self.names.clear()
        self._unknown.clear()

    # -- answers -----------------------------------------------------------------

    def existing(self, names: frozenset[PlacementName]) -> frozenset[PlacementName]:
        """Return the names that exist; each is looked up once.

        An unknown standard name is looked up again after ``KEPT_SECONDS``.
        """
        new = names - self.names - _recent(self._unknown)
        if new:
            found = self.client.existing(new, self.deadline)
            self.names |= found
            missing = (each for each in new - found if not each.is_custom)
            self._unknown |= dict.fromkeys(missing, now())
        return names & self.names

    def deletable(
        self, names: frozenset[PlacementName], record: PublishedNames
    ) -> frozenset[PlacementName]:
        """Return the names without those that others used a while ago."""
        return names - _recent(record.in_use_at)

    def allocated(self, uuid: str) -> frozenset[str]:
        """Return the resource classes of a provider that have allocations."""
        return self.client.allocated(uuid, self.deadline)

    def has_aggregates(self, uuid: str) -> bool:
        """Return whether a provider is a member of an aggregate."""
        return bool(self.client.aggregates(uuid, self.deadline))

    def elsewhere(self, uuid: str, name: str) -> ListedProvider | None:
        """Return a provider of another tree with this name or UUID, or None."""
        if not self._searches:
            return None
        for wanted in ({"name": name}, {"uuid": uuid}):
            if found := self.client.node(self.deadline, **wanted):
                # Another os_acc service of this host may have just created it.
                asked = {**wanted, "in_tree": self.root.uuid}
                is_here = self.client.node(self.deadline, **asked)
                return None if is_here else found
        return None


def now() -> int:
    """Return the seconds since 1970, which all processes can compare."""
    return int(time.time())


def _recent(names: Mapping[PlacementName, int]) -> frozenset[PlacementName]:
    """Return the names whose timestamp is younger than ``KEPT_SECONDS``."""
    # A timestamp in the future: the clock was set back.
    return frozenset(
        name for name, at in names.items() if 0 <= now() - at < KEPT_SECONDS
    )
