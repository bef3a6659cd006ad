# SPDX-License-Identifier: Apache-2.0

"""Random hosts and guests; many of the guests just fit, and many just do not."""

from __future__ import annotations

import random
from collections.abc import Sequence

from os_acc.numa.fit import DeviceRequest, Question
from os_acc.numa.nearest import DevicePool
from os_acc.objects.numa import (
    CPUPolicy,
    CPUThreadPolicy,
    InstanceNUMACell,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    MemoryPages,
    NUMACell,
    NUMALimits,
    NUMANetworkInfo,
    NUMAPolicy,
    NUMATopology,
    PageSize,
)
from tests.unit.numa.nova_claim import MatchingRequest

PHYSNETS = ("a", "b", "c")
PRODUCTS = ("x", "x", "x", "y")
#: The kinds of devices in pools; a request for any kind is served with VFs only.
VF, PF, VDPA, ANY = "vf", "pf", "vdpa", "any"
PAGES = (4, 2048, 1048576)
THREADS = (None, *CPUThreadPolicy)
RATIOS = (0.75, 1.5, 4.0, 16.0)


def question(dice: random.Random, most_host: int = 8, most_guest: int = 4) -> Question:
    """Return a random question, drawn from ``dice``."""
    host = topology(dice, most_host)
    limits = NUMALimits(dice.choice(RATIOS), dice.choice(RATIOS))
    judged = dice.random() < 0.7
    # A guest with more cells than the host never fits, so it is drawn rarely.
    at_most = most_guest if dice.random() < 0.05 else min(most_guest, len(host.cells))
    pools = device_pools(dice, host)
    return Question(
        host,
        guest(dice, at_most, pages=bool(host.cells[0].mempages)),
        limits if judged else None,
        guest_networks(dice),
        pools,
        device_requests(dice, pools) if dice.random() < 0.6 else (),
        dice.random() < 0.3,
    )


def topology(dice: random.Random, most: int = 8) -> NUMATopology:
    number = min(most, dice.choice((1, 2, 2, 2, 3, 3, 4, 4, 5, 8)))
    ids = (
        range(number) if dice.random() < 0.7 else sorted(dice.sample(range(9), number))
    )
    socketless = set(dice.choices(list(ids), k=dice.choice((0, 0, 0, 1))))
    # Cells of one host differ only in their usage.
    threads, cores = dice.choice((1, 1, 2, 2, 4)), dice.randint(2, 5)
    legacy, pages = (
        dice.random() < 0.5,
        dice.choice(((), (), PAGES[:1], PAGES[:2], PAGES)),
    )
    return NUMATopology(
        tuple(
            _cell(
                dice,
                number,
                threads,
                cores,
                legacy,
                pages,
                None if number in socketless else number // 2,
            )
            for number in ids
        )
    )


