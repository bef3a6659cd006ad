# SPDX-License-Identifier: Apache-2.0

"""Nova's services with the driver of os_acc, on Nova's own fake of libvirt.

The API, the conductor, the scheduler, the compute services and Placement are real, and
run in this process. Casts stay casts: as calls, a failed ``finish_resize`` would be
rescheduled, which nova-compute never does.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
from keystoneauth1 import exceptions
from lxml import etree
from nova import context, objects
from nova.cmd import manage
from nova.compute import task_states, vm_states
from nova.conf import CONF
from nova.policies import base as base_policies
from nova.policies import servers as server_policies
from nova.tests.fixtures import libvirt
from nova.tests.functional.libvirt import base
from nova.virt.libvirt import driver
from oslo_privsep import daemon
from oslo_utils.versionutils import convert_version_to_int as version

from os_acc import conf
from os_acc.nova import loading
from os_acc.nova.initialization import DeferredNode
from tests.functional.nova import nova_cases, operations

_CHANNEL = daemon.RootwrapClientChannel
#: Returns the handle of os_acc for the name of a compute node, and the seconds between
#: two attempts to initialize it.
Nodes = Callable[[str, float], DeferredNode]


def _oldest(kind: str) -> dict[str, int]:
    """Return the oldest versions with which Nova migrates its own devices."""
    return {
        f"{each.lower()}_version": version(vars(driver)[f"MIN_{kind}_{each}_VERSION"])
        for each in ("LIBVIRT", "QEMU")
    }


#: Arguments of ``start_compute``; the defaults are too old for a live migration.
MOVES_MDEVS, MOVES_FUNCTIONS = _oldest("MDEV_LIVEMIG"), _oldest("VFIO_PCI_VARIANT")


def served_by(nodes: Nodes) -> fixtures.MonkeyPatch:
    """Return a fixture in which the driver of os_acc has these nodes."""
    return fixtures.MonkeyPatch(
        "os_acc.nova.driver.LibvirtDriver._new_node",
        lambda driver, interval: nodes(driver._host.get_hostname(), interval),
    )


class LibvirtServers(operations.ServerOperations, base.ServersTestBase):  # type: ignore[misc]
    """Compute services, and the operations of ``openstack server`` on them."""

    ADMIN_API = True
    CAST_AS_CALL = False

    def __init__(self, nodes: Nodes) -> None:
        super().__init__()
        self._nodes = nodes

    def setUp(self) -> None:
        super().setUp()
        conf.DriverSettings.load(CONF)
        loading.extend_nova_virt()
        self.useFixture(served_by(self._nodes))

        # Nova's tests start no privileged helper; these have one of their own.
        self.useFixture(
            fixtures.MonkeyPatch("oslo_privsep.daemon.RootwrapClientChannel", _CHANNEL)
        )

        # Nova's fake of libvirt fails to migrate any guest.
        name = "nova.tests.fixtures.libvirt.Domain.migrateToURI3"
        self.useFixture(fixtures.MonkeyPatch(name, self._migrated))

        # There are no files of disks that could be moved or copied.
        for method, replacement in (
            ("migrate_disk_and_power_off", _power_off),
            ("snapshot", _upload),
        ):
            self.useFixture(
                fixtures.MonkeyPatch(
                    f"nova.virt.libvirt.driver.LibvirtDriver.{method}", replacement
                )
            )

    def _setup_compute_service(self) -> None:
        self.flags(compute_driver=loading.DRIVER)

    # -- guests ----------------------------------------------------------------

    def driver(self, host: str) -> Any:
        """Return the virt driver of a compute service."""
        return self.computes[host].driver

    def hostdevs(self, host: str, server: dict[str, Any]) -> list[str]:
        """Return the PCI addresses in the definition of a guest."""
        return [_address(each) for each in self._sources(host, server, "pci")]

    def mdevs(self, host: str, server: dict[str, Any]) -> list[str]:
        """Return the UUIDs of the mediated devices in the definition of a guest."""
        return [each.get("uuid") for each in self._sources(host, server, "mdev")]

    def _sources(self, host: str, server: dict[str, Any], kind: str) -> list[Any]:
        connection = self.driver(host)._host.get_connection()
        return _hostdevs(connection.lookupByUUIDString(server["id"]), kind)

    def is_running(self, host: str, server: dict[str, Any]) -> bool:
        """Return whether libvirt runs the guest of a server, be it paused."""
        return any(guest.UUIDString() == server["id"] for guest in self._running(host))

    @contextlib.contextmanager
    def outdated(self, host: str, program: str, release: str) -> Iterator[None]:
        """Let a host have an old libvirt or QEMU, in a block."""
        connection = self.driver(host)._host.get_connection()
        name = {"libvirt": "getLibVersion", "QEMU": "getVersion"}[program]
        with mock.patch.object(connection, name, return_value=version(release)):
            yield

    def devices_in_use(self, host: str) -> set[str]:
        """Return the PCI addresses in the definitions of the guests that run."""
        return {
            _address(each)
            for guest in self._running(host)
            for each in _hostdevs(guest, "pci")
        }

    def _running(self, host: str) -> list[Any]:
        # The state of a saved guest is "running" in Nova's fake.
        return list(self.driver(host)._host.get_connection()._running_vms.values())

    def reserved(self, provider: str) -> int:
        """Return the reserved units of a provider in Placement."""
        (record,) = self._get_provider_inventory(provider).values()
        found: int = record["reserved"]
        return found

    def deallocate(self, consumer: str) -> None:
        """Delete an allocation as ``openstack resource provider allocation delete``."""
        assert self.placement.delete(f"/allocations/{consumer}").status == 204

    def heal(self, server: dict[str, Any]) -> int:
        """Run ``nova-manage placement heal_allocations``; return its exit status."""
        command = manage.PlacementCommands()
        status: int = command.heal_allocations(instance_uuid=server["id"])
        return status

    def wait_for_allocation(self, consumer: str, wanted: dict[str, Any]) -> None:
        """Wait until a consumer has exactly this allocation."""
        operations.wait_until(
            lambda: self.allocations(consumer), lambda found: found == wanted
        )

    def consumers(self, providers: Iterable[str]) -> set[str]:
        """Return the consumers of these providers in Placement."""
        return {
            consumer
            for provider in providers
            for consumer in self._get_allocations_by_provider_uuid(provider)
        }

    # -- operations ------------------------------------------------------------

    def begin(self, extra_specs: dict[str, str]) -> dict[str, Any]:
        """Create a server, and do not wait."""
        body = self._build_server(flavor_id=self.flavor(extra_specs), networks="none")
        server: dict[str, Any] = self.api.post_server({"server": body})
        return server

    def settled(self, server: dict[str, Any]) -> str:
        """Wait until a server is created, or not; return its status."""
        found: str = operations.wait_until(
            lambda: self.api.get_server(server["id"])["status"],
            lambda status: status != "BUILD",
        )
        return found

    def reboot(self, server: dict[str, Any], *, hard: bool = True) -> None:
        self._reboot_server(server, hard=hard)

    def rebuild(self, server: dict[str, Any], image: str) -> None:
        self._rebuild_server(server, image)

    def rescue(self, server: dict[str, Any]) -> None:
        # Nova's tests replace the function that creates the directory of a server.
        Path(CONF.instances_path, server["id"]).mkdir(exist_ok=True)
        self._act(server, "rescue", "RESCUE")

    def unrescue(self, server: dict[str, Any]) -> None:
        self._act(server, "unrescue", "ACTIVE")

    def reclaim(self, host: str, server: dict[str, Any]) -> None:
        """Run Nova's periodic task an hour later."""
        self._reclaim(self.computes[host], server)

    def image_with(self, **properties: str) -> str:
        """Return the UUID of a new image with these properties."""
        image = dict(
            self.glance.images[self.glance.auto_disk_config_enabled_image["id"]]
        )
        image |= {"id": str(uuid.uuid4()), "properties": properties}
        return str(self.glance.create(None, image)["id"])

    def migrate(self, server: dict[str, Any], host: str | None = None) -> None:
        """Move a server to another host, undecided."""
        self._migrate_server(server, host)

    def resize(self, server: dict[str, Any], extra_specs: dict[str, str]) -> None:
        self._resize_server(server, self.flavor(extra_specs, vcpu=2))

    def evacuate(self, server: dict[str, Any]) -> None:
        # Nova leaves an evacuated server stopped.
        self._evacuate_server(server)
        self.start(server)

    def _migrated(
        self, guest: Any, destination: str, params: dict[str, Any], flags: int
    ) -> None:
        del flags
        (host,) = (each for each in self.computes if f"/{each}/" in destination)
        connection = self.driver(host)._host.get_connection()
        connection.createXML(params["destination_xml"], 0)
        guest.complete_job()

    def live_migrate(self, server: dict[str, Any]) -> None:
        """Move a running server to the other host."""
        source = self.host_of(server)
        self._live_migrate(server)
        # Nova's fake of libvirt leaves the guest at its source.
        for guest in self._guests(source):
            if guest.UUIDString() == server["id"]:
                guest.destroy()
                guest.undefine()

    def begin_live_migration(self, server: dict[str, Any]) -> None:
        """Request the migration of a running server, to a host of Nova's choice."""
        body = {"os-migrateLive": {"host": None, "block_migration": "auto"}}
        self.api.post_server_action(server["id"], body)

    def fail_to_move(self, server: dict[str, Any]) -> None:
        """Migrate a running server; the check on its host fails."""
        self._live_migrate(server, migration_expected_state="error")

    def confirm(self, server: dict[str, Any]) -> None:
        self._confirm_resize(server)

    def revert(self, server: dict[str, Any]) -> None:
        self._revert_resize(server)

    def migration(self, server: dict[str, Any]) -> str:
        """Return the UUID of the newest migration of a server."""
        return str(self._newest_migration(server)["uuid"])

    def path_of_migration(self, server: dict[str, Any]) -> str:
        """Return the path of a server's newest migration in Nova's API."""
        number = self._newest_migration(server)["id"]
        return f"/servers/{server['id']}/migrations/{number}"

    def _newest_migration(self, server: dict[str, Any]) -> dict[str, Any]:
        migrations = self.api.api_get("/os-migrations").body["migrations"]
        found: list[dict[str, Any]] = [
            each for each in migrations if each["instance_uuid"] == server["id"]
        ]
        return found[0]

    def host_of(self, server: dict[str, Any]) -> str:
        found: str = self.api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"]
        return found

    def stop_host(self, host: str) -> None:
        """Stop a compute service, and let Nova believe that its host is down."""
        self.computes[host].stop()
        self._force_down(host, True)

    def start_host(self, host: str) -> None:
        """Start a compute service again, on the guests that it left."""
        self.restart_compute_service(host)
        self._force_down(host, False)

    def _force_down(self, host: str, is_down: bool) -> None:
        (service,) = self.api.get_services(host=host, binary="nova-compute")
        self.api.put_service_force_down(service["id"], is_down)

    def reboot_host(self, host: str) -> None:
        """Start a compute service on a host that has just booted."""
        self.end_guests(host)
        self.restart_compute_service(host)

    def forget_guests(self, host: str) -> None:
        """Let libvirt have no guest on a host."""
        for guest in self._guests(host):
            guest.destroy()
            guest.undefine()

    def run_guests(self, host: str) -> None:
        """Start the guests of a host without Nova."""
        for guest in self._guests(host):
            guest.create()

    def end_guests(self, host: str) -> None:
        """Let the guests of a host end; libvirt keeps their definitions."""
        for guest in self._guests(host):
            guest.destroy()

    def _guests(self, host: str) -> list[Any]:
        connection = self.driver(host)._host.get_connection()
        return list(
            connection.listAllDomains(
                libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
                | libvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE
            )
        )

    # -- failures --------------------------------------------------------------

    def refuse(self, server: dict[str, Any], action: dict[str, Any], name: str) -> None:
        """Do an action on a server, which fails on its host."""
        self.api.post_server_action(server["id"], action)
        self._wait_for_action_fail_completion(server, name, f"compute_{name}_instance")

    def fail_to_start(self, server: dict[str, Any]) -> None:
        self.refuse(server, {"os-start": None}, "start")

    def fail_to_rebuild(self, server: dict[str, Any], image: str) -> None:
        self.refuse(server, {"rebuild": {"imageRef": image}}, "rebuild")

    def fail_to_migrate(self, server: dict[str, Any]) -> None:
        self._migrate_server(server, expected_state="ERROR")
        self._wait_until_idle(server)

    def fail_to_resize(
        self, server: dict[str, Any], extra_specs: dict[str, str]
    ) -> None:
        self.begin_resize(server, extra_specs)
        self._wait_for_state_change(server, "ERROR")
        self._wait_until_idle(server)

    def fail_to_leave(self, server: dict[str, Any]) -> None:
        """Migrate a server, which its host refuses."""
        self.api.post_server_action(server["id"], {"migrate": None})
        self._wait_for_action_fail_completion(
            server, "migrate", "compute_resize_instance"
        )

    def begin_migration(self, server: dict[str, Any]) -> None:
        """Migrate a server, and do not wait."""
        self.api.post_server_action(server["id"], {"migrate": None})

    def begin_resize(self, server: dict[str, Any], extra_specs: dict[str, str]) -> None:
        """Resize a server, and do not wait."""
        body = {"resize": {"flavorRef": self.flavor(extra_specs, vcpu=2)}}
        self.api.post_server_action(server["id"], body)

    def interrupt(self, server: dict[str, Any]) -> None:
        """Leave a server in the database as nova-compute does that ends in a resize."""
        instance = objects.Instance.get_by_uuid(
            context.get_admin_context(), server["id"]
        )
        instance.vm_state = vm_states.ACTIVE
        instance.task_state = task_states.RESIZE_MIGRATING
        instance.save()

    def reset_state(self, server: dict[str, Any]) -> None:
        body = {"os-resetState": {"state": "active"}}
        self.api.post_server_action(server["id"], body)

    def reboot_in_error(self, server: dict[str, Any]) -> None:
        """Reboot a server after a failure that Nova has recorded."""
        self.reset_state(server)
        self.reboot(server)

    def wait_for_end(self, server: dict[str, Any], action: str, event: str) -> None:
        """Wait until an event of the newest action of this name has ended."""
        newest = next(
            each
            for each in self.api.get_instance_actions(server["id"])
            if each["action"] == action
        )
        request = newest["request_id"]
        operations.wait_until(
            lambda: self.api.get_instance_action_details(server["id"], request),
            lambda found: any(
                each["event"] == event and each["result"] for each in found["events"]
            ),
        )

    def is_defined(self, host: str, server: dict[str, Any]) -> bool:
        """Return whether libvirt has a guest of a server."""
        return any(guest.UUIDString() == server["id"] for guest in self._guests(host))

    @contextlib.contextmanager
    def placement_down(self) -> Iterator[None]:
        """Let Placement give no answer, in a block."""
        with mock.patch(
            "nova.scheduler.client.report.SchedulerReportClient.get_allocs_for_consumer",
            side_effect=exceptions.ConnectFailure("placement is down"),
        ):
            yield

    # -- the periodic tasks ----------------------------------------------------

    def reconcile(self, host: str) -> None:
        self.driver(host)._reconciler.run_once(context.get_admin_context())

    def update_inventory(self) -> None:
        """Run Nova's periodic update of Placement."""
        self._run_periodics()


