# SPDX-License-Identifier: Apache-2.0

"""A device that the guest's cells do not allow is replaced by one of its provider."""

from __future__ import annotations

from typing import Any

import pytest

from os_acc import exception
from os_acc.attach import planning
from os_acc.objects.lease import LeaseState
from os_acc.objects.numa import NUMAPolicy
from os_acc.store import Store
from os_acc.testing import TestHost, instance, request, uuid_of
from tests.expected_errors import raises
from tests.functional.host.attach.numa_host import (
    BESIDE,
    CARD,
    FAR,
    NEAR,
    NOWHERE,
    VF_NODES,
    again,
    plug,
    set_nodes,
    with_vfs,
)

#: The nearest VF for a guest in cell 0, and the next one if that is taken.
NEAREST = {
    NUMAPolicy.REQUIRED: (NEAR, None),
    NUMAPolicy.SOCKET: (NEAR, BESIDE),
    NUMAPolicy.LEGACY: (NEAR, NOWHERE),
    NUMAPolicy.PREFERRED: (FAR, FAR),
}
REQUIRED = {"accel1:numa_policy": "required"}
SOCKET = {"accel1:numa_policy": "socket"}


@pytest.fixture
def host(make_bench) -> TestHost:
    return with_vfs(make_bench)


def addresses(entries: list[dict[str, Any]]) -> list[str]:
    return [each["pci_id"] for each in entries]


def check_restored(host: TestHost, *free: str) -> None:
    """Check that only the guest's devices are taken, and its leases held."""
    leases = host.manager.store.leases()
    assert {each.state for each in leases} == {LeaseState.HELD}
    assert not any(each.is_spare for each in leases)
    assert host.drivers(*free) == ["iavf"] * len(free)
    (capacity,) = host.manager.catalog.snapshots.newest()
    assert {(each.total, each.reserved) for each in capacity.units.values()} == {(4, 0)}


# -- each order of events --------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "by", "between"),
    [
        (NUMAPolicy.REQUIRED, "request", "nothing"),
        (NUMAPolicy.REQUIRED, "record", "restart"),
        (NUMAPolicy.REQUIRED, "request", "reboot"),
        (NUMAPolicy.SOCKET, "record", "reboot"),
        (NUMAPolicy.LEGACY, "record", "nothing"),
        (NUMAPolicy.PREFERRED, "record", "nothing"),
    ],
)
def test_required_takes_another_device_once_the_cells_are_known(
    host, policy, by, between
):
    specs = {"accel1:numa_policy": policy.value}
    (first,) = plug(host, CARD, cells=None, **specs)
    assert first["pci_id"] == FAR
    if between == "reboot":
        host.kernel.reboot()
        set_nodes(host, VF_NODES)
    if between != "nothing":
        host.restart()
    (entry,) = again(host, [0]) if by == "record" else plug(host, CARD, **specs)
    expected, _ = NEAREST[policy]
    assert entry["pci_id"] == expected
    assert entry["numa_node"] == VF_NODES[expected]
    assert entry["numa_affinity"] == ("local" if expected == NEAR else "remote")
    assert entry["uuid"] == first["uuid"]
    assert host.drivers(expected) == ["vfio-pci"]
    assert again(host, [0]) == plug(host, CARD, **specs) == [entry]
    check_restored(host, *({FAR, NEAR} - {expected}))
    assert host.unplug(1) == 1
    assert host.drivers(*VF_NODES) == ["iavf"] * 4


def test_required_takes_another_device_whenever_the_cells_change(host):
    (first,) = plug(host, CARD, cells=[2], **REQUIRED)
    assert first["pci_id"] == FAR
    for cell, expected in ((0, NEAR), (1, BESIDE), (2, FAR), (0, NEAR)):
        (entry,) = again(host, [cell])
        assert (entry["pci_id"], entry["numa_affinity"]) == (expected, "local")
        assert entry["uuid"] == first["uuid"]
        check_restored(host, *(VF_NODES.keys() - {expected}))


def test_required_takes_another_device_after_a_node_changed(host):
    plug(host, CARD, cells=[2], **REQUIRED)
    set_nodes(host, {FAR: 0, NEAR: 2})
    (entry,) = again(host, [2])
    assert (entry["pci_id"], entry["numa_affinity"]) == (NEAR, "local")


@pytest.mark.parametrize("policy", NUMAPolicy)
def test_the_next_device_is_taken_where_the_nearest_is_not_free(host, policy):
    host.manager.plug(instance(2) | {"numa_cells": [0]}, *request(host.provider(CARD)))
    assert host.plugged(2) == [NEAR]
    specs = {"accel1:numa_policy": policy.value}
    plug(host, CARD, cells=None, **specs)
    before, leases = host.kernel.snapshot(), host.manager.store.leases()
    _, expected = NEAREST[policy]
    if expected is not None:
        assert addresses(again(host, [0])) == [expected]
        return
    with raises(exception.NoDeviceReason.NUMA_POLICY, match=f"{FAR}.*required"):
        again(host, [0])
    assert (host.kernel.snapshot(), host.manager.store.leases()) == (before, leases)


