# SPDX-License-Identifier: Apache-2.0

"""Direct publication of the host's inventory in Placement."""

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
from os_acc.objects.records import PublishedNames
from os_acc.placement import api_tree, diff
from os_acc.placement.api_tree import Application, PlacementTree
from os_acc.placement.capacity import Capacity
from os_acc.placement.changes import RefusedChange, Step
from os_acc.placement.client import Client, Declined, PlacementSettings
from os_acc.placement.diff import ChangePlan, DesiredState
from os_acc.placement.published import PublishedRecord

LOG = log.getLogger(__name__)

#: Attempts to plan a change that conflicts with another service's change.
ROUNDS: Final = 8
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
        self._tree = PlacementTree(conf, node_name, self._client)
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
        seconds = PlacementSettings.load(self._conf).sync_timeout
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
        goal = self._goal(wanted, published_names)
        with self._alone(deadline):
            self._tree.read(goal, deadline, searches=True)
            return diff.plan(goal, self._tree)

    def sync(
        self, wanted: Sequence[Capacity], record: PublishedRecord, deadline: float
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
            reads, writes = self._client.reads, self._client.writes
            found = self._rounds(wanted, record, deadline)
            return dataclasses.replace(
                found,
                reads=self._client.reads - reads,
                writes=self._client.writes - writes,
            )

    def _goal(
        self, wanted: Sequence[Capacity], published_names: PublishedNames
    ) -> DesiredState:
        return DesiredState(wanted, published_names, self._node_name, self._named)

    def _rounds(
        self, wanted: Sequence[Capacity], record: PublishedRecord, deadline: float
    ) -> SyncResult:
        """Repeat steps 1 to 5 while changes conflict, for :data:`ROUNDS` times at most.

        1. read the present state, 2. plan the changes, 3. record the names to be
        published (:meth:`_apply`), 4. make the changes, 5. update the record of what is
        confirmed.
        """
        done: list[Step] = []
        recognized: Mapping[str, str] = {}
        refused: dict[str, RefusedChange] = {}
        again: list[RefusedChange] = []
        for number in range(ROUNDS):
            if number and not _paused(number, deadline):
                break
            goal = self._goal(wanted, record.published_names())
            searches = bool(again) or self._contested
            # 1. Read the present state.
            self._tree.read(goal, deadline, searches=searches)
            # 2. Plan the changes.
            plan = diff.plan(goal, self._tree)
            recognized = plan.recognized
            self._contested = any(
                each.error.reason is exception.RefusalReason.NAME_TAKEN
                for each in plan.refused
            )
            steps = [each for each in plan.steps if str(each) not in refused]
            applied = self._apply(goal, steps, record)
            done += applied.done
            refused |= {each.what: each for each in (*plan.refused, *applied.refused)}
            again = applied.again
            if not again:
                break
            # The error may have been about a name that has been deleted since.
            self._tree.forget_names()
        refused |= {each.what: each for each in again}
        for each in refused.values():
            LOG.warning("cannot publish in Placement: %s", each)
        return SyncResult(tuple(done), tuple(refused.values()), recognized=recognized)

    def _apply(
        self, goal: DesiredState, steps: Sequence[Step], record: PublishedRecord
    ) -> Application:
        # 3. Record the names first: a crash neither loses our names nor claims others'.
        if added := goal.assigned - goal.published_names:
            record.change_published_names(added)
        applied = Application(self._tree, record)
        try:
            # 4. Make the changes.
            for step in steps:
                applied.carry_out(step)
        finally:
            # 5. Drop the names that are gone.
            in_use = PublishedNames(
                in_use_at=dict.fromkeys(applied.in_use, api_tree.now())
            )
            gone = goal.gone(self._tree.contents) | PublishedNames(
                created=frozenset(applied.disowned)
            )
            if in_use or gone:
                record.change_published_names(in_use, gone)
        return applied

    def _alone(self, deadline: float) -> contextlib.AbstractContextManager[None]:
        busy = exception.LockTimeout("another thread is publishing in Placement")
        return deadlines.alone(self._guard, deadline, busy)


def _paused(number: int, deadline: float) -> bool:
    """Pause before the next attempt; return False if no time is left for it."""
    pause = random.uniform(0.0, _PAUSE * 2**number)
    if time.monotonic() + pause >= deadline:
        return False
    time.sleep(pause)
    return True
