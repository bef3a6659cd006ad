# SPDX-License-Identifier: Apache-2.0

"""Which of a host's cells can carry a guest, its networks and its devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Final

from os_acc import exception
from os_acc.numa.affinity import GuestCells, allows
from os_acc.numa.fit import cell_sets, cells
from os_acc.numa.fit.cell_assignment import (
    CellAssignment,
    CellRequirement,
    GuestRequirements,
    least,
)
from os_acc.numa.fit.devices import unserved
from os_acc.numa.fit.networks import (
    NO_NETWORKS,
    cells_of_physnet,
    cells_of_tunnels,
    not_carried,
)
from os_acc.numa.fit.question import Question, ordered
from os_acc.numa.fit.reasons import Reason
from os_acc.objects.numa import InstanceNUMANetworks


@dataclasses.dataclass(frozen=True, slots=True)
class Unmet:
    """What cannot be had in one cell of the host alone.

    :ivar host_cell: its id.
    :ivar networks: those that leave the host in other cells.
    :ivar requests: names of those requests for devices that, by their
        policies, find too few there, even without all others.
    """

    host_cell: int
    networks: InstanceNUMANetworks = NO_NETWORKS
    requests: tuple[str, ...] = ()

    def __str__(self) -> str:
        lacks = [f"network {name}" for name in sorted(self.networks.physnets)]
        lacks += ["tunnelled networks"] * self.networks.tunneled
        lacks += [f"devices for {name}" for name in self.requests]
        return f"host cell {self.host_cell} does not lead to {', '.join(lacks)}"


def lacking(question: Question) -> tuple[Unmet, ...]:
    """For each cell of the host that does not lead to everything: to what not.

    It is what is told beside :attr:`os_acc.numa.fit.search.Fit.refusals`, which are
    about memory and CPUs. A guest of several cells needs each thing in one of
    them.
    """
    found = []
    for cell in question.host.cells:
        networks = not_carried(question.host, (cell.id,), question.networks)
        requests = _unserved(question, GuestCells(question.host, (cell.id,)))
        if networks != NO_NETWORKS or requests:
            found.append(Unmet(cell.id, networks, requests))
    return tuple(found)


def _unserved(question: Question, guest: GuestCells) -> tuple[str, ...]:
    pools = [(pool, guest.affinity(pool.node)) for pool in question.pools]
    return tuple(
        request.name
        for request in question.requests
        if request.count
        > sum(
            pool.count
            for pool, affinity in pools
            if pool.name in request.pools and allows(request.policy, affinity)
        )
    )


#: How many of the host's cells may be able to carry one of the guest's.
MAX_CELLS: Final = cell_sets.MAX_CELLS
#: How many ways to seat a guest may be tried for its devices.
BUDGET: Final = 500
#: What tunnelled networks are called where the others are by their names;
#: it is no name of a physical network.
_TUNNELS: Final = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CellRefusal:
    """Why a cell of the guest cannot be on a cell of the host.

    :ivar host_cell: its id.
    :ivar guest_cell: its place among the guest's, from 0.
    """

    host_cell: int
    guest_cell: int
    reason: Reason

    def __str__(self) -> str:
        return (
            f"guest cell {self.guest_cell} is not for host cell {self.host_cell}: "
            f"{self.reason}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """Where a guest goes, or why it goes nowhere.

    :ivar fits: whether there is a way.
    :ivar cells: the id of the host's cell for each of the guest's.
    :ivar refusals: what goes nowhere on this host, whatever the rest is, by
        host cell and guest cell; also of a guest that fits.
    :ivar unseated: places of those cells of the guest for which there are too
        few cells of the host, between them.
    :ivar networks: those networks, and
    :ivar requests: the names of those requests for devices, that cannot be met
        together by cells which carry the guest. Without any one of them all
        the others can.
    """

    fits: bool
    cells: tuple[int, ...] = ()
    refusals: tuple[CellRefusal, ...] = ()
    unseated: tuple[int, ...] = ()
    networks: InstanceNUMANetworks = NO_NETWORKS
    requests: tuple[str, ...] = ()


def fit_to_host(
    question: Question, *, budget: int = BUDGET, explain: bool = True
) -> Fit:
    """Find a cell of the host for each of a guest's.

    Of all ways it is the first in the order of :mod:`os_acc.numa.fit.question`, where
    the guest's first cell counts most. A guest without cells may be anywhere:
    its devices alone are counted.

    :param budget: how many ways may be tried.
    :param explain: find out which networks and requests are in one another's way
        where there is none. That asks again without one after another of them,
        and takes as many times as long.
    :raises FitTooLarge: more than :data:`MAX_CELLS` cells of the host can carry
        a part of the guest.
    :raises FitTooHard: neither found nor ruled out within the budget. Either
        error has the refusals.
    """
    if not question.guest.cells:
        return _anywhere(question, explain)
    refusals = _refusals(question)
    order, choices = _choices(question, refusals)
    seating = CellAssignment(question.host, order, choices, question.pools, budget)
    if crowded := seating.crowded():
        return Fit(False, refusals=refusals, unseated=crowded)
    wants = GuestRequirements(_needs(question, order), question.requests)
    try:
        found = seating.found(wants)
    except exception.FitTooHard as error:
        raise exception.FitTooHard(error.message, refusals=refusals) from error
    if not isinstance(found, GuestRequirements):
        return Fit(True, found, refusals)
    if not explain:
        return Fit(False, refusals=refusals)
    conflict = seating.conflict(found)
    unmet = frozenset(need.name for need in conflict.needs)
    return Fit(
        False,
        refusals=refusals,
        networks=InstanceNUMANetworks(unmet - {_TUNNELS}, _TUNNELS in unmet),
        requests=tuple(each.name for each in conflict.requests),
    )


def _anywhere(question: Question, explain: bool) -> Fit:
    def missing(wants: GuestRequirements) -> GuestRequirements | None:
        short = unserved(question.host, (), question.pools, wants.requests)
        names = frozenset[str]().union(*short)
        asked = tuple(each for each in wants.requests if each.name in names)
        return GuestRequirements(requests=asked) if short else None

    conflict = missing(GuestRequirements(requests=question.requests))
    if conflict is None or not explain:
        return Fit(conflict is None)
    asked = least(conflict, missing).requests
    return Fit(False, requests=tuple(each.name for each in asked))


def _choices(
    question: Question, refusals: Collection[CellRefusal]
) -> tuple[list[int], list[int]]:
    """The cells of the host that carry anything, and who may have which place."""
    guest = range(len(question.guest.cells))
    refused = {(each.host_cell, each.guest_cell) for each in refusals}
    order = [
        cell.id
        for cell in ordered(question)
        if any((cell.id, place) not in refused for place in guest)
    ]
    if len(order) > MAX_CELLS:
        raise exception.FitTooLarge(
            f"{len(order)} cells of the host can carry a cell of the guest, and at "
            f"most {MAX_CELLS} can be chosen from",
            refusals=refusals,
        )
    return order, [
        _places(order, [cell for cell in order if (cell, place) not in refused])
        for place in guest
    ]


def _refusals(question: Question) -> tuple[CellRefusal, ...]:
    guest = question.guest
    found = []
    for host in question.host.cells:
        for place, cell in enumerate(guest.cells):
            # The emulator's threads are with the guest's first cell.
            emulator = guest.emulator_threads_isolated and place == 0
            reason = cells.refusal(host, cell, question.limits, emulator=emulator)
            if reason:
                found.append(CellRefusal(host.id, place, reason))
    return tuple(found)


def _places(order: Sequence[int], wanted: Collection[int]) -> int:
    return sum(1 << place for place, cell in enumerate(order) if cell in wanted)


def _needs(question: Question, order: Sequence[int]) -> tuple[CellRequirement, ...]:
    """The places that lead to each network, where some do and others do not."""
    declared = {
        name: cells_of_physnet(question.host, name)
        for name in sorted(question.networks.physnets)
    }
    if question.networks.tunneled:
        declared[_TUNNELS] = cells_of_tunnels(question.host)
    return tuple(
        CellRequirement(name, _places(order, at)) for name, at in declared.items() if at
    )
