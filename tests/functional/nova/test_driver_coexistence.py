# SPDX-License-Identifier: Apache-2.0

"""Devices of Nova beside those of os_acc, on one host and in one server.

Nova serves its own devices by ``[pci] device_spec``, with or without PCI in Placement,
and mediated devices by ``[devices] enabled_mdev_types``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from nova import context, objects
from nova.compute import power_state, task_states
from nova.tests.fixtures import libvirt
from oslo_utils import uuidutils

from os_acc import exception
from os_acc.nova import initialization
from os_acc.nova.initialization import DeferredNode
from os_acc.objects.pci import PciAddress
from os_acc.privsep import pci_functions
from os_acc.testing import HostSpec, TestHost
from os_acc.testing import hosts as drives
from tests.functional.nova import compute_nodes, libvirt_servers, nova_cases
from tests.functional.nova.cloud import FIRST, ONE, OTHER_IMAGE, SECOND, Cloud
from tests.functional.nova.compute_nodes import ComputeNode

nodes = compute_nodes.nodes
_LIBVIRT = "nova.virt.libvirt."
#: The device of each host that Nova's option names.
NIC = "0000:81:00.0"
_NIC_IDS = {"vendor_id": libvirt.PCI_VEND_ID, "product_id": libvirt.PCI_PROD_ID}
#: Providers of Nova have the trait.
NOT_NOVAS = ONE | {"trait1:OWNER_NOVA": "forbidden"}
BOTH = ONE | {"pci_passthrough:alias": "nic:1"}


@dataclasses.dataclass(frozen=True)
class NovaDevices:
    """The options of Nova for its device.

    :ivar resource_class: of the device in Placement; empty: it is not there.
    """

    spec: Mapping[str, str]
    alias: Mapping[str, str]
    resource_class: str = ""

    def configure(self, nova: libvirt_servers.LibvirtServers) -> None:
        nova.flags(
            device_spec=[json.dumps(self.spec)],
            alias=[json.dumps(self.alias | {"name": "nic"})],
            report_in_placement=bool(self.resource_class),
            group="pci",
        )
        nova.flags(pci_in_placement=bool(self.resource_class), group="filter_scheduler")


TRACKER = NovaDevices(_NIC_IDS, _NIC_IDS)
#: The name does not show that the class is Nova's.
OF_OPERATOR = NovaDevices(
    {"address": NIC, "resource_class": "crypto", "traits": "fast"},
    {"resource_class": "crypto", "traits": "fast"},
    "CUSTOM_CRYPTO",
)


class SharedHosts(Cloud):
    """Hosts whose devices Nova and os_acc share."""

    def __init__(
        self, nova: libvirt_servers.LibvirtServers, nodes: Mapping[str, ComputeNode]
    ) -> None:
        super().__init__(nova, nodes)
        self.resource_class = ""

    def start(self, host: str) -> None:
        self.nova.start_compute(host, pci_info=self._devices(host))

    def _devices(self, host: str) -> Any:
        """Return the devices that libvirt lists: a NIC, a vGPU parent, and the GPUs."""
        found = libvirt.HostPCIDevicesInfo(
            num_pci=1, num_mdevcap=1, num_pfs=0, num_vfs=0
        )
        for group, gpu in enumerate(self.nodes[host].gpus):
            found.add_device(
                "PCI",
                bus=int(gpu[5:7], 16),
                slot=0,
                function=0,
                iommu_group=group,
                numa_node=0,
                vend_id="10de",
                prod_id="2235",
            )
        return found

    def check_both(self, server: dict[str, Any], host: str = FIRST) -> None:
        """Check a server whose guest has a device of each service."""
        (gpu,) = self.check_held(server["id"], 1, host)
        assert sorted(self.nova.hostdevs(host, server)) == [gpu, NIC]
        assert self.tracked(server["id"]) == [(host, NIC)]
        self.check_providers(host, server["id"])

    def tracked(self, server: str) -> list[tuple[str, str]]:
        """Return the devices that Nova's PCI tracker gave to a server."""
        admin = context.get_admin_context()
        return [
            (
                objects.ComputeNode.get_by_id(admin, each.compute_node_id).host,
                each.address,
            )
            for each in objects.PciDeviceList.get_by_instance_uuid(admin, server)
        ]

    def check_providers(self, host: str, consumer: str) -> None:
        """Check the names, the inventories and the allocations of both services."""
        tree = self.providers(host)
        for gpu in self.nodes[host].gpus:
            uuid = self.nodes[host].provider(gpu)
            (name,) = (each for each in tree if tree[each][0] == uuid)
            assert name.startswith(f"{host}_accel_")
            assert tree[name][1] == {"CUSTOM_ACCELERATOR_GPU"}
        expected = {self.resource_class} if self.resource_class else None
        assert tree.get(f"{host}_{NIC}", (None, None))[1] == expected
        allocated = {
            name
            for each in self.nova.allocations(consumer).values()
            for name in each
            if name.startswith("CUSTOM_")
        }
        assert allocated == {"CUSTOM_ACCELERATOR_GPU"} | (expected or set())

    def add_provider(self, host: str, resource_class: str) -> None:
        """Give a node a unit that neither Nova nor os_acc provides."""
        placement = self.nova.placement
        placement.put(f"/resource_classes/{resource_class}", {}, version="1.7")
        uuid = uuidutils.generate_uuid()
        root = self.nova.compute_rp_uuids[host]
        provider = {
            "name": f"{host}_{uuid}",
            "uuid": uuid,
            "parent_provider_uuid": root,
        }
        placement.post("/resource_providers", provider, version="1.20")
        inventory = {
            "inventories": {resource_class: {"total": 1}},
            "resource_provider_generation": 0,
        }
        placement.put(
            f"/resource_providers/{uuid}/inventories", inventory, version="1.20"
        )

    def providers(self, host: str) -> dict[str, tuple[str, set[str]]]:
        """Return the UUID and the classes of each provider in a node's tree."""
        placement = self.nova.placement
        root = self.nova.compute_rp_uuids[host]
        found = placement.get(f"/resource_providers?in_tree={root}", version="1.14")
        return {
            each["name"]: (
                each["uuid"],
                set(
                    placement.get(
                        f"/resource_providers/{each['uuid']}/inventories"
                    ).body["inventories"]
                ),
            )
            for each in found.body["resource_providers"]
        }


