# SPDX-License-Identifier: Apache-2.0

"""Direct publication of the host's inventory in Placement.

The confirmed contents of each provider are cached with its generation: a cycle
without changes takes one request, for the node's provider tree.
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

#: Attempts to plan a change that conflicts with another service's change.
ROUNDS: Final = 8
#: Seconds until a name of ours that others use is tried again, and a standard name
#: that Placement does not know: each try is a wasted request, but neither the end of
#: the use nor an upgrade of Placement is announced.
KEPT_SECONDS: Final = 3600.0
#: Longest pause in seconds before the second attempt; it doubles with each attempt.
_PAUSE: Final = 0.1
_NOT_FOUND: Final = 404


@dataclasses.dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of one synchronization.

    :ivar done: the changes that were made.
    :ivar refused: the changes that were not made, each with its error.
    :ivar reads: the number of requests that read; ``writes``: that change.
    :ivar recognized: providers that are ours by their names, but neither on
        record nor wanted, each with one of its resource classes.
    """

    done: tuple[Step, ...] = ()
    refused: tuple[RefusedChange, ...] = ()
    reads: int = 0
    writes: int = 0
    recognized: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )


class Publisher:
    """Keep Placement up to date for one compute node; thread-safe.

    :param conf: the configuration, read at the first request.
    :param node_name: the prefix of our providers' names.
    :param named: the resource classes that the operator configured for devices.
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
        # A client of its own: requests of a plug are not counted as ours.
        self._asking = Client(conf)
        self._root: ListedProvider | None = None
        self._confirmed: dict[str, ProviderContents] = {}
        self._known: set[PlacementName] = set()
        #: Standard names that Placement does not know, with the time of its answer.
        self._unknown: dict[PlacementName, int] = {}
        #: Whether another service has a provider with a name or UUID of ours.
        self._contested = False
        self.forget_parent()
        deadlines.reset_after_fork(self)

    def forget_parent(self) -> None:
        """Replace the lock; in a forked child no thread holds it."""
        self._guard = threading.Lock()

    def deadline(self) -> float:
        """Return the deadline of a synchronization that begins now.

        :raises InvalidConfiguration: ``sync_timeout`` cannot be used.
        """
        seconds = options.PlacementSettings.load(self._conf).sync_timeout
        return time.monotonic() + seconds

    def traits(
        self, providers: Collection[str], deadline: float
    ) -> Mapping[str, frozenset[str]]:
        """Return the traits of providers, of any owner, by UUID.

        Providers that Placement does not know are left out. Does not wait for a
        running synchronization.

        :raises InvalidConfiguration: the options of Placement are not set.
        :raises OsAccError: the request failed; see :meth:`sync`.
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
        self,
        wanted: Sequence[Capacity],
        published_names: PublishedNames,
        deadline: float,
    ) -> ChangePlan:
        """Return the changes that :meth:`sync` would make, without any write.

        :raises OsAccError: see :meth:`sync`.
        """
        goal = DesiredState(wanted, published_names, self._node_name, self._named)
        with self._alone(deadline):
            return self._plan(goal, deadline, thorough=True)[1]

    def sync(
        self, wanted: Sequence[Capacity], ledger: PublishedRecord, deadline: float
    ) -> SyncResult:
        """Publish the capacity in Placement.

        A change that is rejected does not stop the others.

        :raises NotFound: Placement does not have the compute node yet.
        :raises ServiceUnavailable: it does not answer, or not in time, or does not
            support the microversion (TOO_OLD).
        :raises InvalidConfiguration: it denies access, or the endpoint is wrong.
        :raises StateUnavailable: the published names cannot be recorded.
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
        """Repeat steps 1 to 5 while changes conflict, for :data:`ROUNDS` times at most.

        1. read the present state (:meth:`_plan`), 2. plan the changes, 3. record the
        names to be published (:meth:`_apply`), 4. make the changes, 5. update the
        record of what is confirmed.
        """
        done: list[Step] = []
        recognized: Mapping[str, str] = {}
        refused: dict[str, RefusedChange] = {}
        again: list[RefusedChange] = []
        for number in range(ROUNDS):
            if number and not _paused(number, deadline):
                break
            goal = DesiredState(
                wanted, ledger.published_names(), self._node_name, self._named
            )
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
                each.error.reason is exception.RefusalReason.NAME_TAKEN
                for each in plan.refused
            )
            again = applied.again
            if not again:
                break
        refused |= {each.what: each for each in again}
        for each in refused.values():
            LOG.warning("cannot publish in Placement: %s", each)
        return SyncResult(tuple(done), tuple(refused.values()), recognized=recognized)

    # -- current state --------------------------------------------------------------

    def _plan(
        self, goal: DesiredState, deadline: float, *, thorough: bool
    ) -> tuple[ActualState, ChangePlan]:
        """Return the current state, and the plan to change it.

        :param thorough: also search other trees for providers with our names.
        """
        # 1. Read the present state.
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
        # 2. Plan the changes.
        plan = diff.plan(goal, tree, answers, _recent(goal.published_names.in_use_at))
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
        # A name that a provider uses exists.
        self._known.update(name for each in contents.values() for name in each.names)
        can_move = self._client.version(deadline) >= MOVES
        return ActualState(root, nodes, MappingProxyType(contents), can_move)

    def _nodes(
        self, deadline: float
    ) -> tuple[ListedProvider, Mapping[str, ListedProvider]]:
        """Return the compute node, and all providers in its tree by UUID."""
        for _ in range(2):
            if self._root is None:
                self._root = self._found_root(deadline)
            found = self._client.tree(self._root.uuid, deadline)
            nodes = {each.uuid: each for each in found}
            if self._root.uuid in nodes:
                return nodes[self._root.uuid], MappingProxyType(nodes)
            # The provider may have been created anew.
            self._root = None
        raise exception.NotFound(
            "the compute node's provider was removed from Placement meanwhile",
            kind=exception.ObjectKind.NODE,
        )

    def _found_root(self, deadline: float) -> ListedProvider:
        given = options.PlacementSettings.load(self._conf).node_provider
        name = given or self._node_name
        found = self._client.node(deadline, name=name)
        if found is None and canonical_uuid(name):
            found = self._client.node(deadline, uuid=name)
        if found is None:
            raise exception.NotFound(
                f"Placement has no provider {name!r} for this compute node",
                kind=exception.ObjectKind.NODE,
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
        # It changed during every read: the write detects the outdated generation.
        return ProviderContents(generation, inventories, traits)

    def _names(
        self, asked: frozenset[PlacementName], deadline: float
    ) -> frozenset[PlacementName]:
        """Return the names that Placement knows; each is looked up once.

        An unknown standard name is looked up again after ``KEPT_SECONDS``.
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
                # Another os_acc service of this host may have just created it.
                if not self._client.node(deadline, **{by: value, "in_tree": root}):
                    found[value] = node
                break
        return MappingProxyType(found)

    # -- changes --------------------------------------------------------------------

    def _apply(
        self,
        goal: DesiredState,
        tree: ActualState,
        plan: ChangePlan,
        ledger: PublishedRecord,
        deadline: float,
        skipped: frozenset[str],
    ) -> ApplyResult:
        # 3. Record the names first: a crash neither loses our names nor claims others'.
        added = goal.assigned - goal.published_names
        if added or plan.gone:
            ledger.change_published_names(added, plan.gone)
        # 4. Make the changes.
        applied = ApplyResult(self._client, goal, tree, ledger, deadline)
        try:
            applied.apply(plan, skipped)
        finally:
            # 5. Keep the confirmed contents; drop the names that are gone.
            self._confirmed |= applied.contents
            self._known -= applied.gone.created
            self._known |= applied.created
            if applied.gone or applied.in_use:
                in_use = PublishedNames(
                    in_use_at=dict.fromkeys(applied.in_use, int(_now()))
                )
                ledger.change_published_names(in_use, applied.gone)
        if applied.again:
            # The error may have been about a name that has been deleted since.
            self._known.clear()
            self._unknown.clear()
        return applied

    def _alone(self, deadline: float) -> contextlib.AbstractContextManager[None]:
        busy = exception.LockTimeout("another thread is publishing in Placement")
        return deadlines.alone(self._guard, deadline, busy)


def _now() -> float:
    """Return the seconds since 1970, which all processes can compare."""
    return time.time()


def _recent(names: Mapping[PlacementName, int]) -> frozenset[PlacementName]:
    """Return the names whose timestamp is younger than ``KEPT_SECONDS``."""
    now = int(_now())
    # A timestamp in the future: the clock was set back.
    return frozenset(name for name, at in names.items() if 0 <= now - at < KEPT_SECONDS)


def _paused(number: int, deadline: float) -> bool:
    """Pause before the next attempt; return False if no time is left for it."""
    pause = random.uniform(0.0, _PAUSE * 2**number)
    if time.monotonic() + pause >= deadline:
        return False
    time.sleep(pause)
    return True
