# SPDX-License-Identifier: Apache-2.0

"""A plug leases free devices."""

from __future__ import annotations

import contextlib
import uuid
from concurrent import futures

import os_acc
from os_acc import exception, service

from ..host import VFIO, Binding, HostUnderTest
from .common import (
    FOUR_VFS,
    card,
    devices,
    flavor,
    instance,
    only_provider,
    plug,
    scenario,
    single,
    vfs,
)


@scenario
def a_plugged_vf_is_ready_for_a_guest(host: HostUnderTest) -> None:
    host.start(vfs(host))
    guest, provider = instance(), only_provider()
    (entry,) = plug(guest)
    address = entry["pci_id"]
    assert address in host.vfs()
    assert host.binding(address) == VFIO
    assert host.has_node(address)
    assert entry["state"] == "Bound"
    assert entry["device_rp_uuid"] == provider.uuid
    assert entry["instance_uuid"] == guest["uuid"]
    assert entry["numa_node"] == 1
    assert os_acc.attached(guest) == {guest["uuid"]: [entry]}
    assert os_acc.unplug(guest) == 1


@scenario
def one_plug_gives_two_vfs(host: HostUnderTest) -> None:
    host.start(vfs(host))
    guest = instance()
    taken = devices(plug(guest, 2))
    assert len(set(taken)) == 2
    for vf in host.vfs():
        assert host.binding(vf) == (VFIO if vf in taken else Binding(None))
    assert os_acc.unplug(guest) == 2


@scenario
def the_same_request_again_gives_the_same_entries(host: HostUnderTest) -> None:
    host.start(vfs(host))
    guest = instance()
    entries = plug(guest, 2)
    assert plug(guest, 2) == entries
    host.again()
    assert plug(guest, 2) == entries
    assert os_acc.unplug(guest) == 2


@scenario
def an_allocation_request_is_followed_to_each_provider(host: HostUnderTest) -> None:
    host.start(vfs(host), single(host))
    guest = instance()
    by_class = {each.device.resource_class: each for each in service.get().providers()}
    vf, one = by_class["CUSTOM_ACCELERATOR_SSD"], by_class["CUSTOM_ACCELERATOR_PCI"]
    node = str(uuid.uuid4())
    selected = {
        "allocations": {
            vf.uuid: {"resources": {vf.device.resource_class: 2}},
            one.uuid: {"resources": {one.device.resource_class: 1}},
            node: {"resources": {"VCPU": 2}},
        },
        "mappings": {"": [node], "_fast": [vf.uuid], "_odd": [one.uuid]},
    }
    request = {
        "group_policy": "none",
        f"resources_fast:{vf.device.resource_class}": "2",
        f"resources_odd:{one.device.resource_class}": "1",
    }
    entries = os_acc.plug(guest, selected, request)
    by_group = [(entry["request_group"], entry["pci_id"]) for entry in entries]
    assert sorted(group for group, _ in by_group) == ["_fast", "_fast", "_odd"]
    assert ("_odd", host.places.single) in by_group
    assert os_acc.unplug(guest) == 3


@scenario
def a_shared_group_is_taken_as_a_whole_and_given_back(host: HostUnderTest) -> None:
    other, disk = host.places.card
    host.start(card(host))
    before = host.snapshot()
    guest = instance()
    assert devices(plug(guest)) == [disk]
    assert (host.binding(disk), host.binding(other)) == (VFIO, VFIO)
    assert os_acc.unplug(guest) == 1
    assert (host.driver(disk), host.driver(other)) == ("nvme", None)
    assert host.snapshot() == before


@scenario
def what_was_unbound_by_hand_is_made_ready_again(host: HostUnderTest) -> None:
    host.start(vfs(host))
    before, guest = host.snapshot(), instance()
    (entry,) = plug(guest)
    host.bind(entry["pci_id"], None)
    assert os_acc.plug(guest) == [entry]
    assert host.binding(entry["pci_id"]) == VFIO
    assert os_acc.unplug(guest) == 1
    assert host.snapshot() == before


@scenario
def instances_that_plug_at_once_get_different_devices(host: HostUnderTest) -> None:
    host.start(vfs(host))
    before, provider = host.snapshot(), only_provider()
    guests = [instance() for _ in range(FOUR_VFS)]

    def serve(guest: dict[str, str]) -> list[str]:
        return devices(os_acc.plug(guest, {"uuid": provider.uuid}, flavor(provider)))

    with futures.ThreadPoolExecutor(FOUR_VFS) as threads:
        taken = [address for each in threads.map(serve, guests) for address in each]
        assert sorted(taken) == sorted(host.vfs())
        assert [host.binding(vf) for vf in taken] == [VFIO] * FOUR_VFS
        assert list(threads.map(os_acc.unplug, guests)) == [1] * FOUR_VFS
    assert host.snapshot() == before


@scenario
def two_services_that_race_for_the_last_device_get_it_once(
    host: HostUnderTest,
) -> None:
    host.start(single(host))
    before, provider = host.snapshot(), only_provider()
    mine, theirs = instance(), instance()
    rival = host.another_process(
        "plug",
        instance=theirs,
        provider=provider.uuid,
        extra_specs=flavor(provider),
    )
    rival.wait_until_ready()
    rival.let_go_on()
    won: list[str] = []
    with contextlib.suppress(exception.NoDeviceAvailable):
        won = devices(plug(mine))
    outcome = rival.outcome()
    assert sorted([*won, *outcome["devices"]]) == [host.places.single]
    assert outcome["error"] == ("NoDeviceAvailable" if won else "")
    assert os_acc.unplug(mine) + os_acc.unplug(theirs) == 1
    assert host.snapshot() == before