def test_the_next_device_is_taken_where_a_process_has_the_nearest(make_bench):
    named = ['{"address": "*:*:*.*", "prebound": true}']
    host = with_vfs(make_bench, device_spec=named)
    for vf in VF_NODES:
        host.bind(vf, "vfio-pci")
    (first,) = plug(host, CARD, cells=None, **SOCKET)
    assert first["pci_id"] == FAR
    host.kernel.hold(NEAR, command="qemu")
    (entry,) = again(host, [0])
    assert entry["pci_id"] == BESIDE
    host.kernel.hold(BESIDE, command="qemu")
    with pytest.raises(exception.DeviceInUse, match="qemu"):
        again(host, [2])
    host.kernel.let_go(BESIDE)
    assert host.unplug(1) == 1


def test_one_policy_of_several_groups_is_met_by_another_device(host):
    """The entries stay in the order of the groups."""
    specs = {"accel1:numa_policy": "required", "accel2:numa_policy": "preferred"}
    first = plug(host, CARD, CARD, cells=[2], **specs)
    groups = {each["uuid"]: each["request_group"] for each in first}
    assert list(groups.values()) == ["1", "2"]
    assert addresses(first)[0] == FAR
    for _ in range(2):
        entries = again(host, [1])
        assert addresses(entries) == [BESIDE, addresses(first)[1]]
        assert {each["uuid"]: each["request_group"] for each in entries} == groups


def test_a_group_of_several_devices_gets_as_many_others(host):
    mine = instance(1) | {"image_properties": {"hw_pci_numa_affinity_policy": "socket"}}
    first = host.manager.plug(mine, *request(host.provider(CARD), amount=2))
    assert addresses(first) == [FAR, NEAR]
    assert sorted(addresses(again(host, [0]))) == [NEAR, BESIDE]
    check_restored(host, FAR, NOWHERE)


def test_too_few_others_change_nothing(host):
    host.plug(1, CARD, amount=2, numa_policy="socket")
    before, leases = host.kernel.snapshot(), host.manager.store.leases()
    set_nodes(host, {NEAR: 2})
    with pytest.raises(exception.NoDeviceAvailable, match="2 requested, 1 available"):
        again(host, [0])
    assert (host.kernel.snapshot(), host.manager.store.leases()) == (before, leases)


def test_a_device_without_user_is_replaced_as_well(host):
    specs = {**REQUIRED, "accel1:attach_target": "none"}
    (first,) = plug(host, CARD, cells=None, **specs)
    (entry,) = again(host, [0])
    assert entry["uuid"] == first["uuid"]
    assert entry["attach_handle_type"] == "NONE"
    assert host.plugged(1) == [NEAR]
    check_restored(host, *VF_NODES)


# -- a guest that runs -----------------------------------------------------------


def test_a_running_guest_keeps_its_device(host):
    plug(host, CARD, cells=None, **REQUIRED)
    host.kernel.hold(FAR)
    before, leases = host.kernel.snapshot(), host.manager.store.leases()
    with pytest.raises(exception.DeviceInUse, match=FAR):
        again(host, [0])
    assert (host.kernel.snapshot(), host.manager.store.leases()) == (before, leases)
    host.kernel.let_go(FAR)
    assert addresses(again(host, [0])) == [NEAR]


# -- other plugs and failures ----------------------------------------------------


def test_a_commit_that_happened_although_it_failed_is_completed(host, monkeypatch):
    """A rollback of both leases would leave the guest without a device."""
    (first,) = plug(host, CARD, cells=None, **REQUIRED)
    replace = Store.replace

    def commit_and_fail(store, leases, *more):
        done = replace(store, leases, *more)
        if done[0].arq:
            raise exception.StateUnavailable(
                "disk I/O error", reason=exception.StateReason.FAILED
            )
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Store, "replace", commit_and_fail)
        with pytest.raises(exception.StateUnavailable):
            again(host, [0])
    (entry,) = again(host, [0])
    assert (entry["pci_id"], entry["uuid"]) == (NEAR, first["uuid"])
    check_restored(host, FAR)


def test_another_plug_that_is_faster_gets_the_device(host, monkeypatch):
    plug(host, CARD, cells=None, **SOCKET)
    plan = planning.LeasePlanner.plan

    def plan_slowly(planner, inventory, deadline):
        planned = plan(planner, inventory, deadline)
        if planner.instance.uuid == uuid_of(1) and not host.plugged(2):
            host.manager.plug(
                instance(2) | {"numa_cells": [0]}, *request(host.provider(CARD))
            )
        return planned

    monkeypatch.setattr(planning.LeasePlanner, "plan", plan_slowly)
    assert addresses(again(host, [0])) == [BESIDE]
    assert host.plugged(2) == [NEAR]
    check_restored(host, FAR)


def test_a_guest_does_not_wait_for_a_device_that_cannot_be_released(host):
    (first,) = plug(host, CARD, cells=None, **REQUIRED)
    host.kernel.fail(FAR, "driver_override", times=None)
    for _ in range(2):
        (entry,) = again(host, [0])
        assert (entry["pci_id"], entry["uuid"]) == (NEAR, first["uuid"])
    (old, new) = host.manager.store.leases()
    assert (str(old.address), old.is_spare) == (FAR, True)
    assert new.state is LeaseState.HELD
    shown = host.manager.attached(instance(1))[uuid_of(1)]
    assert len({each["uuid"] for each in shown}) == 2
    assert {each["pci_id"] for each in shown if each.get("is_spare")} == {FAR}
    (capacity,) = host.manager.catalog.snapshots.newest()
    assert {(each.total, each.reserved) for each in capacity.units.values()} == {(4, 1)}
