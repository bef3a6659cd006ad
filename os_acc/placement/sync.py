# SPDX-License-Identifier: Apache-2.0

"""What this host offers, published in Placement directly.

What Placement has confirmed is remembered with the provider's generation: a
cycle in which nothing has changed is one listing of the node's tree.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from oslo_config import cfg
from oslo_log import log

from os_acc import deadlines, exception
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.published import PlacementName, PublishedNames
from os_acc.placement import diff, options
from os_acc.placement.api_model import Declined, ListedProvider, ProviderContents
from os_acc.placement.apply import ApplyResult
from os_acc.placement.capacity import Capacity
from os_acc.placement.changes import RefusedChange, Step
from os_acc.placement.client import MOVES, Client
from os_acc.placement.diff import (
    ActualState,
    ChangePlan,
    DesiredState,
    LookupResults,
    Lookups,
)
from os_acc.placement.published import PublishedRecord

LOG = log.getLogger(__name__)

#: How often a change is planned anew that meets somebody else's.
ROUNDS: Final = 8
#: Seconds after which a name of our making that others use is tried again, and a
#: standard one that Placement does not know: it is one request in vain, and nobody
#: tells when they have done, or when Placement is a newer one.
KEPT_SECONDS: Final = 3600.0
#: Seconds that are waited for at most before the second of them; then twice.
_PAUSE: Final = 0.1
_NOT_FOUND: Final = 404


@dataclasses.dataclass(frozen=True, slots=True)
class SyncResult:
    """What has come of one synchronization.

    :ivar done: the changes that were made.
    :ivar refused: those that were not; each carries its error.
    :ivar reads: requests that asked for something; ``writes`` those that
        were to change something.
    :ivar recognized: providers that are ours by their names, and neither on
        record nor wanted, with one of their resource classes.
    """

    done: tuple[Step, ...] = ()
    refused: tuple[RefusedChange, ...] = ()
    reads: int = 0
    writes: int = 0
    recognized: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )


class Publisher:
    """Keeps Placement up to date for one compute node; thread-safe.

    :param conf: as it is when Placement is first asked.
    :param node_name: of which the names of our providers are made.
    :param named: the resource classes that the operator has given devices.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        node_name: str,
        client: Client | None = None,
        named: Collection[str] = (),
    ) -> None:
        self._conf = conf
        self._node_name = node_name
        self._named = frozenset(named)
        self._client = client or Client(conf)
        # Of its own: what a plug asks is no request of a synchronization.
        self._asking = Client(conf)
        self._root: ListedProvider | None = None
        self._confirmed: dict[str, ProviderContents] = {}
        self._known: set[PlacementName] = set()
        #: Standard names that Placement does not know, and when it has said so.
        self._unknown: dict[PlacementName, int] = {}
        #: Whether somebody else has a provider that is one of ours.
        self._contested = False
        self.forget()

    def forget(self) -> None:
        """Know of nobody who publishes: in a forked child nobody does."""
        self._guard = threading.Lock()

    def deadline(self) -> float:
        """When a synchronization that begins now has to end.

        :raises InvalidConfiguration: ``sync_timeout`` cannot be used.
        """
        seconds = options.PlacementSettings.load(self._conf).sync_timeout
        return time.monotonic() + seconds

    def traits(
        self, providers: Collection[str], deadline: float
    ) -> Mapping[str, frozenset[str]]:
        """What traits providers have, whosever they are, by their uuids.

        One that Placement does not have is left out. Waits for nobody who
        publishes.

        :raises PlacementNotConfigured: nobody has said where Placement is.
        :raises OsAccError: it does not tell; see :meth:`sync`.
        """
        found = {}
        for uuid in sorted(providers):
            try:
                _generation, found[uuid] = self._asking.traits(uuid, deadline)
            except Declined as error:
                if error.status != _NOT_FOUND:
                    raise
        return MappingProxyType(found)

    def difference(
        self, wanted: Sequence[Capacity], told: PublishedNames, deadline: float
    ) -> ChangePlan:
        """What would be done; nothing is changed.

        :raises OsAccError: see :meth:`sync`.
        """
        goal = DesiredState(wanted, told, self._node_name, self._named)
        with self._alone(deadline):
            return self._plan(goal, deadline, thorough=True)[1]

    def sync(
        self, wanted: Sequence[Capacity], ledger: PublishedRecord, deadline: float
    ) -> SyncResult:
        """Make Placement hold what is wanted.

        One change that is refused does not keep the others from being made.

        :raises NodeNotPublished: Placement has no such compute node yet.
        :raises PlacementUnavailable: nobody answers, or not in time.
        :raises PlacementTooOld: it does not know the microversion.
        :raises InvalidConfiguration: it does not let us in, or is not there.
        :raises StateUnavailable: what is told cannot be put on record.
        :raises LockTimeout: another thread is still publishing.
        """
        with self._alone(deadline):
            count = self._client.count
            before = dataclasses.replace(count)
            found = self._rounds(wanted, ledger, deadline)
            return dataclasses.replace(
                found,
                reads=count.reads - before.reads,
                writes=count.writes - before.writes,
            )

    def _rounds(
        self, wanted: Sequence[Capacity], ledger: PublishedRecord, deadline: float
    ) -> SyncResult:
        done: list[Step] = []
        recognized: Mapping[str, str] = {}
        refused: dict[str, RefusedChange] = {}
        again: list[RefusedChange] = []
        for number in range(ROUNDS):
            if number and not _paused(number, deadline):
                break
            goal = DesiredState(wanted, ledger.told(), self._node_name, self._named)
            tree, plan = self._plan(
                goal, deadline, thorough=bool(again) or self._contested
            )
            recognized = diff.recognized(goal, tree)
            applied = self._apply(
                goal, tree, plan, ledger, deadline, frozenset(refused)
            )
            done += applied.done
            refused |= {each.what: each for each in (*plan.refused, *applied.refused)}
            self._contested = any(
                isinstance(each.error, exception.ProviderTaken) for each in plan.refused
            )
            again = applied.again
            if not again:
                break
        refused |= {each.what: each for each in again}
        for each in refused.values():
            LOG.warning("Placement does not hold all that is offered: %s", each)
        return SyncResult(tuple(done), tuple(refused.values()), recognized=recognized)

    def _apply(
        self,
        goal: DesiredState,
        tree: ActualState,
        plan: ChangePlan,
        ledger: PublishedRecord,
        deadline: float,
        skipped: frozenset[str],
    ) -> ApplyResult:
        # On record first: nobody else's is taken for ours, nor ours forgotten.
        more = goal.given - goal.told
        if more or plan.gone:
            ledger.change_published(more, plan.gone)
        applied = ApplyResult(self._client, goal, tree, ledger, deadline)
        try:
            applied.apply(plan, skipped)
        finally:
            self._confirmed |= applied.contents
            self._known -= applied.gone.made
            self._known |= applied.made
            if applied.gone or applied.kept:
                kept = PublishedNames(kept=dict.fromkeys(applied.kept, int(_now())))
                ledger.change_published(kept, applied.gone)
        if applied.again:
            # One of them may have been a name that is not there any more.
            self._known.clear()
            self._unknown.clear()
        return applied

    # -- what there is --------------------------------------------------------------

    def _plan(
        self, goal: DesiredState, deadline: float, *, thorough: bool
    ) -> tuple[ActualState, ChangePlan]:
        """What there is, and what is to be done about it.

        :param thorough: look for providers of our names in other trees, too.
        """
        tree = self._tree(goal, deadline)
        asked = diff.questions(goal, tree)
        allocated = {
            each: self._client.allocated(each, deadline)
            for each in sorted(asked.providers)
        }
        answers = LookupResults(
            self._names(asked.names, deadline),
            MappingProxyType(allocated),
            frozenset(
                each
                for each in sorted(asked.leaving)
                if not allocated.get(each) and self._client.aggregates(each, deadline)
            ),
            self._elsewhere(asked, tree.root.uuid, deadline)
            if thorough
            else MappingProxyType({}),
        )
        plan = diff.plan(goal, tree, answers, _recent(goal.told.kept))
        return tree, plan

    def _tree(self, goal: DesiredState, deadline: float) -> ActualState:
        root, nodes = self._nodes(deadline)
        mine = diff.ours(goal, nodes)
        self._confirmed = {
            uuid: contents
            for uuid, contents in self._confirmed.items()
            if uuid in nodes
        }
        contents = {
            uuid: self._contents(nodes[uuid], deadline) for uuid in sorted(mine)
        }
        self._confirmed |= contents
        # What one of them has, there is.
        self._known.update(name for each in contents.values() for name in each.names)
        can_move = self._client.version(deadline) >= MOVES
        return ActualState(root, nodes, MappingProxyType(contents), can_move)

    def _nodes(
        self, deadline: float
    ) -> tuple[ListedProvider, Mapping[str, ListedProvider]]:
        """The compute node, and everything in its tree."""
        for _ in range(2):
            if self._root is None:
                self._root = self._found_root(deadline)
            found = self._client.tree(self._root.uuid, deadline)
            nodes = {each.uuid: each for each in found}
            if self._root.uuid in nodes:
                return nodes[self._root.uuid], MappingProxyType(nodes)
            # It was made anew, perhaps.
            self._root = None
        raise exception.NodeNotPublished("the compute node has just left Placement")

    def _found_root(self, deadline: float) -> ListedProvider:
        given = options.PlacementSettings.load(self._conf).node_provider
        name = given or self._node_name
        found = self._client.node(deadline, name=name)
        if found is None and canonical_uuid(name):
            found = self._client.node(deadline, uuid=name)
        if found is None:
            raise exception.NodeNotPublished(
                f"Placement has no provider {name!r}, which this compute node is to be"
            )
        return found

    def _contents(self, node: ListedProvider, deadline: float) -> ProviderContents:
        known = self._confirmed.get(node.uuid)
        if known is not None and known.generation == node.generation:
            return known
        for _ in range(ROUNDS):
            generation, inventories = self._client.inventories(node.uuid, deadline)
            after, traits = self._client.traits(node.uuid, deadline)
            if generation == after:
                break
        # Where it changed each time, writing tells: that is of no generation.
        return ProviderContents(generation, inventories, traits)

    def _names(
        self, asked: frozenset[PlacementName], deadline: float
    ) -> frozenset[PlacementName]:
        """Those of the names that Placement knows; each is asked for once.

        A standard one that it does not know is asked for again in a while.
        """
        new = asked - self._known - _recent(self._unknown)
        if new:
            found = self._client.known(new, deadline)
            self._known |= found
            missing = (each for each in new - found if not each.is_custom)
            self._unknown |= dict.fromkeys(missing, int(_now()))
        return frozenset(asked & self._known)

    def _elsewhere(
        self, asked: Lookups, root: str, deadline: float
    ) -> Mapping[str, ListedProvider]:
        found = {}
        for uuid, name in asked.new:
            for by, value in (("name", name), ("uuid", uuid)):
                node = self._client.node(deadline, **{by: value})
                if node is None:
                    continue
                # Another service of this host's may have made it just now.
                if not self._client.node(deadline, **{by: value, "in_tree": root}):
                    found[value] = node
                break
        return MappingProxyType(found)

    def _alone(self, deadline: float) -> contextlib.AbstractContextManager[None]:
        busy = exception.LockTimeout("another thread is still publishing")
        return deadlines.alone(self._guard, deadline, busy)


def _now() -> float:
    """In seconds since 1970: it is on record, for other processes as well."""
    return time.time()


def _recent(names: Mapping[PlacementName, int]) -> frozenset[PlacementName]:
    """Those of which something was found out not long ago."""
    now = int(_now())
    # A clock that was put back must not keep them for years.
    return frozenset(name for name, at in names.items() if 0 <= now - at < KEPT_SECONDS)


def _paused(number: int, deadline: float) -> bool:
    """Let others go on; whether there is time left for another round."""
    pause = random.uniform(0.0, _PAUSE * 2**number)
    if time.monotonic() + pause >= deadline:
        return False
    time.sleep(pause)
    return True
