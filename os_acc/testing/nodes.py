# SPDX-License-Identifier: Apache-2.0

"""NUMA nodes and CPUs, as drivers/base/node.c and topology.c show them."""

from __future__ import annotations

from collections.abc import Iterable

from os_acc.host.attributes import number_list
from os_acc.testing.specs import NodeSpec
from os_acc.testing.tree import Transaction

NODES = "sys/devices/system/node"
CPUS = "sys/devices/system/cpu"
#: The node of a kernel without NUMA, which shows none.
_WHOLE = NodeSpec("0")


def boot(tree: Transaction, nodes: tuple[NodeSpec, ...]) -> None:
    """Add all nodes and CPUs; without a node, as a kernel without NUMA."""
    for number, node in enumerate(nodes):
        _show_node(tree, number, node, len(nodes))
    if nodes:
        with_cpu = (n for n, node in enumerate(nodes) if node.cpus)
        with_memory = tuple(n for n, node in enumerate(nodes) if node.memory)
        _put_list(tree, f"{NODES}/online", range(len(nodes)))
        _put_list(tree, f"{NODES}/possible", range(len(nodes)))
        _put_list(tree, f"{NODES}/has_cpu", with_cpu)
        _put_list(tree, f"{NODES}/has_memory", with_memory)
        _put_list(tree, f"{NODES}/has_normal_memory", with_memory)
    else:
        _show_cores(tree, _WHOLE, number_list(_WHOLE.cpus, "cpus"))
    some = nodes or (_WHOLE,)
    every = {cpu for node in some for cpu in number_list(node.cpus, "cpus")} or {0}
    _show_memory(tree, sum(node.memory for node in some))
    for name in ("online", "present", "possible"):
        _put_list(tree, f"{CPUS}/{name}", every)
    _put_list(tree, f"{CPUS}/offline", ())


def are_known(tree: Transaction) -> bool:
    """Return whether the kernel was built with NUMA."""
    return tree.exists(NODES)


def online(tree: Transaction) -> frozenset[int]:
    """Return the nodes that are online."""
    return _seen(tree, f"{NODES}/online")


def reserve_huge_pages(
    tree: Transaction, node: int, size_kb: int, total: int, used: int = 0
) -> None:
    """Set the number of huge pages of a node; a process has some of them."""
    path = f"{NODES}/node{node}/hugepages/hugepages-{size_kb}kB"
    tree.put(f"{path}/nr_hugepages", f"{total}\n", 0o644)
    tree.put(f"{path}/free_hugepages", f"{total - used}\n")
    tree.put(f"{path}/surplus_hugepages", "0\n")


def switch(
    tree: Transaction, nodes: tuple[NodeSpec, ...], cpu: int, *, on: bool
) -> None:
    """Take a CPU offline, or bring it back; Documentation/core-api/cpu_hotplug.rst."""
    every, online = _seen(tree, f"{CPUS}/present"), _seen(tree, f"{CPUS}/online")
    online = online | {cpu} if on else online - {cpu}
    _put_list(tree, f"{CPUS}/online", online)
    _put_list(tree, f"{CPUS}/offline", every - online)
    tree.drop(f"{CPUS}/cpu{cpu}/topology")
    for number, node in enumerate(nodes):
        if cpu in number_list(node.cpus, "cpus"):
            _show_cpus(tree, number, node, online)


def _show_node(tree: Transaction, number: int, node: NodeSpec, count: int) -> None:
    path = f"{NODES}/node{number}"
    _show_cpus(tree, number, node, number_list(node.cpus, "cpus"))
    distances = node.distances or tuple(10 if n == number else 21 for n in range(count))
    tree.put(f"{path}/distance", " ".join(map(str, distances)) + "\n")
    kib = node.memory * 1024
    lines = (("MemTotal", kib), ("MemFree", kib // 2), ("MemUsed", kib - kib // 2))
    text = "".join(f"Node {number} {name}: {value:14d} kB\n" for name, value in lines)
    tree.put(f"{path}/meminfo", text)
    for size_kb, total in node.huge_pages if node.memory else ():
        reserve_huge_pages(tree, number, size_kb, total)


def _show_memory(tree: Transaction, mib: int) -> None:
    """Write ``/proc/meminfo`` of the host (fs/proc/meminfo.c)."""
    kib = mib * 1024
    lines = (("MemTotal:", kib), ("MemFree:", kib // 2), ("MemAvailable:", kib // 2))
    text = "".join(f"{name:<15} {value:8d} kB\n" for name, value in lines)
    tree.put("proc/meminfo", text)


def _show_cpus(
    tree: Transaction, number: int, node: NodeSpec, online: frozenset[int]
) -> None:
    every = number_list(node.cpus, "cpus")
    _put_list(tree, f"{NODES}/node{number}/cpulist", online & every)
    _show_cores(tree, node, online)


def _show_cores(tree: Transaction, node: NodeSpec, online: frozenset[int]) -> None:
    every = sorted(number_list(node.cpus, "cpus"))
    cores = (
        every[first : first + node.threads]
        for first in range(0, len(every), node.threads)
    )
    for core in cores:
        for cpu in online.intersection(core):
            path = f"{CPUS}/cpu{cpu}/topology"
            tree.put(f"{path}/physical_package_id", f"{node.socket}\n")
            siblings = online.intersection(core)
            _put_list(tree, f"{path}/thread_siblings_list", siblings)


def _seen(tree: Transaction, path: str) -> frozenset[int]:
    return number_list(tree.read(path).strip(), path)


def _put_list(tree: Transaction, path: str, numbers: Iterable[int]) -> None:
    tree.put(path, f"{_as_list(sorted(numbers))}\n")


def _as_list(numbers: list[int]) -> str:
    """Format numbers as ``%*pbl`` of the kernel's printf."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