@pytest.fixture
def hosts(nodes: dict[str, ComputeNode]) -> Iterator[SharedHosts]:
    """Yield Nova's services without a compute node."""
    services = libvirt_servers.LibvirtServers(
        lambda name, interval: nodes[name].deferred(interval)
    )
    services.ADDITIONAL_FILTERS = ["PciPassthroughFilter"]
    # Nova's tests do not read the files of the machine.
    of_machine = mock.patch("nova.pci.utils.is_physical_function", return_value=False)
    with nova_cases.running(services) as nova, of_machine:
        yield SharedHosts(nova, nodes)


@pytest.fixture(
    params=[TRACKER, OF_OPERATOR],
    ids=["tracker", "in Placement, class of the operator"],
)
def shared(hosts: SharedHosts, request: pytest.FixtureRequest) -> SharedHosts:
    """Start a host with a device of Nova."""
    request.param.configure(hosts.nova)
    hosts.resource_class = request.param.resource_class
    hosts.start(FIRST)
    return hosts


# -- devices of the PCI tracker ------------------------------------------------


def test_a_server_keeps_the_devices_of_both_on_its_host(shared):
    server = shared.nova.create(BOTH)
    shared.check_both(server)
    shared.nova.reboot(server)
    shared.check_both(server)
    shared.nova.suspend(server)
    assert shared.nova.hostdevs(FIRST, server) == []
    shared.nova.resume(server)
    shared.check_both(server)
    shared.nova.rebuild(server, OTHER_IMAGE)
    shared.check_both(server)
    shared.nova.update_inventory()
    shared.check_both(server)
    shared.nova.restart_compute_service(FIRST)
    shared.nova.stop(server)
    shared.nova.start(server)
    shared.check_both(server)
    shared.nova.delete(server)
    shared.check_free()
    assert shared.tracked(server["id"]) == []


def test_a_server_moves_with_the_devices_of_both(shared):
    server = shared.nova.create(BOTH)
    shared.start(SECOND)
    shared.nova.resize(server, BOTH)
    shared.check_held(shared.nova.migration(server), 1, FIRST)
    shared.nova.revert(server)
    shared.check_free(SECOND)
    shared.check_both(server)
    shared.nova.migrate(server)
    shared.nova.confirm(server)
    shared.check_free(FIRST)
    shared.check_both(server, SECOND)


def test_after_a_cold_snapshot_the_guest_has_the_devices_of_both(hosts):
    """Nova suspends a guest whose image backend has no live snapshots."""
    TRACKER.configure(hosts.nova)
    hosts.start(FIRST)
    server = hosts.nova.create(BOTH)
    suspended = []

    def cold(virt: Any, admin: Any, instance: Any, _image: str, update: Any) -> None:
        arguments = admin, False, power_state.RUNNING, instance
        virt._suspend_guest_for_snapshot(*arguments)
        suspended.append(hosts.nova.hostdevs(FIRST, server))
        virt._resume_guest_after_snapshot(*arguments, virt._host.get_guest(instance))
        update(task_state=task_states.IMAGE_UPLOADING)

    with mock.patch(_LIBVIRT + "driver.LibvirtDriver.snapshot", new=cold):
        hosts.nova.snapshot(server)
    assert suspended == [[]]
    hosts.check_both(server)


