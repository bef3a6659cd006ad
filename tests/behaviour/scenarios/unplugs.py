# SPDX-License-Identifier: Apache-2.0

"""An unplug restores the prior bindings of the host."""

from __future__ import annotations

import uuid

import os_acc

from ..host import VFIO, Binding, HostUnderTest
from .common import devices, instance, plug, recorded, scenario, single, vfs


@scenario
def unplug_restores_the_driver(host: HostUnderTest) -> None:
    host.start(vfs(host))
    host.run_vfs()
    before, guest = host.snapshot(), instance()
    (address,) = devices(plug(guest))
    assert before[address][0] == Binding("nvme")
    assert host.binding(address) == VFIO
    assert os_acc.unplug(guest) == 1
    assert host.binding(address) == Binding("nvme")
    host.wait_until_running(address)
    assert host.snapshot() == before


@scenario
def unplug_restores_having_no_driver(host: HostUnderTest) -> None:
    host.start(single(host))
    before, guest = host.snapshot(), instance()
    plug(guest)
    assert os_acc.unplug(guest) == 1
    assert host.binding(host.places.single) == Binding(None)
    assert not host.has_node(host.places.single)
    assert host.snapshot() == before


@scenario
def unplug_restores_an_override_without_its_driver(host: HostUnderTest) -> None:
    address = host.places.single
    host.bind(address, None, "reserved-by-hand")
    host.start(single(host))
    guest = instance()
    plug(guest)
    assert host.binding(address) == VFIO
    assert os_acc.unplug(guest) == 1
    assert host.binding(address) == Binding(None, "reserved-by-hand")
    host.bind(address, None)


@scenario
def unplug_restores_a_driver_that_only_an_override_gives(
    host: HostUnderTest,
) -> None:
    address = host.places.single
    host.load("pci-stub")
    host.bind(address, "pci-stub", "pci-stub")
    host.start(single(host))
    guest = instance()
    plug(guest)
    assert os_acc.unplug(guest) == 1
    assert host.binding(address) == Binding("pci-stub", "pci-stub")
    host.bind(address, None)


@scenario
def unplug_restores_a_driver_whose_override_was_taken_away(
    host: HostUnderTest,
) -> None:
    address = host.places.single
    host.load("pci-stub")
    host.bind(address, "pci-stub", None)
    host.start(single(host))
    guest = instance()
    plug(guest)
    assert os_acc.unplug(guest) == 1
    assert host.binding(address) == Binding("pci-stub")
    host.bind(address, None)


@scenario
def a_prebound_device_stays_on_vfio(host: HostUnderTest) -> None:
    address = host.places.single
    host.bind(address, "vfio-pci", "vfio-pci")
    host.start({"address": address, "prebound": True})
    for _ in range(2):
        guest = instance()
        assert devices(plug(guest)) == [address]
        assert os_acc.unplug(guest) == 1
        assert host.binding(address) == VFIO
        assert host.has_node(address)
    host.bind(address, None)


@scenario
def unplug_without_anything_plugged_gives_0(host: HostUnderTest) -> None:
    host.start(vfs(host))
    before, guest = host.snapshot(), instance()
    assert os_acc.unplug({"uuid": str(uuid.uuid4())}) == 0
    plug(guest)
    assert os_acc.unplug(guest) == 1
    assert os_acc.unplug(guest) == 0
    assert host.snapshot() == before


@scenario
def a_parked_lease_comes_back_to_its_instance(host: HostUnderTest) -> None:
    host.start(vfs(host))
    guest, migration = instance(), str(uuid.uuid4())
    entries = plug(guest, 2)
    before = recorded()
    assert os_acc.rekey(guest["uuid"], migration) == 2
    assert list(os_acc.attached()) == [migration]
    assert os_acc.unplug(guest) == 0
    assert [host.binding(address) for address in devices(entries)] == [VFIO, VFIO]
    assert os_acc.rekey(migration, guest["uuid"]) == 2
    assert recorded() == before
    assert plug(guest, 2) == entries
    assert os_acc.unplug(guest) == 2


@scenario
def a_parked_lease_is_released_by_its_migration(host: HostUnderTest) -> None:
    host.start(vfs(host))
    before, guest, migration = host.snapshot(), instance(), str(uuid.uuid4())
    plug(guest)
    os_acc.rekey(guest["uuid"], migration)
    assert os_acc.unplug({"uuid": migration}) == 1
    assert host.snapshot() == before
