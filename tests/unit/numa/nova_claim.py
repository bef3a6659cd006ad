# SPDX-License-Identifier: Apache-2.0

"""A model of the claim of Nova 34, which explains each difference from the exact fit.

:func:`os_acc.numa.fit.fit_to_host` finds an assignment if one exists.
Nova's claim refuses some of these guests and accepts a few that do not fit:

*An unusable local device hides the others.*
    ``_filter_pools_for_numa_cells`` counts the devices in the guest's cells
    before PFs, vDPA devices and devices allocated by Placement to others are
    removed. If the count suffices, no other cell is considered, even under
    ``preferred``, although the removal may leave none.
*Requests are served in turn.*
    Each request takes the first pools allowed, even if a later request depends
    on them; a pool without node precedes a local pool if it is listed first.
*Verdicts are cached under changing ids.*
    The verdict on a guest cell and a host cell is cached under both ids, but a
    match overwrites the guest cell's id with the host's. The verdict of one
    guest cell is therefore reused for another, including the emulator's CPU.
*An id is overwritten too early.*
    A cell of policy ``mixed`` gets the host's id once its CPUs are placed, even
    if the limits then refuse it.
*A page size is overwritten.*
    ``small``, ``large`` and ``any`` become the page size of the first matching
    host cell; the other cells are then searched for exactly that size.
*Networks are part of the limits.*
    Networks are not checked for a guest without limits, for example one forced
    to a host.

All of this depends on Nova's search order alone; the module follows that order,
permutation by permutation.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

from os_acc.numa import cells
from os_acc.numa.fit import NO_NETWORKS, DeviceRequest, Question, not_carried, ordered
from os_acc.numa.nearest import DevicePool
from os_acc.objects.numa import CPUPolicy, NUMACell, NUMAPolicy, NUMATopology


@dataclasses.dataclass(frozen=True, slots=True)
class MatchingRequest(DeviceRequest):
    """A request, with pools that match its specification but do not serve it.

    :ivar also_matching: names of these pools: PFs and vDPA devices that were not
        requested explicitly, and devices that Placement allocated to others.
    """

    also_matching: frozenset[str] = frozenset()


def also_matching(request: DeviceRequest) -> frozenset[str]:
    return getattr(request, "also_matching", frozenset())


def fit_as_nova(question: Question) -> tuple[int, ...] | None:
    """Return the cells that Nova 34 would choose, in the order of the guest's.

    :returns: ids of host cells; None: Nova refuses the guest.
    """
    if not question.guest.cells:
        served = served_in_turn(question.host, (), question.pools, question.requests)
        return () if served else None
    return _Walk(question).result()


class _Walk:
    """Nova's search through the permutations, with its caches."""

    def __init__(self, question: Question) -> None:
        self._question = question
        guest = question.guest.cells
        self._ids = list(range(len(guest)))
        self._guest = list(guest)
        self._fitting = set[tuple[int, int]]()
        self._not_fitting = set[tuple[int, int]]()
        self._verdicts: dict[tuple[int, int, int | None], tuple[bool, ...]] = {}
        self._served: dict[frozenset[int], bool] = {}

    def result(self) -> tuple[int, ...] | None:
        """Return the first permutation that passes."""
        order = ordered(self._question)
        for chosen in itertools.permutations(order, len(self._guest)):
            if all(self._goes(host, place) for place, host in enumerate(chosen)):
                ids = tuple(host.id for host in chosen)
                if self._has_everything(ids):
                    return ids
        return None

    def _goes(self, host: NUMACell, place: int) -> bool:
        """Return whether a guest cell fits a host cell, by Nova's cache."""
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
        """Return whether the cell really fits, and overwrite fields as Nova does."""
        cell = self._guest[place]
        key = (host.id, place, cell.pagesize)
        if key not in self._verdicts:
            emulator = self._question.guest.emulator_threads_isolated and place == 0
            self._verdicts[key] = tuple(
                cells.refusal(host, cell, limits, emulator=emulator) is None
                for limits in (self._question.limits, None)
            )
        fits, fits_without_limits = self._verdicts[key]
        size = cells.page_size(host, cell) if cell.pagesize else None
        if isinstance(size, int):
            self._guest[place] = dataclasses.replace(cell, pagesize=size)
        pinned = cell.cpu_policy is not CPUPolicy.SHARED
        if fits or (pinned and fits_without_limits):
            self._ids[place] = host.id
        return fits

    def _has_everything(self, ids: tuple[int, ...]) -> bool:
        """Check devices and networks, which depend on the set of cells alone."""
        chosen = frozenset(ids)
        if chosen not in self._served:
            question = self._question
            self._served[chosen] = served_in_turn(
                question.host, ids, question.pools, question.requests
            ) and (
                question.limits is None
                or not_carried(question.host, ids, question.networks) == NO_NETWORKS
            )
        return self._served[chosen]


def served_in_turn(
    topology: NUMATopology,
    chosen: Sequence[int],
    pools: Sequence[DevicePool],
    requests: Sequence[DeviceRequest],
) -> bool:
    """Return whether requests can be met in turn (``support_requests``).

    :param chosen: ids of the host cells of the guest; none: any cell.
    """
    left = list(pools)
    for request in requests:
        matching = [
            pool for pool in left if pool.name in request.pools | also_matching(request)
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
    """Return the pools that Nova leaves to a request.

    ``_filter_pools_for_numa_cells`` proceeds from the strictest policy to that of
    the request, and stops as soon as the pools suffice. The result may be too few.
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
    """Return the cells on the same sockets; none if any host cell lacks a socket."""
    if any(cell.socket is None for cell in topology.cells):
        return set()
    sockets = {cell.socket for cell in topology.cells if cell.id in chosen}
    return {cell.id for cell in topology.cells if cell.socket in sockets}
