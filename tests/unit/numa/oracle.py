# SPDX-License-Identifier: Apache-2.0

"""The assignments of a guest, found by trying every permutation of host cells."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from os_acc.numa import cells
from os_acc.numa.fit import DeviceRequest, Question, ordered
from os_acc.numa.nearest import DevicePool
from os_acc.objects.numa import NUMAPolicy, NUMATopology

_T = TypeVar("_T")


def ways(question: Question) -> Iterator[tuple[int, ...]]:
    """Yield every assignment that meets the cells' needs, in Nova's order."""
    guest = question.guest
    first = guest.emulator_threads_isolated
    for chosen in itertools.permutations(ordered(question), len(guest.cells)):
        if not any(
            cells.refusal(host, cell, question.limits, emulator=first and not at)
            for at, (host, cell) in enumerate(zip(chosen, guest.cells, strict=True))
        ):
            yield tuple(host.id for host in chosen)


def answers(question: Question) -> Iterator[tuple[int, ...]]:
    """Yield every assignment that also provides the networks and the devices."""
    for chosen in ways(question):
        if has_networks(question, chosen) and all_served(
            question.host, chosen, question.pools, question.requests
        ):
            yield chosen


def has_networks(question: Question, chosen: Collection[int]) -> bool:
    """Return whether chosen cells declare each network, or no cell declares it."""
    there, everywhere = (
        {
            name
            for cell in question.host.cells
            if cell.id in among
            for name in (
                *cell.network_info.physnets,
                *[""] * cell.network_info.tunneled,
            )
        }
        for among in (chosen, {cell.id for cell in question.host.cells})
    )
    wanted = {*question.networks.physnets, *[""] * question.networks.tunneled}
    return wanted & everywhere <= there


def all_served(
    topology: NUMATopology,
    chosen: Collection[int],
    pools: Sequence[DevicePool],
    requests: Sequence[DeviceRequest],
) -> bool:
    """Return whether every set of requests has enough devices (Hall's condition)."""
    return all(
        sum(each.count for each in group)
        <= sum(
            pool.count
            for pool in pools
            if any(may_have(topology, chosen, pool, each) for each in group)
        )
        for group in groups(requests)
    )


def may_have(
    topology: NUMATopology,
    chosen: Collection[int],
    pool: DevicePool,
    request: DeviceRequest,
) -> bool:
    """Return whether the policy table allows a pool for a request."""
    if pool.name not in request.pools:
        return False
    if not chosen or pool.node in chosen or request.policy is NUMAPolicy.PREFERRED:
        return True
    if request.policy is NUMAPolicy.LEGACY:
        return pool.node is None
    if request.policy is NUMAPolicy.SOCKET:
        sockets = {cell.id: cell.socket for cell in topology.cells}
        return None not in sockets.values() and sockets.get(pool.node) in {
            sockets[cell] for cell in chosen
        }
    return False


def groups(things: Iterable[_T]) -> Iterator[tuple[_T, ...]]:
    """Yield every non-empty combination."""
    everything = tuple(things)
    for number in range(1, len(everything) + 1):
        yield from itertools.combinations(everything, number)
