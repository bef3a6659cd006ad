# SPDX-License-Identifier: Apache-2.0

"""The same question as Nova 34 answers it, with its quirks.

:func:`os_acc.numa.fit.search.fit_to_host` finds a way wherever there is one.
Nova's claim refuses some of these guests, and takes a few that go nowhere. Who must not
promise what the claim refuses asks here. What is different:

*A local device that nobody can have hides the others.*
    ``_filter_pools_for_numa_cells`` looks for enough devices in the guest's
    cells before PFs, vDPA devices and what Placement allocated to others are
    taken out. If it finds enough, it looks no further, even under
    ``preferred``; if they are then taken out, nothing is left.
*Requests are served in their turn.*
    Each takes the first pools that it may have, even those that a later one
    depends on; what has no node comes before what is local, if it is listed
    before it.
*Verdicts are kept under names that change.*
    Whether a cell of the guest goes onto a cell of the host is kept under the
    ids of both, but the guest's is overwritten with the host's as soon as it
    does. So the verdict of one cell of the guest is taken for another's, the
    emulator's CPU included.
*An id is overwritten too early.*
    A cell of policy ``mixed`` has the host's id once its CPUs have a place, even
    if the limits then refuse it.
*A page size is overwritten.*
    ``small``, ``large`` and ``any`` become the size that the first cell of the
    host has pages of; from then on that very size is looked for in the others.
*Networks travel in the limits.*
    A guest without limits, as one that is forced to its host, is not asked for
    its networks.

Nothing of this depends on more than Nova's own order of looking, so that is
followed, permutation by permutation.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from typing import Final

from os_acc import exception
from os_acc.numa.fit import cells
from os_acc.numa.fit.devices import DevicePool, DeviceRequest
from os_acc.numa.fit.networks import carried
from os_acc.numa.fit.question import Question, ordered
from os_acc.numa.fit.reasons import Reason, ReasonKind
from os_acc.objects.numa import CPUPolicy, NUMACell, NUMAPolicy, NUMATopology

#: How often a cell of the guest may be held against one of the host.
BUDGET: Final = 500_000

_OF_PAGE_SIZES = {ReasonKind.PAGE_SIZE, ReasonKind.UNEVEN_PAGES, ReasonKind.FREE_PAGES}
_OF_LIMITS = {ReasonKind.CPU_LIMIT, ReasonKind.RAM_LIMIT}


def fit_as_nova(question: Question, *, budget: int = BUDGET) -> tuple[int, ...] | None:
    """The cells that Nova 34 would choose, in the order of the guest's.

    :param budget: how often cells may be held against one another: of 8 cells
        of the host, 4 of a guest's take at most 6,720 times.
    :returns: ids of cells of the host; None where Nova refuses.
    :raises FitTooHard: neither found nor ruled out within the budget.
    """
    if not question.guest.cells:
        served = served_in_turn(question.host, (), question.pools, question.requests)
        return () if served else None
    return _Walk(question, budget).result()


class _Walk:
    """Nova's way through the permutations, and what it remembers on it."""

    def __init__(self, question: Question, budget: int) -> None:
        self._question = question
        self._budget = budget
        guest = question.guest.cells
        self._ids = list(range(len(guest)))
        self._guest = list(guest)
        self._fitting = set[tuple[int, int]]()
        self._not_fitting = set[tuple[int, int]]()
        self._reasons: dict[tuple[int, int, int | None], Reason | None] = {}
        self._served: dict[frozenset[int], bool] = {}

    def result(self) -> tuple[int, ...] | None:
        """The first permutation that passes."""
        order = ordered(self._question)
        for chosen in itertools.permutations(order, len(self._guest)):
            if all(self._goes(host, place) for place, host in enumerate(chosen)):
                ids = tuple(host.id for host in chosen)
                if self._has_everything(ids):
                    return ids
        return None

    def _goes(self, host: NUMACell, place: int) -> bool:
        """Whether that cell of the guest goes there, as far as Nova remembers."""
        if not self._budget:
            raise exception.FitTooHard(
                f"Nova's way through the permutations of {len(self._guest)} of "
                f"{len(self._question.host.cells)} cells was not followed to its end"
            )
        self._budget -= 1
        pair = (host.id, self._ids[place])
        if pair in self._not_fitting:
            return False
        if pair in self._fitting:
            self._ids[place] = host.id
            return True
        fits = self._fits(host, place)
        (self._fitting if fits else self._not_fitting).add(pair)
        return fits

    def _fits(self, host: NUMACell, place: int) -> bool:
        """Whether it goes there in truth, and what Nova overwrites meanwhile."""
        cell = self._guest[place]
        key = (host.id, place, cell.pagesize)
        if key not in self._reasons:
            emulator = self._question.guest.emulator_threads_isolated and place == 0
            self._reasons[key] = cells.refusal(
                host, cell, self._question.limits, emulator=emulator
            )
        reason = self._reasons[key]
        if cell.pagesize and (reason is None or reason.why not in _OF_PAGE_SIZES):
            size = cells.page_size(host, cell)
            assert isinstance(size, int)
            self._guest[place] = dataclasses.replace(cell, pagesize=size)
        pinned = cell.cpu_policy is not CPUPolicy.SHARED
        if reason is None or (pinned and reason.why in _OF_LIMITS):
            self._ids[place] = host.id
        return reason is None

    def _has_everything(self, ids: tuple[int, ...]) -> bool:
        """Devices and networks: they depend on the set of cells alone."""
        chosen = frozenset(ids)
        if chosen not in self._served:
            question = self._question
            self._served[chosen] = served_in_turn(
                question.host, ids, question.pools, question.requests
            ) and (
                question.limits is None
                or carried(question.host, ids, question.networks)
            )
        return self._served[chosen]


