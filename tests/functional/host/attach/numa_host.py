# SPDX-License-Identifier: Apache-2.0

"""Hosts of four NUMA cells.

One has a GPU in each of three cells and one in none; the other has one card whose VFs
are in three cells and in none, as far as the kernel knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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

CARD = "0000:3b:00.0"
FAR, NEAR, NOWHERE, BESIDE = (f"0000:3b:02.{number}" for number in range(4))
VF_NODES = {FAR: 2, NEAR: 0, NOWHERE: -1, BESIDE: 1}
VF_SPEC = HostSpec(
    (hosts.nic("0000:3b", 0, name="ens1f0", vfs=4, boot_vfs=4),), nodes=CELLS
)


def set_nodes(host: TestHost, nodes: Mapping[str, int]) -> None:
    """Correct the nodes of functions as an administrator can, until the next boot."""
    for address, node in nodes.items():
        path = host.kernel.path("sys/bus/pci/devices", address, "numa_node")
        host.kernel.write(path, str(node))


def plug(
    bench: TestHost, *addresses: str, cells: object = (0,), **specs: str
) -> list[dict[str, object]]:
    """Plug one accelerator per address, for a guest in these cells."""
    selected, flavor = request(*(bench.provider(each) for each in addresses))
    mine = instance(1) | {"numa_cells": cells}
    return bench.manager.plug(mine, selected, flavor | specs)


def again(host: TestHost, cells: object, **info: object) -> list[dict[str, object]]:
    """Plug the recorded accelerators of the guest in these cells."""
    return host.manager.plug(instance(1) | {"numa_cells": cells} | info, None, None)


def with_vfs(make_bench: Callable[..., TestHost], **options: Any) -> TestHost:
    """Build the host with VFs in several cells."""
    host = make_bench(VF_SPEC, **options)
    set_nodes(host, VF_NODES)
    return host


def policy_from(place: str, policy: str) -> tuple[dict[str, object], dict[str, str]]:
    """Return what a guest and its flavor have where its policy is set at a place."""
    if place == "flavor":
        return {}, {"hw:pci_numa_affinity_policy": policy}
    if place == "image":
        return {"image_properties": {"hw_pci_numa_affinity_policy": policy}}, {}
    return {"port_numa_policies": {"1": policy}}, {}
