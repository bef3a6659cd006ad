# SPDX-License-Identifier: Apache-2.0

"""Find the host cells that carry a guest, its networks and its devices.

The search is backtracking in Nova's order (:func:`ordered`). Networks and devices
depend on the *set* of host cells alone, so a set that has failed is not tried again in
another order, and equal guest cells take ascending host cells.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Sequence, Set
from typing import Final

from os_acc import exception
from os_acc.numa import cells
from os_acc.numa.nearest import DevicePool, Flow
from os_acc.numa.policies import GuestCells, allows
from os_acc.objects.numa import (
    CPUPolicy,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    NUMACell,
    NUMALimits,
    NUMAPolicy,
    NUMATopology,
)

#: How many sets of host cells are tried.
BUDGET: Final = 5_000
#: A guest without networks, or without networks of known affinity.
NO_NETWORKS: Final = InstanceNUMANetworks()


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request for a number of devices.

    :ivar pools: names of the pools that can serve it.
    """

    name: str
    count: int
    pools: frozenset[str]
    policy: NUMAPolicy = NUMAPolicy.LEGACY


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A host, a guest, and the guest's networks and devices.

    :ivar limits: None: overcommit is not checked.
    :ivar networks: the networks of the guest.
    :ivar pools: free devices of the host; names are unique.
    :ivar requests: device requests of the guest; names are unique.
    :ivar pack: prefer cells in use to empty ones, as
        ``[compute] packing_host_numa_cells_allocation_strategy`` does.
    """

    host: NUMATopology
    guest: InstanceNUMATopology
    limits: NUMALimits | None = None
    networks: InstanceNUMANetworks = NO_NETWORKS
    pools: tuple[DevicePool, ...] = ()
    requests: tuple[DeviceRequest, ...] = ()
    pack: bool = False


def ordered(question: Question) -> tuple[NUMACell, ...]:
    """Return the host's cells in the order of preference.

    The first criterion is the number of free devices: most first for a guest
    that requests devices, fewest first for others, packed or not. Then come free
    CPUs, then free memory: most first, or least first if packed. If the guest
    takes all cells, the order stays unchanged.
    """
    host, guest = question.host.cells, question.guest.cells
    if len(host) <= len(guest) or not guest:
        return host
    shared = guest[0].cpu_policy is CPUPolicy.SHARED
    there = Counter[int | None]()
    for pool in question.pools:
        there[pool.node] += pool.count
    devices = -1 if question.requests else 1
    free = 1 if question.pack else -1

    def rank(cell: NUMACell) -> tuple[int, int, int]:
        cpus = -cell.cpu_usage if shared else len(cell.free_pcpus)
        return devices * there[cell.id], free * cpus, free * cell.available_memory

    return tuple(sorted(host, key=rank))


@dataclasses.dataclass(frozen=True, slots=True)
class CellRefusal:
    """The reason why a guest cell cannot be on a host cell.

    :ivar host_cell: its id.
    :ivar guest_cell: its index among the guest's cells, from 0.
    """

    host_cell: int
    guest_cell: int
    reason: str

    def __str__(self) -> str:
        return (
            f"guest cell {self.guest_cell} does not fit host cell "
            f"{self.host_cell}: {self.reason}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """The assignment of a guest, if there is one.

    :ivar fits: whether an assignment exists.
    :ivar cells: the id of the host cell for each guest cell.
    :ivar refusals: guest cells that do not fit a host cell, regardless of the
        rest, by host cell and guest cell; also set for a guest that fits.
    """

    fits: bool
    cells: tuple[int, ...] = ()
    refusals: tuple[CellRefusal, ...] = ()


def fit_to_host(question: Question, *, budget: int = BUDGET) -> Fit:
    """Find a host cell for each guest cell.

    The result is the first assignment in the order of
    :func:`ordered`; the guest's first cell counts most. For a
    guest without cells only the devices are counted.

    :param budget: the number of sets of host cells to try.
    :raises FitUndecided: neither found nor excluded within the budget.
    """
    if not question.guest.cells:
        return Fit(all_served(question.host, (), question.pools, question.requests))
    refusals = _refusals(question)
    found = _Search(question, refusals, budget).completed()
    return Fit(found is not None, found or (), refusals)


def _refusals(question: Question) -> tuple[CellRefusal, ...]:
    guest = question.guest
    found = []
    for host in question.host.cells:
        for place, cell in enumerate(guest.cells):
            # The emulator's threads belong to the guest's first cell.
            emulator = guest.emulator_threads_isolated and place == 0
            reason = cells.refusal(host, cell, question.limits, emulator=emulator)
            if reason:
                found.append(CellRefusal(host.id, place, reason))
    return tuple(found)


def all_served(
    topology: NUMATopology,
    cells: Sequence[int],
    pools: Sequence[DevicePool],
    requests: Sequence[DeviceRequest],
) -> bool:
    """Return whether the pools serve all requests at once.

    :param cells: ids of the host cells of the guest; none: any cell.
    """
    guest = GuestCells(topology, tuple(cells))
    source, sink, first_pool = 0, 1, 2 + len(requests)
    flow = Flow(first_pool + len(pools))
    for place, pool in enumerate(pools, first_pool):
        affinity = guest.affinity(pool.node)
        flow.add(place, sink, pool.count)
        for at, request in enumerate(requests, 2):
            if pool.name in request.pools and allows(request.policy, affinity):
                flow.add(at, place, request.count)
    for at, request in enumerate(requests, 2):
        flow.add(source, at, request.count)
    wanted = sum(request.count for request in requests)
    return flow.run(source, sink, wanted) == wanted


def declared(
    topology: NUMATopology, networks: InstanceNUMANetworks
) -> Iterator[tuple[str | None, frozenset[int]]]:
    """Yield the networks that some cells declare, with the ids of these cells.

    A network is a physical network; None stands for the tunnels.
    """
    wanted: list[str | None] = [*sorted(networks.physnets)]
    for name in wanted + [None] * networks.tunneled:
        cells = frozenset(
            cell.id
            for cell in topology.cells
            if name in cell.network_info.physnets
            or (name is None and cell.network_info.tunneled)
        )
        if cells:
            yield name, cells


def not_carried(
    topology: NUMATopology, cells: Collection[int], networks: InstanceNUMANetworks
) -> InstanceNUMANetworks:
    """Return the networks that are declared by other cells only.

    :param cells: ids of the host cells of the guest.
    """
    missing = {
        name for name, at in declared(topology, networks) if at.isdisjoint(cells)
    }
    physnets = frozenset(name for name in missing if name is not None)
    return InstanceNUMANetworks(physnets, None in missing)


@dataclasses.dataclass(frozen=True, slots=True)
class _Demand:
    """A network, or a device request, of the guest.

    :ivar amount: the number of devices; 1 for a network.
    :ivar supply: pairs of an amount and the ids of the cells that provide it.
    """

    amount: int
    supply: tuple[tuple[int, frozenset[int]], ...]

    @property
    def cells(self) -> frozenset[int]:
        """The cells that provide some of it."""
        return frozenset[int]().union(*(at for _n, at in self.supply))

    def is_met(self, chosen: Set[int]) -> bool:
        """Return whether these cells provide it, apart from the other demands."""
        return sum(n for n, at in self.supply if at & chosen) >= self.amount


class _Search:
    """One search for the ids of host cells.

    :ivar choices: for each guest cell the host cells that can carry it, the preferred
        one first.
    :ivar later: for each guest cell the choices of the guest cells behind it, without
        those with the same choices that follow directly.
    """

    def __init__(
        self, question: Question, refusals: Collection[CellRefusal], budget: int
    ) -> None:
        self._question = question
        order = [cell.id for cell in ordered(question)]
        refused = {(each.guest_cell, each.host_cell) for each in refusals}
        self._choices = [
            [cell for cell in order if (place, cell) not in refused]
            for place in range(len(question.guest.cells))
        ]
        self._later = [frozenset[int]()] * len(self._choices)
        for place in reversed(range(len(self._choices) - 1)):
            other = () if self._is_repeated(place + 1) else self._choices[place + 1]
            self._later[place] = self._later[place + 1].union(other)
        self._demands = (*self._networks(), *self._devices())
        self._budget = self._left = budget
        self._failed = set[tuple[frozenset[int], int]]()

    def completed(
        self, chosen: tuple[int, ...] = (), floor: int = 0
    ) -> tuple[int, ...] | None:
        """Return the first assignment that begins with these host cells.

        :param floor: the first choice of the next guest cell.
        """
        taken = frozenset(chosen)
        if (taken, floor) in self._failed:
            return None
        if not self._left:
            raise exception.FitUndecided(
                f"no assignment of {len(self._choices)} guest cells to "
                f"{len(self._question.host.cells)} host cells was found or excluded: "
                f"{self._budget} sets of host cells were tried"
            )
        self._left -= 1
        place = len(chosen)
        if place == len(self._choices):
            if self._is_complete(chosen, taken):
                return chosen
        elif self._is_possible(place, taken, floor):
            for at, cell in enumerate(self._choices[place][floor:], floor + 1):
                after = at if self._is_repeated(place + 1) else 0
                if cell not in taken and (
                    found := self.completed((*chosen, cell), after)
                ):
                    return found
        self._failed.add((taken, floor))
        return None

    def _is_complete(self, chosen: Sequence[int], taken: Set[int]) -> bool:
        question = self._question
        return all(each.is_met(taken) for each in self._demands) and all_served(
            question.host, chosen, question.pools, question.requests
        )

    def _is_possible(self, place: int, taken: frozenset[int], floor: int) -> bool:
        """Return whether the remaining guest cells may meet each open demand."""
        rest = len(self._choices) - place
        free = self._later[place].union(self._choices[place][floor:]) - taken
        if len(free) < rest:
            return False
        reached = frozenset[int]()
        for demand in self._demands:
            if demand.is_met(taken):
                continue
            if not demand.is_met(taken | free):
                return False
            reach = demand.cells & free
            # Demands without a common cell need a cell each.
            if not reach & reached:
                reached |= reach
                rest -= 1
        return rest >= 0

    def _is_repeated(self, place: int) -> bool:
        """Return whether a guest cell has the choices of the one before."""
        return self._choices[place : place + 1] == self._choices[place - 1 : place]

    def _networks(self) -> Iterator[_Demand]:
        """Yield the networks that some cells declare; others are on any cell."""
        for _name, at in declared(self._question.host, self._question.networks):
            yield _Demand(1, ((1, at),))

    def _devices(self) -> Iterator[_Demand]:
        host, question = self._question.host, self._question
        alone = {cell.id: GuestCells(host, (cell.id,)) for cell in host.cells}
        # Requests of the same pools and policy are one demand.
        amounts = Counter[tuple[frozenset[str], NUMAPolicy]]()
        for request in question.requests:
            amounts[request.pools, request.policy] += request.count
        for (names, policy), amount in amounts.items():
            supply = []
            for pool in question.pools:
                if pool.name in names:
                    at = {
                        cell
                        for cell, guest in alone.items()
                        if allows(policy, guest.affinity(pool.node))
                    }
                    supply.append((pool.count, frozenset(at)))
            yield _Demand(amount, tuple(supply))
