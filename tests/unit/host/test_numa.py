# SPDX-License-Identifier: Apache-2.0

import itertools
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc.exception import StepReason
from os_acc.host.attributes import number_list
from os_acc.host.numa import read_topology
from os_acc.objects.numa import MemoryPages, NUMATopology
from tests.expected_errors import raises
from tests.unit.host.tree import Sysfs

NODES = "sys/devices/system/node"
CPUS = "sys/devices/system/cpu"
SMALL_KB = os.sysconf("SC_PAGE_SIZE") // 1024
GIB_KB = 1 << 20


def put_node(
    sysfs: Sysfs,
    number: int,
    cpulist: str = "",
    *,
    distance: str | None = None,
    memory_kb: int = GIB_KB,
) -> str:
    path = f"{NODES}/node{number}"
    sysfs.put(f"{path}/cpulist", cpulist)
    if distance is not None:
        sysfs.put(f"{path}/distance", distance)
    meminfo = (
        f"Node {number} MemTotal: {memory_kb:14d} kB",
        f"Node {number} MemFree:  {memory_kb // 2:14d} kB",
        f"Node {number} HugePages_Total:     0",
    )
    sysfs.put(f"{path}/meminfo", "\n".join(meminfo))
    return path


def put_cpu(sysfs: Sysfs, cpu: int, package: int = 0, siblings: str = "") -> None:
    path = f"{CPUS}/cpu{cpu}/topology"
    sysfs.put(f"{path}/physical_package_id", str(package))
    sysfs.put(f"{path}/thread_siblings_list", siblings or str(cpu))


def put_pages(sysfs: Sysfs, node: int, size_kb: int, total: int, free: int) -> None:
    path = f"{NODES}/node{node}/hugepages/hugepages-{size_kb}kB"
    sysfs.put(f"{path}/nr_hugepages", str(total))
    sysfs.put(f"{path}/free_hugepages", str(free))


def put_online(sysfs: Sysfs, nodes: str, cpus: str) -> None:
    sysfs.put(f"{NODES}/online", nodes)
    sysfs.put(f"{CPUS}/online", cpus)


