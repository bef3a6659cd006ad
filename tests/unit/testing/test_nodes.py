# SPDX-License-Identifier: Apache-2.0

"""The library reads the fake kernel's NUMA nodes as specified."""

import errno
import os
from pathlib import Path

import pytest

from os_acc.host.numa import read_topology
from os_acc.objects.numa import MemoryPages
from os_acc.testing import FakeKernel, HostSpec, NodeSpec, hosts, nodes
from os_acc.testing.tree import Tree
from tests.unit.testing.conftest import Attributes

SPECS = (
    NodeSpec("0-1,4-5", 4096, threads=2, distances=(10, 21, 14)),
    NodeSpec("2-3,6-7", 8192, 1, distances=(21, 10, 24), huge_pages=((2048, 512),)),
    # A memory expander without CPUs.
    NodeSpec(memory=1024, distances=(14, 24, 10)),
)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return FakeKernel.build(tmp_path, HostSpec(nodes=SPECS)).root


def test_nodes_are_as_they_were_specified(root):
    near, far, expander = read_topology(root).cells
    assert near.cpuset == {0, 1, 4, 5}
    assert near.siblings == ({0, 1}, {4, 5})
    assert (near.memory, near.socket) == (4096, 0)
    assert (far.memory, far.socket) == (8192, 1)
    assert far.distances == ((0, 21), (1, 10), (2, 24))
    assert far.mempages[1] == MemoryPages(2048, 512)
    assert (expander.cpuset, expander.memory, expander.socket) == (set(), 1024, None)


def test_huge_pages_may_be_reserved_and_used(root):
    with Tree(root).transaction() as tree:
        nodes.reserve_huge_pages(tree, 0, 2048, 100, used=7)
    small, huge, *_ = read_topology(root).cells[0].mempages
    assert huge == MemoryPages(2048, 100, used=7)
    assert small.size_kb * small.total == (4096 - 200) * 1024


def test_a_cpu_goes_and_comes_back(root):
    before = read_topology(root)
    with Tree(root).transaction() as tree:
        nodes.switch(tree, SPECS, 4, on=False)
    near, *others = read_topology(root).cells
    assert near.cpuset == {0, 1, 5}
    assert near.siblings == ({0, 1}, {5})
    assert tuple(others) == before.cells[1:]
    with Tree(root).transaction() as tree:
        nodes.switch(tree, SPECS, 4, on=True)
    assert read_topology(root) == before


def test_a_kernel_without_numa_has_a_cpu_and_memory(tmp_path):
    kernel = FakeKernel.build(tmp_path, HostSpec(nodes=()))
    (cell,) = read_topology(kernel.root).cells
    assert (cell.id, cell.cpuset, cell.siblings) == (0, {0}, ({0},))
    assert (cell.memory, cell.socket, cell.distances) == (65536, 0, ())
    assert not os.path.exists(kernel.path("sys/devices/system/node"))


def test_nodes_are_there_again_after_a_reboot(tmp_path):
    kernel = FakeKernel.build(tmp_path, HostSpec(nodes=SPECS))
    before = read_topology(kernel.root)
    kernel.reboot()
    assert read_topology(kernel.root) == before


GPU = "0000:17:00.0"


def gpu_on(tmp_path: Path, **host: object) -> Attributes:
    spec = HostSpec(tuple(hosts.gpu("0000:17", 1)), **host)
    return Attributes(FakeKernel.build(tmp_path, spec))


@pytest.mark.parametrize("node", ["0", "-1"])
def test_the_node_of_a_function_may_be_written(tmp_path, node):
    sysfs = gpu_on(tmp_path, nodes=SPECS)
    assert sysfs.get(GPU, "numa_node") == "1\n"
    sysfs.set(GPU, "numa_node", f"{node}\n")
    assert sysfs.get(GPU, "numa_node") == f"{node}\n"


@pytest.mark.parametrize("node", ["3", "-2", "none"])
def test_a_node_that_is_not_online_is_refused(tmp_path, node):
    sysfs = gpu_on(tmp_path, nodes=SPECS)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        sysfs.set(GPU, "numa_node", node)
    assert sysfs.get(GPU, "numa_node") == "1\n"


def test_a_kernel_without_numa_tells_no_node_of_a_function(tmp_path):
    sysfs = gpu_on(tmp_path, nodes=())
    with pytest.raises(FileNotFoundError):
        sysfs.get(GPU, "numa_node")
