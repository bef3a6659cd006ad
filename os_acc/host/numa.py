# SPDX-License-Identifier: Apache-2.0

"""The host's NUMA topology, from ``/sys/devices/system/{node,cpu}``.

For a kernel without NUMA: one cell, from ``/proc/meminfo`` (proc_meminfo(5)).

Documentation/ABI/stable/sysfs-devices-node,
Documentation/ABI/stable/sysfs-devices-system-cpu,
Documentation/admin-guide/cputopology.rst and
Documentation/admin-guide/mm/hugetlbpage.rst. Ambiguities are resolved as in
libvirt, the source of Nova's data on this host.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator

from os_acc.exception import HostStepFailed
from os_acc.host.attributes import names, number, number_list, read_lines, read_text
from os_acc.objects.numa import MemoryPages, NUMACell, NUMATopology

NODES = "sys/devices/system/node"
CPUS = "sys/devices/system/cpu"
MEMINFO = "proc/meminfo"

_MEM_TOTAL = re.compile(r"(?:Node [0-9]+ )?MemTotal: +([0-9]{1,19}) kB", re.ASCII)
_HUGE_PAGES = re.compile(r"hugepages-([0-9]{1,12})kB", re.ASCII)
_KIB_IN_MIB = 1024
_SMALL_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024


def read_topology(root: str) -> NUMATopology:
    """Return the current cells of the host.

    A kernel without NUMA has a single cell 0, as in libvirt
    (virCapabilitiesHostNUMAInitFake()): all online CPUs, all memory, and no
    pages or distances. Without that data, for example without
    ``/proc``, there is no cell.

    All online CPUs of a cell are listed both as shared and as dedicated: Nova's
    options decide their use. Huge pages that are not free count as ``used``,
    regardless of their owner; the usage of small pages is unknown, because the
    kernel uses them for many purposes. Usage by guests is not distinguished.

    Objects removed during the read are omitted: a CPU, a node, or the distances
    of all cells if the set of nodes changes.

    :raises HostStepFailed: an existing object cannot be read or parsed.
    """
    numbers = sorted(_list(os.path.join(root, NODES, "online")))
    if not numbers:
        return NUMATopology(tuple(_without_numa(root)))
    nodes = [node for n in numbers if (node := _read_node(root, n)) is not None]
    # Read last: a CPU that went offline in the meantime has no topology.
    online = _list(os.path.join(root, CPUS, "online"))
    return NUMATopology(tuple(node.cell(numbers, online) for node in nodes))


@dataclasses.dataclass(frozen=True, slots=True)
class _Core:
    """The hardware threads of a core, and its package."""

    threads: frozenset[int]
    package: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    """The data of one node, before offline CPUs are removed."""

    number: int
    memory_kb: int
    cores: tuple[_Core, ...]
    distances: tuple[int, ...]
    huge_pages: tuple[MemoryPages, ...]

    def cell(self, nodes: list[int], online: frozenset[int]) -> NUMACell:
        cores = [core for core in self.cores if core.threads & online]
        siblings = tuple(core.threads & online for core in cores)
        cpus = frozenset[int]().union(*siblings)
        packages = {core.package for core in cores}
        is_complete = len(self.distances) == len(nodes)
        return NUMACell(
            id=self.number,
            cpuset=cpus,
            pcpuset=cpus,
            memory=self.memory_kb // _KIB_IN_MIB,
            siblings=siblings,
            mempages=self._pages(),
            socket=packages.pop() if len(packages) == 1 else None,
            distances=tuple(zip(nodes, self.distances, strict=True))
            if is_complete
            else (),
        )

    def _pages(self) -> tuple[MemoryPages, ...]:
        """Count memory without huge pages as small (virNumaGetPages() in libvirt)."""
        huge_kb = sum(pages.size_kb * pages.total for pages in self.huge_pages)
        small = max(self.memory_kb - huge_kb, 0) // _SMALL_PAGE_KB
        return (MemoryPages(_SMALL_PAGE_KB, small), *self.huge_pages)


def _without_numa(root: str) -> Iterator[NUMACell]:
    path = os.path.join(root, MEMINFO)
    meminfo = read_lines(path)
    if not meminfo:
        return
    cores = tuple(_cores(root, _list(os.path.join(root, CPUS, "online"))))
    node = _Node(0, _memory_kb(path, meminfo), cores, (), ())
    # As above: a CPU that went offline in the meantime has no topology.
    cell = node.cell([0], _list(os.path.join(root, CPUS, "online")))
    yield dataclasses.replace(cell, mempages=())


def _read_node(root: str, node: int) -> _Node | None:
    path = os.path.join(root, NODES, f"node{node}")
    cores = tuple(_cores(root, _list(f"{path}/cpulist")))
    huge_pages = _huge_pages(f"{path}/hugepages")
    distances = _distances(f"{path}/distance")
    # Every node has one. It is read last: if it is missing, the node is gone.
    meminfo = read_lines(f"{path}/meminfo")
    if not meminfo:
        return None
    memory_kb = _memory_kb(f"{path}/meminfo", meminfo)
    return _Node(node, memory_kb, cores, distances, huge_pages)


def _cores(root: str, cpus: frozenset[int]) -> Iterator[_Core]:
    left = set(cpus)
    for cpu in sorted(cpus):
        if cpu not in left:
            continue
        path = os.path.join(root, CPUS, f"cpu{cpu}", "topology")
        # In this order, a thread that goes offline in between forms its own core
        # and does not pass its package to another.
        package = _package(f"{path}/physical_package_id")
        siblings = _list(f"{path}/thread_siblings_list")
        threads = (siblings & cpus) | {cpu}
        left -= threads
        yield _Core(threads, package)


def _package(path: str) -> int:
    """Return the package; 0 for none (-1), as virHostCPUGetSocket() in libvirt."""
    text = read_text(path)
    return 0 if text is None else max(number(text, path), 0)


def _distances(path: str) -> tuple[int, ...]:
    """Return the distance to each online node, in order (drivers/base/node.c)."""
    text = " ".join(read_lines(path))
    return tuple(_natural(part, path) for part in text.split())


def _huge_pages(directory: str) -> tuple[MemoryPages, ...]:
    """Return the huge pages of a node; a node without memory has none."""
    found = []
    for name in names(directory):
        match = _HUGE_PAGES.fullmatch(name)
        if match is None:
            continue
        total = _count(f"{directory}/{name}/nr_hugepages")
        free = _count(f"{directory}/{name}/free_hugepages")
        # The two values are not read atomically.
        found.append(MemoryPages(int(match[1]), total, max(total - free, 0)))
    return tuple(sorted(found, key=lambda pages: pages.size_kb))


def _memory_kb(path: str, lines: list[str]) -> int:
    for line in lines:
        match = _MEM_TOTAL.fullmatch(line)
        if match is not None:
            return int(match[1])
    raise HostStepFailed(f"{path} does not say how much memory there is")


def _count(path: str) -> int:
    text = read_text(path)
    return 0 if text is None else _natural(text, path)


def _natural(text: str, path: str) -> int:
    value = number(text, path)
    if value < 0:
        raise HostStepFailed(f"{path} contains {text!r}, expected at least 0")
    return value


def _list(path: str) -> frozenset[int]:
    """Return a list of CPUs or nodes of any length; empty if it is missing."""
    # Longer than a page if the numbers of many CPUs alternate between nodes.
    lines = read_lines(path)
    return number_list(lines[0].strip() if lines else "", path)