def _cell(
    dice: random.Random,
    number: int,
    threads: int,
    cores: int,
    legacy: bool,
    pages: Sequence[int],
    socket: int | None,
) -> NUMACell:
    cpus = [
        [number * 32 + core * threads + thread for thread in range(threads)]
        for core in range(cores)
    ]
    everything = [cpu for core in cpus for cpu in core]
    if legacy:
        cpuset = pcpuset = frozenset(everything)
    else:
        shared = dice.sample(everything, len(everything) * dice.randint(1, 3) // 4)
        cpuset, pcpuset = frozenset(shared), frozenset(everything) - frozenset(shared)
    return NUMACell(
        number,
        cpuset,
        pcpuset,
        memory=dice.choice((1024, 2048, 4096)),
        siblings=tuple(frozenset(core) for core in cpus),
        mempages=tuple(_pages(dice, size) for size in pages),
        socket=socket,
        network_info=NUMANetworkInfo(
            frozenset(name for name in PHYSNETS if dice.random() < 0.4),
            dice.random() < 0.3,
        ),
        cpu_usage=dice.choice((0, 0, 1, 3)),
        memory_usage=dice.choice((0, 0, 256, 512)),
        pinned_cpus=frozenset(
            cpu
            for cpu in sorted(pcpuset)
            if dice.random() < dice.choice((0, 0, 0, 0.5))
        ),
    )


def _pages(dice: random.Random, size: int) -> MemoryPages:
    total = dice.choice((1024, 2048, 4096)) * 1024 // size
    used = dice.choice((0, 0, 0, total // 2, total))
    return MemoryPages(size, total, used, dice.choice((0, 0, (total - used) // 4)))


def guest(
    dice: random.Random, most: int = 4, *, pages: bool = True
) -> InstanceNUMATopology:
    number = dice.choice((1, 1, 2, 2, 2, 3, 4)[: 2 * most - 1])
    policy, threads = dice.choice(tuple(CPUPolicy)), dice.choice(THREADS)
    sizes = (*[None] * 4, *PageSize, *PageSize, *PAGES, 64)
    size = dice.choice(sizes if pages or dice.random() < 0.05 else (None,))
    memory = dice.choice((128, 256, 512, 512, 1024, 1024, 3))
    cells = []
    for _ in range(number):
        # Cells of a guest are usually alike.
        if dice.random() < 0.2:
            memory = dice.choice((128, 512, 1024, 2048))
        if dice.random() < 0.2:
            policy = dice.choice(tuple(CPUPolicy))
            size = dice.choice((None, *PageSize)) if pages else None
        cells.append(_guest_cell(dice, len(cells), policy, threads, size, memory))
    return InstanceNUMATopology(tuple(cells), dice.random() < 0.2)


def _guest_cell(
    dice: random.Random,
    at: int,
    policy: CPUPolicy,
    threads: CPUThreadPolicy | None,
    size: int | None,
    memory: int,
) -> InstanceNUMACell:
    cpus = range(at * 8, at * 8 + dice.choice((1, 1, 2, 2, 3)))
    dedicated = {
        CPUPolicy.SHARED: frozenset[int](),
        CPUPolicy.DEDICATED: frozenset(cpus),
        CPUPolicy.MIXED: frozenset(cpu for cpu in cpus if dice.random() < 0.5),
    }[policy]
    return InstanceNUMACell(
        frozenset(cpus) - dedicated,
        dedicated,
        memory,
        size,
        policy,
        None if policy is CPUPolicy.SHARED else threads,
    )


def guest_networks(dice: random.Random) -> InstanceNUMANetworks:
    return InstanceNUMANetworks(
        frozenset(name for name in (*PHYSNETS, "other") if dice.random() < 0.3),
        dice.random() < 0.2,
    )


def device_pools(dice: random.Random, host: NUMATopology) -> tuple[DevicePool, ...]:
    """Return pools, each named by its kind, product and number."""
    nodes = [*(cell.id for cell in host.cells), None, 9]
    kinds = (*[VF] * 6, PF, VDPA)
    return tuple(
        DevicePool(
            f"{dice.choice(kinds)}:{dice.choice(PRODUCTS)}:{number}",
            dice.choice(nodes),
            dice.choice((1, 1, 2, 3, 4)),
        )
        for number in range(dice.randint(1, 9))
    )


def device_requests(
    dice: random.Random, pools: Sequence[DevicePool]
) -> tuple[DeviceRequest, ...]:
    return tuple(
        device_request(
            ":".join(
                (
                    dice.choice((*[ANY] * 6, PF, VDPA)),
                    dice.choice(PRODUCTS),
                    str(number),
                )
            ),
            dice.choice((1, 1, 1, 2, 3)),
            dice.choice(tuple(NUMAPolicy)),
            pools,
        )
        for number in range(dice.choice((1, 1, 2, 3, 4)))
    )


def device_request(
    name: str, count: int, policy: NUMAPolicy, pools: Sequence[DevicePool]
) -> DeviceRequest:
    """Return a request for the kind and product in its name, from these pools."""
    kind, product, _number = name.split(":")
    of_product = [pool.name for pool in pools if pool.name.split(":")[1] == product]
    served = frozenset(
        each
        for each in of_product
        if each.startswith(VF + ":" if kind == ANY else kind + ":")
    )
    others = frozenset(of_product) - served if kind == ANY else frozenset[str]()
    return MatchingRequest(name, count, served, policy, others)
