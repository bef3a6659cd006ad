# SPDX-License-Identifier: Apache-2.0

"""What a guest would lack in each of a host's cells, if it were in no other."""

from __future__ import annotations

import dataclasses

from os_acc.numa.affinity import GuestCells, allows
from os_acc.numa.fit.networks import NO_NETWORKS, not_carried
from os_acc.numa.fit.question import Question
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
