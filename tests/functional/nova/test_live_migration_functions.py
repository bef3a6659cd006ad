# SPDX-License-Identifier: Apache-2.0

"""Running guests move with PCI functions on a variant of vfio-pci that can migrate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from nova.tests.fixtures import libvirt
from nova.virt.libvirt import driver

from os_acc.objects.migration import TRAIT
from tests.functional.host.attach.test_variant_drivers import MLX5, NIC, SPEC
from tests.functional.nova import compute_nodes, libvirt_servers
from tests.functional.nova.compute_nodes import ComputeNode

FIRST, SECOND = "compute1", "compute2"
PFS: Mapping[str, str] = {FIRST: "0000:3b:00.0", SECOND: "0000:4b:00.0"}
VF = "resources{}:CUSTOM_ACCELERATOR_NIC"
ONE = {VF.format(1): "1"}
TWO = ONE | {VF.format(2): "1", "group_policy": "none"}


class NicNode(ComputeNode):
    """A node with two VFs, which keep a driver that can migrate them."""

    def device_spec(self) -> list[str]:
        place = self.gpus[0].rpartition(".")[0]
        return [f'{{"address": "{place}.*", "vfio_driver": "auto"}}']


@dataclasses.dataclass
class NicCloud:
    """Nova's services, and the cards of their hosts."""

    nova: libvirt_servers.LibvirtServers
    nodes: Mapping[str, NicNode]

    def check_attached(self, server: dict[str, Any], host: str) -> list[str]:
        """Check a server whose guest runs with its VFs; return their addresses."""
        leases = self.nodes[host].leases()[server["id"]]
        held = sorted(str(each.address) for each in leases)
        assert self.nova.is_running(host, server)
        assert sorted(self.nova.hostdevs(host, server)) == held
        assert set(self.nodes[host].bench.drivers(*held)) == {MLX5}
        (provider,) = self.nodes[host].providers
        amounts = self.nova.allocations(server["id"])[provider]
        assert amounts == {"CUSTOM_ACCELERATOR_NIC": len(held)}
        return held

    def check_free(self, host: str) -> None:
        node = self.nodes[host]
        assert node.leases() == {}
        vfs = [f"{PFS[host][:-1]}{number}" for number in (1, 2)]
        assert node.bench.drivers(*vfs) == ["mlx5_core", "mlx5_core"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[NicCloud]:
    """Start Nova with two compute nodes, each with one card."""
    assert NIC.sriov
    sriov = dataclasses.replace(NIC.sriov, vf_migration=(7, 4096))
    cards = tuple(
        dataclasses.replace(NIC, address=address, sriov=sriov)
        for address in PFS.values()
    )
    spec = dataclasses.replace(SPEC, functions=cards)
    with compute_nodes.simulated(tmp_path, spec) as bench:
        nodes = {name: NicNode(name, bench, (pf,)) for name, pf in PFS.items()}
        with libvirt_servers.running(libvirt_servers.LibvirtServers, nodes) as nova:
            nova.flags(reconcile_age=0.0, group="os_acc_driver")
            for host in PFS:
                nova.start_compute(host, **libvirt_servers.MOVES_FUNCTIONS)
            yield NicCloud(nova, nodes)


@pytest.mark.parametrize("specs", [ONE, TWO], ids=["one", "two"])
def test_a_guest_moves_with_its_functions(pair, specs):
    server = pair.nova.create(specs, host=FIRST)
    number = len(pair.check_attached(server, FIRST))
    pair.nova.live_migrate(server)
    assert len(pair.check_attached(server, SECOND)) == number
    pair.check_free(FIRST)
    pair.nova.reboot(server)
    pair.check_attached(server, SECOND)
    pair.nova.delete(server)
    pair.check_free(SECOND)


@pytest.mark.parametrize(
    ("host", "program", "release"),
    [(FIRST, "QEMU", "8.2.1"), (SECOND, "libvirt", "9.9.9")],
)
def test_an_old_host_refuses_it(pair, host, program, release):
    server = pair.nova.create(ONE, host=FIRST)
    with pair.nova.outdated(host, program, release):
        pair.nova.fail_to_move(server)
    text = f"host {host} needs libvirt 10.0.0 and QEMU 8.2.2 or newer"
    assert text in pair.nova.stdlog.logger.output
    pair.check_attached(server, FIRST)
    pair.check_free(SECOND)


@pytest.mark.parametrize("is_shared", [False, True], ids=["own disks", "shared"])
def test_a_failed_move_leaves_the_functions(pair, is_shared):
    """On a shared path of instances Nova cleans up the target for its mdevs alone."""
    server = pair.nova.create(TWO, host=FIRST)
    held = pair.check_attached(server, FIRST)

    def fail(guest: Any, *_: Any, **_named: Any) -> None:
        guest.fail_job()

    shares = "_check_shared_storage_test_file"
    with (
        mock.patch.object(libvirt.Domain, "migrateToURI3", fail),
        mock.patch.object(driver.LibvirtDriver, shares, return_value=is_shared),
    ):
        pair.nova.begin_live_migration(server)
        pair.nova._wait_for_migration_status(server, ["failed", "error"])
        pair.nova._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
    pair.nodes[SECOND].wait_for_lease(server["id"], has_one=False)
    assert pair.check_attached(server, FIRST) == held
    pair.check_free(SECOND)


def test_the_trait_selects_hosts_whose_devices_can_move(pair):
    specs = ONE | {f"trait1:{TRAIT}": "required"}
    assert pair.nova.create(specs, state="ERROR")
    first = pair.nova.create(ONE, host=FIRST)
    pair.nova.delete(first)
    # The next scan publishes it, within a minute.
    pair.nodes[FIRST].manager.discover()
    pair.nova.update_inventory()
    server = pair.nova.create(specs)
    assert pair.nova.host_of(server) == FIRST
