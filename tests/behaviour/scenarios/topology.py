# SPDX-License-Identifier: Apache-2.0

"""The NUMA cells of a host, and the cells of its devices."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from os_acc.host import numa, pci
from os_acc.objects.numa import LOCAL_DISTANCE, REMOTE_DISTANCE, NUMACell
from os_acc.objects.pci import PciAddress

from ..host import HostUnderTest
from .common import scenario

#: KiB; every x86 supports this size.
HUGE = 2048


@scenario
def each_cell_has_its_cpus_and_its_memory(host: HostUnderTest) -> None:
    host.start()
    near, far = numa.read_topology(host.root).cells
    assert (near.id, near.cpuset, near.siblings) == (0, {0}, ({0},))
    assert (far.id, far.cpuset, far.siblings) == (1, {1}, ({1},))
    for cell in (near, far):
        assert cell.pcpuset == cell.cpuset
        assert cell.socket == _package_of_cpu(host, cell.id)
        # A GiB, less the memory that firmware and kernel have reserved.
        assert 512 < cell.memory < 1024
        assert _paged(cell) == cell.memory


@scenario
def the_firmware_says_nothing_of_distances(host: HostUnderTest) -> None:
    host.start()
    topology = numa.read_topology(host.root)
    assert topology.cells[0].distances == ((0, LOCAL_DISTANCE), (1, REMOTE_DISTANCE))
    assert topology.cells[1].distances == ((0, REMOTE_DISTANCE), (1, LOCAL_DISTANCE))


@scenario
def a_device_is_in_a_cell_or_in_none(host: HostUnderTest) -> None:
    host.start()
    cells = {cell.id for cell in numa.read_topology(host.root).cells}
    assert _node(host, host.places.pf) in cells
    assert _node(host, host.places.single) == 1
    assert _node(host, host.places.no_reset) is None


@scenario
def small_pages_are_what_huge_ones_leave(host: HostUnderTest) -> None:
    host.start()
    before = _cells(host)
    host.reserve_huge_pages(1, HUGE, 8)
    try:
        near, far = _cells(host)
    finally:
        host.reserve_huge_pages(1, HUGE, 0)
    assert near.mempages == before[0].mempages
    small, huge, *_ = far.mempages
    assert (huge.size_kb, huge.total, huge.used) == (HUGE, 8, 0)
    fewer = before[1].mempages[0].total - small.total
    assert fewer * small.size_kb == 8 * HUGE
    assert _cells(host) == before


@scenario
def a_cpu_that_is_offline_is_in_no_cell(host: HostUnderTest) -> None:
    host.start()
    before = _cells(host)
    with _offline(host, 1):
        near, far = _cells(host)
    assert near == before[0]
    assert (far.id, far.cpuset, far.pcpuset, far.siblings) == (1, set(), set(), ())
    assert far.socket is None
    assert far.memory == before[1].memory
    assert _cells(host) == before


@contextlib.contextmanager
def _offline(host: HostUnderTest, cpu: int) -> Iterator[None]:
    host.switch_cpu(cpu, False)
    try:
        yield
    finally:
        # All following scenarios need it.
        host.switch_cpu(cpu, True)


def _cells(host: HostUnderTest) -> tuple[NUMACell, ...]:
    return numa.read_topology(host.root).cells


def _node(host: HostUnderTest, address: str) -> int | None:
    function = pci.read_function(host.root, PciAddress.parse(address))
    assert function is not None
    return function.numa_node


def _package_of_cpu(host: HostUnderTest, cpu: int) -> int:
    topology = os.path.join(host.root, f"sys/devices/system/cpu/cpu{cpu}/topology")
    with open(os.path.join(topology, "physical_package_id"), encoding="ascii") as file:
        return int(file.read())


def _paged(cell: NUMACell) -> int:
    """Return the MiB in pages of any size."""
    return sum(pages.size_kb * pages.total for pages in cell.mempages) // 1024
