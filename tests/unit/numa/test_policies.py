# SPDX-License-Identifier: Apache-2.0

"""The NUMA policy of the most specific source applies, as Nova's table allows.

In the table, the guest is on cell 0 unless a row says otherwise; cells 0 and 1 are on
one socket, 2 and 3 on the other.
"""

import itertools

import pytest

from os_acc import exception
from os_acc.numa.fit import DeviceRequest, all_served
from os_acc.numa.nearest import DevicePool
from os_acc.numa.policies import Policies
from os_acc.objects.device import AttachHandle
from os_acc.objects.instance import InstanceInfo
from os_acc.objects.numa import NUMACell, NUMAPolicy, NUMATopology, PolicySources
from os_acc.objects.pci import PciAddress
from os_acc.objects.request_group import GroupAllocation
from tests.unit.numa.nova_claim import served_in_turn

GPU = PciAddress.parse("0000:3b:00.0")
UUID = "11111111-1111-4111-8111-111111111111"
#: The sources of a policy, by precedence.
PLACES = ("port", "group", "guest", "device")


def effective(**said: NUMAPolicy) -> NUMAPolicy:
    """Return the policy of one device, where these sources set one."""
    instance = InstanceInfo.from_api(
        {
            "uuid": UUID,
            "port_numa_policies": {"1": said["port"].value} if "port" in said else {},
        }
    )
    flavor = said["guest"].value if "guest" in said else None
    return (
        Policies.of(instance, flavor)
        .sources(
            GroupAllocation(
                "1", "a provider", "FPGA", 1, numa_policy=said.get("group")
            ),
            AttachHandle(GPU, (GPU,), 1, 0, numa_policy=said.get("device")),
        )
        .effective
    )


@pytest.mark.parametrize(
    "said",
    [
        places
        for number in range(1, len(PLACES) + 1)
        for places in itertools.combinations(PLACES, number)
    ],
    ids="-".join,
)
def test_the_nearest_to_the_device_is_heard(said):
    policies = dict(zip(said, itertools.cycle(NUMAPolicy), strict=False))
    assert effective(**policies) is policies[said[0]]


def test_legacy_where_nobody_says_anything():
    assert effective() is NUMAPolicy.LEGACY


def test_a_port_is_heard_for_its_own_group_alone():
    instance = InstanceInfo.from_api(
        {"uuid": UUID, "port_numa_policies": {"2": "required"}}
    )
    policies = Policies.of(instance, "preferred")
    handle = AttachHandle(GPU, (GPU,), 1, 0)
    for group, policy in (("1", NUMAPolicy.PREFERRED), ("2", NUMAPolicy.REQUIRED)):
        wanted = GroupAllocation(group, "x", "FPGA", 1)
        assert policies.sources(wanted, handle).effective is policy


def test_a_later_call_replaces_the_policies_that_it_has():
    recorded = PolicySources(
        port=NUMAPolicy.SOCKET, group=NUMAPolicy.LEGACY, guest=NUMAPolicy.PREFERRED
    )
    instance = InstanceInfo.from_api(
        {"uuid": UUID, "port_numa_policies": {"2": "required"}}
    )
    policies = Policies.of(instance, None)
    assert policies.renewed("1", recorded) == recorded
    assert policies.renewed("2", recorded) == PolicySources(
        port=NUMAPolicy.REQUIRED, group=NUMAPolicy.LEGACY, guest=NUMAPolicy.PREFERRED
    )
    flavor = Policies.of(instance, "required")
    assert flavor.renewed("1", recorded).guest is NUMAPolicy.REQUIRED


@pytest.mark.parametrize("image", [*NUMAPolicy, None])
@pytest.mark.parametrize("flavor", [*NUMAPolicy, None])
def test_flavor_and_image_have_to_agree(flavor, image):
    instance = InstanceInfo.from_api(
        {
            "uuid": UUID,
            "image_properties": {
                "hw_pci_numa_affinity_policy": image and image.value,
                "hw_disk_bus": "virtio",
            },
        }
    )
    if flavor and image and flavor is not image:
        with pytest.raises(exception.InvalidInput) as caught:
            Policies.of(instance, flavor.value)
        assert flavor.value in str(caught.value)
        assert image.value in str(caught.value)
        return
    assert Policies.of(instance, flavor and flavor.value).guest is (flavor or image)


@pytest.mark.parametrize("value", ["prefered", "", "REQUIRED", 1, ["required"]])
@pytest.mark.parametrize("place", ["flavor", "image", "port"])
def test_what_is_no_policy_is_named_with_its_place(place, value):
    info: dict[str, object] = {"uuid": UUID}
    if place == "image":
        info["image_properties"] = {"hw_pci_numa_affinity_policy": value}
    if place == "port":
        info["port_numa_policies"] = {"1": value}
    with pytest.raises(exception.InvalidInput) as caught:
        Policies.of(InstanceInfo.from_api(info), value if place == "flavor" else None)
    assert repr(value) in str(caught.value)
    assert place in str(caught.value)
    assert caught.value.hint


REQUIRED, SOCKET = NUMAPolicy.REQUIRED, NUMAPolicy.SOCKET
LEGACY, PREFERRED = NUMAPolicy.LEGACY, NUMAPolicy.PREFERRED
ORDER = (REQUIRED, LEGACY, PREFERRED, SOCKET)

HOST = NUMATopology(tuple(NUMACell(number, socket=number // 2) for number in range(4)))

#: Nodes of the devices, the number requested, the guest's cells; and
#: whether required, legacy, preferred and socket are served.
TABLE = {
    "node 0": ([0], 1, [0], "yyyy"),
    "node 1": ([1], 1, [0], "nnyy"),
    "node 2": ([2], 1, [0], "nnyn"),
    "no node": ([None], 1, [0], "nyyn"),
    "no node, and two of node 2": ([None, 2, 2], 2, [0], "nnyn"),
    "node 0 and no node": ([0, None], 2, [0], "nyyn"),
    "node 2, and a guest on it too": ([2], 1, [0, 2], "yyyy"),
    "anywhere, and a guest without cells": ([2], 1, [], "yyyy"),
}


def pools(nodes: list[int | None]) -> list[DevicePool]:
    return [DevicePool(f"p{at}", node, 1) for at, node in enumerate(nodes)]


@pytest.mark.parametrize("policy", ORDER)
@pytest.mark.parametrize(
    ("nodes", "wanted", "cells", "served"), TABLE.values(), ids=TABLE
)
def test_a_policy_allows_what_its_row_says(nodes, wanted, cells, served, policy):
    there = pools(nodes)
    names = frozenset(pool.name for pool in there)
    request = DeviceRequest("r", wanted, names, policy)
    expected = served[ORDER.index(policy)] == "y"
    assert all_served(HOST, cells, there, [request]) is expected
    assert served_in_turn(HOST, cells, there, [request]) is expected


@pytest.mark.parametrize("node", [0, 1])
def test_a_cell_without_a_socket_takes_all_sockets_away(node):
    host = NUMATopology((*HOST.cells, NUMACell(4)))
    there = pools([node])
    request = DeviceRequest("r", 1, frozenset({"p0"}), SOCKET)
    for topology, allowed in ((HOST, {0, 1}), (host, {0})):
        assert all_served(topology, [0], there, [request]) is (node in allowed)