@pytest.fixture
def two_sockets(sysfs: Sysfs) -> Sysfs:
    """Add two cores of two threads on each of two sockets."""
    put_online(sysfs, "0-1", "0-7")
    put_node(sysfs, 0, "0-1,4-5", distance="10 21")
    put_node(sysfs, 1, "2-3,6-7", distance="21 10", memory_kb=GIB_KB + 2047)
    for cpu in range(8):
        first = cpu % 4
        put_cpu(sysfs, cpu, first // 2, f"{first},{first + 4}")
    return sysfs


def test_cells_have_cpus_cores_memory_socket_and_distances(two_sockets):
    near, far = read_topology(two_sockets.root).cells
    assert near.id == 0
    assert near.cpuset == near.pcpuset == {0, 1, 4, 5}
    assert near.siblings == ({0, 4}, {1, 5})
    assert near.memory == 1024
    assert near.socket == 0
    assert near.distances == ((0, 10), (1, 21))
    assert far.id == 1
    assert far.siblings == ({2, 6}, {3, 7})
    assert far.memory == 1025
    assert far.socket == 1


@pytest.fixture
def without_numa(sysfs: Sysfs) -> Sysfs:
    """Add a core of two threads and one of one; one more CPU is offline."""
    sysfs.put(f"{CPUS}/online", "0-2")
    for cpu, siblings in enumerate(("0-1", "0-1", "2")):
        put_cpu(sysfs, cpu, siblings=siblings)
    lines = ("MemTotal:       65750840 kB", "MemFree:        12345678 kB")
    sysfs.put("proc/meminfo", "\n".join(lines))
    return sysfs


def test_a_kernel_without_numa_has_the_cell_that_libvirt_makes_up(without_numa):
    (cell,) = read_topology(without_numa.root).cells
    assert cell.id == 0
    assert cell.cpuset == cell.pcpuset == {0, 1, 2}
    assert cell.siblings == ({0, 1}, {2})
    assert cell.memory == 65750840 // 1024
    assert cell.socket == 0
    assert (cell.mempages, cell.distances) == ((), ())


def test_without_memory_to_tell_of_there_is_no_cell(without_numa):
    (without_numa.path / "proc/meminfo").unlink()
    assert read_topology(without_numa.root) == NUMATopology()


def test_a_node_that_is_only_possible_is_no_cell(two_sockets):
    two_sockets.put(f"{NODES}/online", "1")
    put_node(two_sockets, 1, "2-3,6-7", distance="10")
    (cell,) = read_topology(two_sockets.root).cells
    assert (cell.id, cell.distances) == (1, ((1, 10),))


@pytest.mark.parametrize("package", [None, -1])
def test_where_no_packages_are_known_all_is_on_one(two_sockets, package):
    for cpu in range(8):
        (two_sockets.path / f"{CPUS}/cpu{cpu}/topology/physical_package_id").unlink()
        if package is not None:
            put_cpu(two_sockets, cpu, package)
    assert {cell.socket for cell in read_topology(two_sockets.root).cells} == {0}


def test_a_cpu_whose_siblings_are_not_told_is_a_core(sysfs):
    put_online(sysfs, "0", "0-1")
    put_node(sysfs, 0, "0-1", distance="10")
    assert read_topology(sysfs.root).cells[0].siblings == ({0}, {1})


def test_a_cpu_that_goes_offline_meanwhile_is_in_no_cell(two_sockets):
    two_sockets.put(f"{CPUS}/online", "0-1,3-7")
    for name in ("physical_package_id", "thread_siblings_list"):
        (two_sockets.path / f"{CPUS}/cpu2/topology/{name}").unlink()
    cell = read_topology(two_sockets.root).cells[1]
    assert cell.cpuset == {3, 6, 7}
    assert set(cell.siblings) == {frozenset({6}), frozenset({3, 7})}
    assert cell.socket == 1


def test_small_pages_are_what_huge_ones_leave(two_sockets):
    put_pages(two_sockets, 0, 1048576, 0, 0)
    put_pages(two_sockets, 0, 2048, 100, 60)
    assert read_topology(two_sockets.root).cells[0].mempages == (
        MemoryPages(SMALL_KB, (GIB_KB - 100 * 2048) // SMALL_KB),
        MemoryPages(2048, 100, used=40),
        MemoryPages(1048576, 0),
    )


def test_numbers_of_different_moments_make_no_negative_ones(two_sockets):
    put_pages(two_sockets, 0, 2048, 1000, 1001)
    small, huge = read_topology(two_sockets.root).cells[0].mempages
    assert small.total == 0
    assert huge == MemoryPages(2048, 1000, used=0)


def test_pages_of_a_size_that_goes_meanwhile_are_none(two_sockets):
    (two_sockets.path / f"{NODES}/node0/hugepages/hugepages-64kB").mkdir(parents=True)
    two_sockets.put(f"{NODES}/node0/hugepages/README", "no pages")
    _small, huge = read_topology(two_sockets.root).cells[0].mempages
    assert huge == MemoryPages(64, 0)


def test_a_node_that_goes_meanwhile_is_left_out(two_sockets):
    (two_sockets.path / f"{NODES}/node1/meminfo").unlink()
    (cell,) = read_topology(two_sockets.root).cells
    assert cell.id == 0


@pytest.mark.parametrize("distance", ["10", "10 21 21", "", None])
def test_distances_that_are_not_those_of_all_cells_are_left_out(two_sockets, distance):
    (two_sockets.path / f"{NODES}/node0/distance").unlink()
    if distance is not None:
        two_sockets.put(f"{NODES}/node0/distance", distance)
    topology = read_topology(two_sockets.root)
    assert topology.cells[0].distances == ()
    assert topology.distance(0, 1) == 20
    assert topology.distance(1, 0) == 21


def test_a_list_of_cpus_may_be_longer_than_a_page(sysfs):
    cpulist = ",".join(str(cpu) for cpu in range(0, 4096, 2))
    assert len(cpulist) > 4096
    put_online(sysfs, "0", "0-4095")
    put_node(sysfs, 0, cpulist, distance="10")
    assert len(read_topology(sysfs.root).cells[0].cpuset) == 2048


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{NODES}/online", "zero"),
        (f"{NODES}/online", "0-"),
        (f"{CPUS}/online", "3-1"),
        (f"{NODES}/node0/cpulist", "0-1,,4"),
        (f"{NODES}/node0/cpulist", "0-9999999999"),
        (f"{NODES}/node0/distance", "10 far"),
        (f"{NODES}/node0/distance", "10 -1"),
        (f"{NODES}/node0/meminfo", "Node 0 MemFree: 1 kB"),
        (f"{NODES}/node0/meminfo", "Node 0 MemTotal: much kB"),
        (f"{NODES}/node0/hugepages/hugepages-2048kB/nr_hugepages", "-4"),
        (f"{NODES}/node0/hugepages/hugepages-2048kB/free_hugepages", "x"),
        (f"{CPUS}/cpu0/topology/physical_package_id", "one"),
        (f"{CPUS}/cpu0/topology/thread_siblings_list", "0;4"),
    ],
)
def test_damage_is_an_error_that_names_its_place(two_sockets, path, text):
    put_pages(two_sockets, 0, 2048, 0, 0)
    two_sockets.put(path, text)
    with raises(StepReason.REFUSED, match=path):
        read_topology(two_sockets.root)


