# SPDX-License-Identifier: Apache-2.0

"""Find the host cells that carry a guest, its networks and its devices."""

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
    """Networks and devices that one host cell alone does not provide.

    :ivar host_cell: its id.
    :ivar networks: networks declared by other cells only.
    :ivar requests: names of device requests for which the policy leaves too few
        devices, even without the other requests.
    """

    host_cell: int
    networks: InstanceNUMANetworks = NO_NETWORKS
    requests: tuple[str, ...] = ()

    def __str__(self) -> str:
        lacks = [f"network {name}" for name in sorted(self.networks.physnets)]
        lacks += ["tunnelled networks"] * self.networks.tunneled
        lacks += [f"devices for {name}" for name in self.requests]
        return f"host cell {self.host_cell} does not reach {', '.join(lacks)}"


def lacking(question: Question) -> tuple[Unmet, ...]:
    """Return the networks and requests that each host cell does not provide.

    It complements :attr:`os_acc.numa.fit.search.Fit.refusals`, which cover memory
    and CPUs. A guest of several cells needs each network and device in one of
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


#: How many host cells may be able to carry a guest cell.
MAX_CELLS: Final = cell_sets.MAX_CELLS
#: How many assignments are tried for a guest's devices.
BUDGET: Final = 500
#: The name of tunnelled networks among the names of physical networks; no
#: physical network has an empty name.
_TUNNELS: Final = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CellRefusal:
    """The reason why a guest cell cannot be on a host cell.

    :ivar host_cell: its id.
    :ivar guest_cell: its index among the guest's cells, from 0.
    """

    host_cell: int
    guest_cell: int
    reason: Reason

    def __str__(self) -> str:
        return (
            f"guest cell {self.guest_cell} does not fit host cell "
            f"{self.host_cell}: {self.reason}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """The assignment of a guest, or the reasons why there is none.

    :ivar fits: whether an assignment exists.
    :ivar cells: the id of the host cell for each guest cell.
    :ivar refusals: guest cells that do not fit a host cell, regardless of the
        rest, by host cell and guest cell; also set for a guest that fits.
    :ivar unseated: indexes of guest cells that together have too few host cells.
    :ivar networks: a minimal conflict, together with ``requests``: networks that
        the cells which carry the guest do not provide together.
    :ivar requests: names of the device requests in that conflict. Without any
        one network or request of it, the others can be met.
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
    """Find a host cell for each guest cell.

    The result is the first assignment in the order of
    :mod:`os_acc.numa.fit.question`; the guest's first cell counts most. For a
    guest without cells only the devices are counted.

    :param budget: the number of assignments to try.
    :param explain: find a minimal conflict of networks and requests if there is
        no assignment. This repeats the search once per network and request.
    :raises FitUndecided: TOO_LARGE: more than :data:`MAX_CELLS` host cells can carry
        a guest cell. TOO_HARD: neither found nor excluded within the budget. The
        error includes the refusals.
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
    except exception.FitUndecided as error:
        raise exception.FitUndecided(
            error.message, refusals=refusals, reason=error.reason
        ) from error
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
    """Return the usable host cells, and the positions allowed for each guest cell."""
    guest = range(len(question.guest.cells))
    refused = {(each.host_cell, each.guest_cell) for each in refusals}
    order = [
        cell.id
        for cell in ordered(question)
        if any((cell.id, place) not in refused for place in guest)
    ]
    if len(order) > MAX_CELLS:
        raise exception.FitUndecided(
            f"{len(order)} host cells can hold a guest cell; the search "
            f"is limited to {MAX_CELLS}",
            refusals=refusals,
            reason=exception.FitReason.TOO_LARGE,
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
            # The emulator's threads belong to the guest's first cell.
            emulator = guest.emulator_threads_isolated and place == 0
            reason = cells.refusal(host, cell, question.limits, emulator=emulator)
            if reason:
                found.append(CellRefusal(host.id, place, reason))
    return tuple(found)


def _places(order: Sequence[int], wanted: Collection[int]) -> int:
    return sum(1 << place for place, cell in enumerate(order) if cell in wanted)


def _needs(question: Question, order: Sequence[int]) -> tuple[CellRequirement, ...]:
    """Return the positions that provide each network that some cells declare."""
    declared = {
        name: cells_of_physnet(question.host, name)
        for name in sorted(question.networks.physnets)
    }
    if question.networks.tunneled:
        declared[_TUNNELS] = cells_of_tunnels(question.host)
    return tuple(
        CellRequirement(name, _places(order, at)) for name, at in declared.items() if at
    )
