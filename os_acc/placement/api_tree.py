# SPDX-License-Identifier: Apache-2.0

"""The providers of a node in Placement: read them, and carry out changes.

The contents of each provider are kept with its generation, and read again when
Placement lists another one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from oslo_config import cfg
from oslo_log import log

from os_acc import exception
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.records import NameKind, PlacementName, PublishedNames
from os_acc.placement.changes import (
    EMPTY,
    Create,
    DeleteName,
    ListedProvider,
    MakeName,
    Move,
    ProviderContents,
    RefusedChange,
    Remove,
    SetInventories,
    SetTraits,
    Step,
)
from os_acc.placement.client import (
    MOVES,
    Client,
    Declined,
    PlacementSettings,
    ServerFailed,
)
from os_acc.placement.diff import ActualState, DesiredState
from os_acc.placement.published import PublishedRecord

_T = TypeVar("_T")

LOG = log.getLogger(__name__)

#: Seconds until a name of ours that others use is tried again, and a standard name
#: that Placement does not know: each try is a wasted request, but neither the end of
#: the use nor an upgrade of Placement is announced.
KEPT_SECONDS: Final = 3600.0
_BAD_REQUEST, _NOT_FOUND, _CONFLICT = 400, 404, 409


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
        given = PlacementSettings.load(self._conf).node_provider
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


class Application:
    """Carry out steps; one that fails does not stop the others.

    :ivar done: the steps that Placement carried out.
    :ivar refused: the steps that Placement rejected for good.
    :ivar again: the steps to plan anew from the current state.
    :ivar disowned: names that os_acc did not create, or has deleted.
    :ivar in_use: the names that others use.
    """

    def __init__(self, tree: PlacementTree, record: PublishedRecord) -> None:
        self.done: list[Step] = []
        self.refused: list[RefusedChange] = []
        self.again: list[RefusedChange] = []
        self.disowned: set[PlacementName] = set()
        self.in_use: set[PlacementName] = set()
        self._tree = tree
        self._record = record
        #: Providers (by UUID) and names whose further steps are skipped.
        self._blocked: set[str | PlacementName] = set()

    def carry_out(self, step: Step) -> None:
        """Carry out a step, unless a step failed on which it depends.

        :raises OsAccError: Placement does not answer, or denies access.
        """
        subject = step.name if isinstance(step, MakeName | DeleteName) else step.uuid
        parent = step.parent if isinstance(step, Create | Move) else subject
        if not self._blocked.isdisjoint({subject, parent}):
            return
        try:
            self._send(step)
        except (exception.ServiceRefused, ServerFailed) as error:
            # After a failure of the server, the outcome is unknown.
            LOG.debug("cannot %s: %s", step, error)
            status = error.status if isinstance(error, Declined) else None
            if isinstance(step, DeleteName) and status is not None:
                names = self.disowned if status == _NOT_FOUND else self.in_use
                names.add(step.name)
                return
            is_final = status is not None and not _is_stale(step, status)
            (self.refused if is_final else self.again).append(
                RefusedChange(str(step), error)
            )
            self._blocked.add(subject)
        else:
            self.done.append(step)

    def _send(self, step: Step) -> None:
        client, deadline = self._tree.client, self._tree.deadline
        match step:
            case MakeName():
                if client.make_name(step.name, deadline):
                    # Recorded after the request: a name that another service creates
                    # is not ours. Recorded at once: a crash would leave the name
                    # unowned.
                    self._record.change_published_names(
                        PublishedNames(created=frozenset({step.name}))
                    )
                else:
                    self.disowned.add(step.name)
                self._tree.names.add(step.name)
            case DeleteName():
                client.delete_name(step.name, deadline)
                self.disowned.add(step.name)
                self._tree.names.discard(step.name)
            case Create():
                generation = client.create(step.uuid, step.name, step.parent, deadline)
                contents = dataclasses.replace(EMPTY, generation=generation)
                self._tree.contents[step.uuid] = contents
            case Move():
                client.move(step.uuid, step.name, step.parent, deadline)
            case SetTraits():
                kept = step.traits - self._blocked_of(NameKind.TRAIT)
                self._replace(step.uuid, "traits", kept, client.set_traits)
            case SetInventories():
                blocked = self._blocked_of(NameKind.RESOURCE_CLASS)
                some = {k: v for k, v in step.inventories.items() if k not in blocked}
                self._replace(step.uuid, "inventories", some, client.set_inventories)
            case Remove():
                client.delete(step.uuid, deadline)
                del self._tree.contents[step.uuid]

    def _blocked_of(self, kind: NameKind) -> frozenset[str]:
        names = (each for each in self._blocked if isinstance(each, PlacementName))
        return frozenset(each.text for each in names if each.kind is kind)

    def _replace(
        self, uuid: str, what: str, value: _T, put: Callable[[str, int, _T, float], int]
    ) -> None:
        """Replace the traits or the inventories of a provider, if they differ."""
        have = self._tree.contents.get(uuid, EMPTY)
        if value != getattr(have, what):
            generation = put(uuid, have.generation, value, self._tree.deadline)
            changes: dict[str, Any] = {"generation": generation, what: value}
            self._tree.contents[uuid] = dataclasses.replace(have, **changes)


def _is_stale(step: Step, status: int) -> bool:
    """Return whether the state has changed since the step was planned.

    A provider is gone, in use, or exists already; a name has been deleted.
    """
    if status == _BAD_REQUEST:
        return isinstance(step, SetTraits | SetInventories)
    return status in (_NOT_FOUND, _CONFLICT)
