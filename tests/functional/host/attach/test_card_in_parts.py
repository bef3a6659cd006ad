# SPDX-License-Identifier: Apache-2.0

"""A card goes to guests as a whole or in VFs, never both at a time."""

from __future__ import annotations

import dataclasses
import sqlite3

import pytest

from os_acc.attach import operations
from os_acc.inventory import discovery
from os_acc.objects.device import RejectReason
from os_acc.objects.pci import PciAddress
from os_acc.testing import HostSpec, TestHost, hosts, instance, request

NIC, VFS = "0000:3b:00.0", tuple(f"0000:3b:02.{number}" for number in range(4))
CARD = '{"address": "0000:3b:*.*"}'
IN_VFS = '{"address": "0000:3b:*.*", "num_vfs": 4}'


@pytest.fixture
def nic(make_bench) -> TestHost:
    return make_bench(device_spec=[CARD])


def set_vfs(bench: TestHost, count: int) -> None:
    """Write the PF's number of VFs, as an administrator or its owner does."""
    path = bench.kernel.path(f"sys/bus/pci/devices/{NIC}/sriov_numvfs")
    bench.kernel.write(path, str(count))


def take_whole(bench: TestHost, number: int, target: str) -> None:
    selected, specs = request(bench.provider(NIC))
    specs["accel1:attach_target"] = target
    bench.manager.plug(instance(number), selected, specs)


def plug_vf(bench: TestHost, number: int) -> str:
    return str(bench.plug(number, VFS[0])[0]["pci_id"])


def reasons(inventory: discovery.Inventory) -> dict[str, RejectReason]:
    return {str(each.address): each.reason for each in inventory.refused}


def units(bench: TestHost) -> list[tuple[int, int]]:
    """Return (total, reserved) of each published unit."""
    return [
        (each.total, each.reserved)
        for capacity in bench.manager.catalog.snapshots.newest()
        for each in capacity.units.values()
    ]


@pytest.mark.parametrize("target", ["host", "none"])
def test_vfs_of_a_pf_that_is_leased_are_not_offered(nic, target):
    take_whole(nic, 1, target)
    set_vfs(nic, 4)
    inventory = nic.manager.discover()
    assert inventory.providers == {}
    assert reasons(inventory) == {
        NIC: RejectReason.HAS_VFS,
        **dict.fromkeys(VFS, RejectReason.PF_LEASED),
    }
    assert NIC in nic.rejected(VFS[0]).detail
    assert units(nic) == [(1, 0)]


def test_they_are_offered_once_the_pf_is_given_back(nic):
    take_whole(nic, 1, "host")
    set_vfs(nic, 4)
    nic.unplug(1)
    assert len(nic.provider(VFS[0]).device.handles) == 4
    assert plug_vf(nic, 2) == VFS[0]


def test_a_pf_whose_vf_is_leased_is_not_offered_though_the_vf_has_gone(nic):
    set_vfs(nic, 4)
    taken = plug_vf(nic, 1)
    set_vfs(nic, 0)
    inventory = nic.manager.discover()
    assert inventory.providers == {}
    assert reasons(inventory) == {NIC: RejectReason.VFS_LEASED}
    assert nic.rejected(NIC).detail == taken
    nic.restart()
    assert reasons(nic.manager.discover()) == {NIC: RejectReason.VFS_LEASED}
    nic.unplug(1)
    nic.plug(2, NIC)
    assert nic.plugged(2) == [NIC]


def test_who_has_a_vf_keeps_the_others_from_nobody(nic):
    set_vfs(nic, 4)
    plug_vf(nic, 1)
    assert len(nic.provider(VFS[1]).device.handles) == 4
    assert plug_vf(nic, 2) == VFS[1]


@pytest.mark.parametrize("target", ["host", "none"])
def test_no_vfs_are_made_of_a_pf_that_is_leased(make_bench, caplog, target):
    bench = make_bench(device_spec=[CARD])
    take_whole(bench, 1, target)
    bench.restart(device_spec=[IN_VFS])
    assert bench.kernel.state(NIC).numvfs == 0
    assert f"cannot create VFs of {NIC}: it is leased as a whole" in caplog.text
    bench.unplug(1)
    bench.restart(device_spec=[IN_VFS])
    assert bench.kernel.state(NIC).numvfs == 4


def test_after_a_reboot_leased_vfs_are_made_anew(make_bench):
    bench = make_bench(device_spec=[IN_VFS])
    taken = plug_vf(bench, 1)
    set_vfs(bench, 0)
    bench.restart()
    assert bench.kernel.state(NIC).numvfs == 4
    assert bench.plugged(1) == [taken]


def damage(bench: TestHost) -> None:
    """Invalidate the digest of every record of a lease."""
    with sqlite3.connect(f"{bench.state_path}/os_acc.sqlite") as connection:
        connection.execute("UPDATE leases SET digest = 'none'")


def test_a_damaged_record_of_a_pf_keeps_its_vfs_as_well(nic):
    take_whole(nic, 1, "none")
    set_vfs(nic, 4)
    damage(nic)
    assert nic.manager.providers() == ()
    assert nic.rejected(VFS[0]).reason is RejectReason.PF_LEASED


def test_a_vf_that_was_adopted_keeps_its_pf(nic):
    set_vfs(nic, 1)
    device = f"{nic.root}/sys/bus/pci/devices/{VFS[0]}"
    nic.kernel.write(f"{device}/driver_override", "vfio-pci")
    nic.kernel.write(f"{device}/driver/unbind", VFS[0])
    nic.kernel.write(f"{nic.root}/sys/bus/pci/drivers_probe", VFS[0])
    operations.adopt_device(
        nic.manager, PciAddress.parse(VFS[0]), instance(1)["uuid"], ""
    )
    set_vfs(nic, 0)
    assert nic.rejected(NIC).reason is RejectReason.VFS_LEASED


def test_a_neighbour_that_is_leased_otherwise_keeps_its_group(make_bench):
    """The card's group also contains a PF, and another guest has a VF of it."""
    card = hosts.fpga("0000:05")
    neighbour = dataclasses.replace(
        hosts.nic("0000:06", name="eno1", boot_vfs=1), group_of=card.address
    )
    bench = make_bench(HostSpec((card, neighbour)))
    (entry,) = bench.plug(1, "0000:06:02.0")
    path = f"sys/bus/pci/devices/{neighbour.address}/sriov_numvfs"
    bench.kernel.write(bench.kernel.path(path), "0")
    refused = bench.rejected(card.address)
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert f"{neighbour.address}: a PF with a leased VF" in refused.detail
    assert entry["pci_id"] in refused.detail
