# SPDX-License-Identifier: Apache-2.0

"""A host of four NUMA cells, with one GPU in each of three cells and one in none."""

from __future__ import annotations

from os_acc.objects.numa import NUMAPolicy
from os_acc.testing import HostSpec, NodeSpec, TestHost, hosts, instance, request

#: Two sockets of two cells each; cards in cells 0, 1 and 2, and one in no cell.
LOCAL, SAME_SOCKET, REMOTE, UNKNOWN = (
    "0000:17:00.0",
    "0000:27:00.0",
    "0000:37:00.0",
    "0000:47:00.0",
)
NODES = {LOCAL: 0, SAME_SOCKET: 1, REMOTE: 2, UNKNOWN: -1}
WORDS = {
    LOCAL: "local",
    SAME_SOCKET: "same socket",
    REMOTE: "remote",
    UNKNOWN: "unknown",
}
ALLOWED = {
    NUMAPolicy.REQUIRED: {LOCAL},
    NUMAPolicy.SOCKET: {LOCAL, SAME_SOCKET},
    NUMAPolicy.LEGACY: {LOCAL, UNKNOWN},
    NUMAPolicy.PREFERRED: set(NODES),
}

CELLS = tuple(
    NodeSpec(f"{4 * cell}-{4 * cell + 3}", socket=cell // 2) for cell in range(4)
)
SPEC = HostSpec(
    tuple(
        part
        for card, (address, node) in enumerate(NODES.items())
        for part in hosts.gpu(address[:7], node, card=card)
    ),
    nodes=CELLS,
)


def plug(
    bench: TestHost, *addresses: str, cells: object = (0,), **specs: str
) -> list[dict[str, object]]:
    """Plug one accelerator per address, for a guest in these cells."""
    selected, flavor = request(*(bench.provider(each) for each in addresses))
    mine = instance(1) | {"numa_cells": cells}
    return bench.manager.plug(mine, selected, flavor | specs)
