# SPDX-License-Identifier: Apache-2.0

"""A card goes to guests as a whole or in VFs, never both at a time."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc.objects.device import RejectReason
from os_acc.testing import HostSpec, TestHost, hosts
from tests.functional.host.operator_commands import adopt
from tests.unit.store.store_files import execute, file_in

NIC, VFS = "0000:3b:00.0", tuple(f"0000:3b:02.{number}" for number in range(4))


@pytest.fixture
def nic(make_bench) -> TestHost:
    return make_bench(device_spec=['{"address": "0000:3b:*.*"}'])


def set_vfs(bench: TestHost, count: int) -> None:
    """Write the PF's number of VFs, as an administrator or its owner does."""
    path = bench.kernel.path(f"sys/bus/pci/devices/{NIC}/sriov_numvfs")
    bench.kernel.write(path, str(count))


def units(bench: TestHost) -> list[tuple[int, int]]:
    """Return (total, reserved) of each published unit."""
    return [
        (each.total, each.reserved)
        for capacity in bench.manager.catalog.snapshots.newest()
        for each in capacity.units.values()
    ]


def test_vfs_of_a_pf_that_is_leased_are_not_offered(nic):
    nic.plug(1, NIC, attach_target="none")
    set_vfs(nic, 4)
    inventory = nic.manager.discover()
    assert inventory.providers == {}
    reasons = {str(each.address): each.reason for each in inventory.refused}
    assert reasons == {
        NIC: RejectReason.HAS_VFS,
        **dict.fromkeys(VFS, RejectReason.PF_LEASED),
    }
    assert NIC in nic.rejected(VFS[0]).detail
    assert units(nic) == [(1, 0)]


def test_no_vfs_are_made_of_a_pf_that_is_leased(nic, caplog):
    nic.plug(1, NIC, attach_target="host")
    nic.restart(device_spec=['{"address": "0000:3b:*.*", "num_vfs": 4}'])
    assert nic.kernel.state(NIC).numvfs == 0
    assert f"cannot create VFs of {NIC}: it is leased as a whole" in caplog.text


def test_a_damaged_record_of_a_pf_keeps_its_vfs_as_well(nic):
    nic.plug(1, NIC, attach_target="none")
    set_vfs(nic, 4)
    execute(file_in(nic.state_path), "UPDATE leases SET digest = 'none'")
    assert nic.manager.providers() == ()
    assert nic.rejected(VFS[0]).reason is RejectReason.PF_LEASED


def test_a_vf_that_was_adopted_keeps_its_pf(nic):
    set_vfs(nic, 1)
    device = f"{nic.root}/sys/bus/pci/devices/{VFS[0]}"
    nic.kernel.write(f"{device}/driver_override", "vfio-pci")
    nic.kernel.write(f"{device}/driver/unbind", VFS[0])
    nic.kernel.write(f"{nic.root}/sys/bus/pci/drivers_probe", VFS[0])
    adopt(nic, VFS[0], "")
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