def served_in_turn(
    topology: NUMATopology,
    chosen: Sequence[int],
    pools: Sequence[DevicePool],
    requests: Sequence[DeviceRequest],
) -> bool:
    """Whether requests can be met one after another (``support_requests``).

    :param chosen: ids of the host's cells that the guest has; none: it may be
        anywhere.
    """
    left = list(pools)
    for request in requests:
        matching = [
            pool
            for pool in left
            if pool.name in request.pools or pool.name in request.also_matching
        ]
        near = near_enough(topology, chosen, matching, request)
        usable = [pool for pool in near if pool.name in request.pools]
        if sum(pool.count for pool in usable) < request.count:
            return False
        wanted, takes = request.count, dict[str, int]()
        for pool in usable:
            takes[pool.name] = min(pool.count, wanted)
            wanted -= takes[pool.name]
        left = [
            dataclasses.replace(pool, count=pool.count - takes.get(pool.name, 0))
            for pool in left
            if pool.count > takes.get(pool.name, 0)
        ]
    return True


def near_enough(
    topology: NUMATopology,
    chosen: Sequence[int],
    pools: Sequence[DevicePool],
    request: DeviceRequest,
) -> Sequence[DevicePool]:
    """The pools that Nova leaves to a request (``_filter_pools_for_numa_cells``).

    It goes from the strictest policy to that of the request, and stops where
    there are enough. What it returns may be too few.
    """
    if not chosen:
        return pools
    local = _in(pools, chosen)
    if request.policy is NUMAPolicy.REQUIRED or _enough(local, request):
        return local
    if request.policy is NUMAPolicy.SOCKET:
        return _in(pools, _on_sockets(topology, chosen))
    known = _in(pools, {*chosen, None})
    if request.policy is NUMAPolicy.LEGACY or _enough(known, request):
        return known
    return sorted(pools, key=lambda pool: pool not in known)


def _in(pools: Sequence[DevicePool], nodes: Collection[int | None]) -> list[DevicePool]:
    return [pool for pool in pools if pool.node in nodes]


def _enough(pools: Sequence[DevicePool], request: DeviceRequest) -> bool:
    return sum(pool.count for pool in pools) >= request.count


def _on_sockets(topology: NUMATopology, chosen: Collection[int]) -> set[int]:
    """The cells on sockets of these; none where a cell of the host has none."""
    if any(cell.socket is None for cell in topology.cells):
        return set()
    sockets = {cell.socket for cell in topology.cells if cell.id in chosen}
    return {cell.id for cell in topology.cells if cell.socket in sockets}