def spans(numbers: set[int]) -> str:
    """Return a set of numbers in the format of the kernel's lists."""
    found = []
    ordered = enumerate(sorted(numbers))
    for _, group in itertools.groupby(ordered, key=lambda each: each[1] - each[0]):
        run = [number for _, number in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(found)


@settings(deadline=None)
@given(st.sets(st.integers(0, 300) | st.integers(0, 99_999), max_size=60))
def test_every_list_that_the_kernel_prints_is_read_back(numbers):
    assert number_list(spans(numbers), "it") == numbers


RANGES = r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*"


@settings(deadline=None)
@given(st.text() | st.text(st.sampled_from("0123456789-, ")))
def test_whatever_else_is_no_list_is_a_typed_error(text):
    # The kernel never prints an empty range, such as 3-1.
    upward = re.fullmatch(RANGES, text) and all(
        int(part.split("-")[0]) <= int(part.split("-")[-1]) for part in text.split(",")
    )
    if not text or upward:
        assert max(number_list(text, "it"), default=0) <= 99_999
    else:
        with raises(StepReason.REFUSED, match="it contains"):
            number_list(text, "it")


@st.composite
def trees(draw: st.DrawFn) -> dict[int, tuple[dict[int, int], int, list[int]]]:
    """Draw nodes: the package of each CPU, the memory in KiB, and the distances."""
    numbers = draw(st.lists(st.integers(0, 15), min_size=1, max_size=5, unique=True))
    cpus = draw(st.lists(st.integers(0, 63), max_size=24, unique=True))
    nodes: dict[int, tuple[dict[int, int], int, list[int]]] = {}
    for number in sorted(numbers):
        own = {cpu: draw(st.integers(0, 2)) for cpu in cpus[len(nodes) :: len(numbers)]}
        distances = [draw(st.integers(10, 255)) for _ in numbers]
        nodes[number] = (own, draw(st.integers(0, 1 << 40)), distances)
    return nodes


@settings(deadline=None)
@given(trees(), st.sets(st.integers(0, 63)))
def test_every_tree_is_read_as_it_is(tmp_path_factory, nodes, offline):
    sysfs = Sysfs(tmp_path_factory.mktemp("tree"))
    every = {cpu for packages, _, _ in nodes.values() for cpu in packages}
    put_online(sysfs, spans(set(nodes)), spans(every - offline))
    for number, (packages, memory_kb, distances) in nodes.items():
        path = put_node(sysfs, number, spans(set(packages)), memory_kb=memory_kb)
        sysfs.put(f"{path}/distance", " ".join(map(str, distances)))
        for cpu, package in packages.items():
            put_cpu(sysfs, cpu, package)
    topology = read_topology(sysfs.root)
    assert [cell.id for cell in topology.cells] == sorted(nodes)
    for cell in topology.cells:
        packages, memory_kb, distances = nodes[cell.id]
        online = set(packages) - offline
        assert cell.cpuset == cell.pcpuset == online
        assert set(cell.siblings) == {frozenset({cpu}) for cpu in online}
        sockets = {packages[cpu] for cpu in online}
        assert cell.socket == (min(sockets) if len(sockets) == 1 else None)
        assert cell.memory == memory_kb // 1024
        assert cell.distances == tuple(zip(sorted(nodes), distances, strict=True))
        assert sum(page.size_kb * page.total for page in cell.mempages) <= memory_kb


def test_this_host_can_be_read():
    topology = read_topology("/")
    if not Path("/", NODES).exists():
        assert topology == NUMATopology()
        return
    assert set().union(*(cell.cpuset for cell in topology.cells))
    assert sum(cell.memory for cell in topology.cells) > 0
