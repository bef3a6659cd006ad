# SPDX-License-Identifier: Apache-2.0

"""A host offers only eligible devices."""

from __future__ import annotations

from os_acc import service

from ..host import VFIO, HostUnderTest
from .common import (
    FOUR_VFS,
    card,
    devices,
    instance,
    offered,
    only_provider,
    plug,
    refusals,
    scenario,
    single,
    unplug,
    vfs,
)


@scenario
def nothing_is_claimed_by_default(host: HostUnderTest) -> None:
    before = host.snapshot()
    host.start()
    assert service.get().providers() == ()
    assert host.snapshot() == before


@scenario
def a_named_device_is_offered_with_class_trait_and_node(host: HostUnderTest) -> None:
    host.start({"vendor_id": "1234", "product_id": "11e8", "address": "*:82:*.*"})
    device = only_provider().device
    assert str(device.address) == host.places.single
    assert device.resource_class == "CUSTOM_ACCELERATOR_PCI"
    assert device.traits == {"CUSTOM_PCI_1234_11E8", "CUSTOM_NUMA_CELL_1"}
    assert device.numa_node == 1
    assert len(device.handles) == 1


@scenario
def num_vfs_makes_vfs_and_they_are_one_provider(host: HostUnderTest) -> None:
    host.start({**vfs(host), "traits": "CUSTOM_FAST"})
    assert len(host.vfs()) == FOUR_VFS
    device = only_provider().device
    assert str(device.address) == host.places.pf
    assert {str(handle.address) for handle in device.handles} == set(host.vfs())
    assert device.resource_class == "CUSTOM_ACCELERATOR_SSD"
    assert "CUSTOM_FAST" in device.traits


@scenario
def vfs_that_are_there_are_left_as_they_are(host: HostUnderTest) -> None:
    host.make_vfs(FOUR_VFS)
    host.bind(host.vfs()[2], "vfio-pci", "vfio-pci")
    before = host.snapshot()
    host.start(vfs(host))
    host.again()
    assert host.snapshot() == before
    assert offered() == set(host.vfs()) - {host.vfs()[2]}
    host.bind(host.vfs()[2], None)


@scenario
def a_device_without_any_reset_is_offered_only_if_told_so(host: HostUnderTest) -> None:
    address = host.places.no_reset
    host.start({"address": address})
    assert offered() == set()
    assert "cannot be reset" in refusals()[address]
    host.start({"address": address, "allow_no_reset": True})
    assert offered() == {address}


@scenario
def a_device_that_the_host_uses_is_not_offered(host: HostUnderTest) -> None:
    host.start(card(host))
    assert offered() == {host.places.card[1]}
    host.swap_to_disk(True)
    assert offered() == set()
    assert "swap space" in refusals()[host.places.card[1]]
    host.swap_to_disk(False)
    assert offered() == {host.places.card[1]}


@scenario
def a_device_whose_sibling_the_host_uses_is_not_offered(host: HostUnderTest) -> None:
    address = host.places.card[0]
    host.start({"address": address, "allow_no_reset": True, "allow_no_erase": True})
    host.swap_to_disk(True)
    assert offered() == set()
    assert "cannot be isolated" in refusals()[address]
    host.swap_to_disk(False)
    assert offered() == {address}


@scenario
def a_bridge_is_not_offered(host: HostUnderTest) -> None:
    host.start({"address": host.places.bridge})
    assert offered() == set()
    assert refusals()[host.places.bridge] == "a bridge"


@scenario
def a_group_whose_isa_bridge_the_host_drives_waits_for_that(
    host: HostUnderTest,
) -> None:
    """VFIO exempts neither its class nor its header, which is that of an endpoint."""
    isa, _disks, smbus = host.places.chipset
    first = host.binding(isa)
    host.load("lpc_ich")
    host.bind(isa, "lpc_ich")
    tags = {"allow_no_reset": True, "allow_no_erase": True}
    host.start({"address": smbus, **tags}, {"address": isa, **tags})
    assert offered() == set()
    assert f"{isa} (lpc_ich) shares its group" in refusals()[smbus]
    assert refusals()[isa] == "a bridge"
    host.bind(isa, None)
    assert offered() == {smbus}
    guest = instance()
    assert devices(plug(guest)) == [smbus]
    host.hold(smbus)
    assert host.driver(isa) is None
    host.let_go()
    assert unplug(guest) == 1
    host.bind(isa, first.driver, first.override)


@scenario
def a_card_without_any_reset_is_reset_with_its_bus(host: HostUnderTest) -> None:
    """VFIO resets the bus if it has all functions of it, and os_acc gives them all."""
    first, second = host.places.pair
    before = host.snapshot()
    host.start({"address": first})
    assert offered() == {first}
    guest = instance()
    (entry,) = plug(guest)
    assert (entry["pci_id"], entry["held_pci_ids"]) == (first, [second])
    assert host.binding(second) == VFIO
    host.hold(first)
    host.let_go()
    assert unplug(guest) == 1
    assert host.snapshot() == before


@scenario
def a_device_that_nova_claims_is_not_offered(host: HostUnderTest) -> None:
    host.start(single(host), vfs(host), nova=(single(host),))
    assert offered() == set(host.vfs())
    assert "Nova" in refusals()[host.places.single]


@scenario
def a_device_on_vfio_without_a_lease_is_offered_only_if_prebound(
    host: HostUnderTest,
) -> None:
    address = host.places.single
    host.bind(address, "vfio-pci", "vfio-pci")
    host.start(single(host))
    assert offered() == set()
    assert "no lease of it is recorded" in refusals()[address]
    host.start({"address": address, "prebound": True})
    assert offered() == {address}
    assert host.binding(address) == VFIO
    host.bind(address, None)