# -- mediated devices ----------------------------------------------------------


def test_a_server_has_a_vgpu_and_an_accelerator(hosts):
    hosts.nova.flags(enabled_mdev_types=[libvirt.NVIDIA_11_VGPU_TYPE], group="devices")
    hosts.start(FIRST)
    with mock.patch(
        _LIBVIRT + "driver.LibvirtDriver._create_mdev",
        side_effect=_mdevs_of(hosts.nova, FIRST),
    ):
        server = hosts.nova.create(ONE | {"resources:VGPU": "1"})
        _check_vgpu(hosts, server)
        hosts.nova.reboot(server)
        _check_vgpu(hosts, server)
        hosts.nova.rebuild(server, OTHER_IMAGE)
        _check_vgpu(hosts, server)
    hosts.nova.delete(server)
    hosts.check_free()


def _mdevs_of(nova: libvirt_servers.LibvirtServers, host: str) -> Callable[..., str]:
    """Return a function that lets libvirt have another mediated device."""

    def create(parent: str, kind: str, uuid: str | None = None) -> str:
        uuid = uuid or uuidutils.generate_uuid()
        name = f"mdev_{uuid.replace('-', '_')}"
        device = libvirt.FakeMdevDevice(dev_name=name, type_id=kind, parent=parent)
        nova.driver(host)._host.get_connection().mdev_info.devices[name] = device
        return uuid

    return create


def _check_vgpu(hosts: SharedHosts, server: dict[str, Any]) -> None:
    """Check a server with a vGPU of Nova and a GPU of os_acc."""
    hosts.check_attached(server, 1)
    assert len(hosts.nova.mdevs(FIRST, server)) == 1
    tree = hosts.providers(FIRST)
    assert tree[f"{FIRST}_{libvirt.MDEVCAP_DEV2_PCI_ADDR}"][1] == {"VGPU"}
    allocated = hosts.nova.allocations(server["id"]).values()
    assert {"VGPU": 1} in allocated
    assert {"CUSTOM_ACCELERATOR_GPU": 1} in allocated


# -- one device in the options of both -----------------------------------------


def test_a_device_that_nova_claims_is_not_offered(hosts):
    gpu, *others = hosts.nodes[FIRST].gpus
    spec = {"address": gpu}
    alias = {"vendor_id": "10de", "product_id": "2235"}
    NovaDevices(spec, alias).configure(hosts.nova)
    hosts.start(FIRST)
    servers = [hosts.nova.create(ONE) for _ in others]
    held = [hosts.check_held(each["id"], 1) for each in servers]
    assert sorted(held) == [[each] for each in others]
    novas = hosts.nova.create({"pci_passthrough:alias": "nic:1"})
    assert hosts.nova.hostdevs(FIRST, novas) == [gpu]
    failed = hosts.nova.create(ONE, state="ERROR")
    assert "No valid host" in failed["fault"]["message"]


def test_nova_compute_ends_if_nova_also_names_a_leased_device(hosts):
    hosts.start(FIRST)
    server = hosts.nova.create(ONE)
    (gpu,) = hosts.check_held(server["id"], 1)
    hosts.nova.flags(device_spec=[json.dumps({"address": gpu})], group="pci")
    with pytest.raises(exception.InvalidConfiguration, match=f"names {gpu}, which"):
        hosts.nova.restart_compute_service(FIRST)


def test_a_leased_vf_is_named_by_its_pf():
    pf = {"address": "0000:3b:00.0", "vendor_id": "8086", "product_id": "1592"}
    vf = {
        "address": "0000:3b:02.0",
        "vendor_id": "8086",
        "product_id": "1889",
        "parent_addr": pf["address"],
    }
    held = {"a server": [{"pci_id": vf["address"]}]}
    of_pf, of_other = (
        [json.dumps({"product_id": product})] for product in ("1592", "1593")
    )
    initialization.check_claims(of_other, [pf, vf], held)
    with pytest.raises(exception.InvalidConfiguration, match=vf["address"]):
        initialization.check_claims(of_pf, [pf, vf], held)


def test_nova_may_name_no_device_that_has_the_data_of_a_guest(tmp_path):
    drive = "0000:41:00.0"
    devices = [{"address": drive, "vendor_id": "144d", "product_id": "a824"}]
    named = [json.dumps({"address": drive})]
    spec = HostSpec((drives.nvme_disk("0000:41", 1),))
    with TestHost(tmp_path, spec) as host:
        host.plug(1, drive)
        host.unplug(1)
        node = DeferredNode("node", mock.Mock(), 1.0, host.config())
        unerased = node.unerased()
        with pytest.raises(exception.InvalidConfiguration, match=f"{drive}.*to erase"):
            initialization.check_claims(named, devices, {}, unerased)
        host.restart()
        for path in Path(host.state_path).glob("os_acc.sqlite*"):
            path.unlink()
        host.restart()
        assert node.unerased() == {drive: "an instance of a lost lease"}