@contextlib.contextmanager
def running(
    kind: Callable[..., LibvirtServers], nodes: Mapping[str, Any], **parameters: Any
) -> Iterator[LibvirtServers]:
    """Start Nova's services of this kind, without compute nodes, in a block.

    :param nodes: the :class:`ComputeNode` of each name.
    :param parameters: of the kind.
    """
    services = kind(lambda name, interval: nodes[name].deferred(interval), **parameters)
    with nova_cases.running(services) as nova:
        yield nova


class TwoCells(LibvirtServers):
    """Services of two cells, and the permission to resize between the cells."""

    NUMBER_OF_CELLS = 2

    def setUp(self) -> None:
        super().setUp()
        rule = {server_policies.CROSS_CELL_RESIZE: base_policies.RULE_ADMIN_API}
        self.policy.set_rules(rule, overwrite=False)

    def confirm(self, server: dict[str, Any]) -> None:
        self._confirm_resize(server, cross_cell=True)


def _power_off(host: Any, _context: Any, instance: Any, *_: Any) -> str:
    host.power_off(instance)
    return "[]"


def _upload(
    _host: Any, _context: Any, _instance: Any, _image: str, update: Any
) -> None:
    update(task_state=task_states.IMAGE_UPLOADING)


def _hostdevs(guest: Any, kind: str) -> list[Any]:
    """Return the addresses of the devices of a kind in the definition of a guest."""
    path = f"devices/hostdev[@type='{kind}']/source/address"
    found: list[Any] = etree.fromstring(guest.XMLDesc(0)).findall(path)
    return found


def _address(source: Any) -> str:
    domain, bus, slot, function = (
        int(source.get(part), 16) for part in ("domain", "bus", "slot", "function")
    )
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
