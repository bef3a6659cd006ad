# SPDX-License-Identifier: Apache-2.0

"""On a host without NUMA, guests with NUMA cells are placed on libvirt's cell 0."""

from collections.abc import Callable

import pytest

from os_acc import exception
from os_acc.host.numa import read_topology
from os_acc.numa.fit import Question, fit_to_host
from os_acc.objects.numa import InstanceNUMACell, InstanceNUMATopology, NUMAPolicy
from os_acc.testing import HostSpec, TestHost, hosts, instance, request
from tests.expected_errors import raises

GPU = "0000:17:00.0"
#: Nova refuses a device without a node under these policies.
REFUSED = {NUMAPolicy.REQUIRED, NUMAPolicy.SOCKET}


@pytest.fixture
def host(make_bench: Callable[..., TestHost]) -> TestHost:
    return make_bench(HostSpec(tuple(hosts.gpu("0000:17")), nodes=()))


def plug(host: TestHost, policy: NUMAPolicy, cell: int) -> list[dict[str, object]]:
    selected, flavor = request(host.provider(GPU))
    specs = flavor | {"accel1:numa_policy": policy.value}
    return host.manager.plug(instance(1) | {"numa_cells": [cell]}, selected, specs)


@pytest.mark.parametrize("policy", NUMAPolicy)
def test_each_policy_treats_a_device_as_one_without_a_node(host, policy):
    if policy in REFUSED:
        with raises(exception.NoDeviceReason.NUMA_POLICY):
            plug(host, policy, 0)
        return
    (entry,) = plug(host, policy, 0)
    assert (entry["pci_id"], entry["numa_affinity"]) == (GPU, "unknown")


def test_there_is_no_other_cell(host):
    with pytest.raises(exception.InvalidInput, match="host are 0"):
        plug(host, NUMAPolicy.PREFERRED, 1)


@pytest.mark.parametrize(("memory", "fits"), [(65536, True), (65537, False)])
def test_a_guest_is_fitted_to_it(host, memory, fits):
    cell = InstanceNUMACell(cpuset=frozenset({0}), memory=memory)
    topology = read_topology(host.kernel.root)
    question = Question(topology, InstanceNUMATopology((cell,)))
    found = fit_to_host(question)
    assert (found.fits, found.cells) == (fits, (0,) if fits else ())