def test_nova_may_name_a_drive_that_may_be_a_missing_one(tmp_path):
    """A drive on vfio-pci shows no number: it may be any of its model."""
    drive, novas = "0000:41:00.0", "0000:42:00.0"
    both = HostSpec((drives.nvme_disk("0000:41", 1), drives.nvme_disk("0000:42", 2)))
    named = [json.dumps({"address": drive})]
    with TestHost(tmp_path, both, device_spec=named) as host:
        host.plug(1, drive)
        with host.kernel.installed():
            pci_functions.rebind(PciAddress.parse(novas), "vfio-pci")
        host.unplug(1)
        host.kernel.hot_unplug(drive)
        host.restart()
        node = DeferredNode("node", mock.Mock(), 1.0, host.config())
        assert novas not in node.unerased()


def test_nova_compute_ends_if_nova_names_a_device_that_is_being_erased(hosts):
    hosts.start(FIRST)
    gpu = hosts.nodes[FIRST].gpus[0]
    hosts.nova.flags(device_spec=[json.dumps({"address": gpu})], group="pci")
    found = mock.patch.object(
        DeferredNode, "unerased", return_value={gpu: "instance x"}
    )
    with found, pytest.raises(exception.InvalidConfiguration, match=f"names {gpu}"):
        hosts.nova.restart_compute_service(FIRST)


@pytest.mark.parametrize("resource_class", ["VGPU", "pci_10de_2235", "VCPU"])
def test_nova_compute_ends_if_a_class_is_one_of_novas(nodes, resource_class):
    config = nodes[FIRST].bench.config(
        device_spec=[
            json.dumps({"vendor_id": "10de", "resource_class": resource_class})
        ]
    )
    node = DeferredNode(FIRST, nodes[FIRST].handle, 1.0, config)
    with pytest.raises(
        exception.InvalidConfiguration, match="leaves the resource_class"
    ):
        node.start()


def test_no_guest_starts_with_a_unit_of_nova_in_the_place_of_an_accelerator(hosts):
    """Both services have the same resource class."""
    spec = {"address": NIC, "resource_class": "CUSTOM_ACCELERATOR_GPU"}
    NovaDevices(spec, {"resource_class": "nic"}, spec["resource_class"]).configure(
        hosts.nova
    )
    hosts.start(FIRST)
    mine = [hosts.nova.create(NOT_NOVAS) for _ in hosts.nodes[FIRST].gpus]
    failed = hosts.nova.create(ONE, state="ERROR")
    assert hosts.nova.is_defined(FIRST, failed) is False
    refused = hosts.nova.create(NOT_NOVAS, state="ERROR")
    assert "No valid host" in refused["fault"]["message"]
    for server in mine:
        hosts.check_attached(server, 1)


# -- failures ------------------------------------------------------------------


def test_after_a_failed_migration_units_of_others_do_not_cost_the_lease(hosts):
    for host in (FIRST, SECOND):
        hosts.start(host)
        hosts.add_provider(host, "CUSTOM_LICENCE")
    licensed = {"resources2:CUSTOM_LICENCE": "1", "group_policy": "none"}
    server = hosts.nova.create(ONE | licensed, host=FIRST)
    (before,) = hosts.nodes[FIRST].leases()[server["id"]]
    name = "nova.compute.manager.ComputeManager._terminate_volume_connections"
    with mock.patch(name, side_effect=OSError("no route")):
        hosts.nova.fail_to_migrate(server)
    assert hosts.nova.migration(server) in hosts.nodes[FIRST].leases()
    hosts.nova.reboot_in_error(server)
    (after,) = hosts.nodes[FIRST].leases()[server["id"]]
    assert after.uuid == before.uuid
    hosts.check_attached(server, 1)


def test_a_guest_does_not_resume_without_the_device_of_nova(hosts):
    TRACKER.configure(hosts.nova)
    hosts.start(FIRST)
    server = hosts.nova.create(BOTH)
    hosts.nova.suspend(server)
    name = _LIBVIRT + "guest.Guest.attach_device"
    with mock.patch(name, side_effect=OSError("no IOMMU group")) as attached:
        hosts.nova.refuse(server, {"resume": None}, "resume")
    assert attached.call_count == 1
    assert not hosts.nova.is_running(FIRST, server)
    hosts.check_held(server["id"], 1)
