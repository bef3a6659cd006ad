# SPDX-License-Identifier: Apache-2.0

"""Nova's API, conductor, scheduler and compute manager, and Placement, in this process.

The virt driver is Nova's fake one, and os_acc adds its providers to the tree.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from typing import Any

import fixtures
from nova import context
from nova.tests.functional import integrated_helpers
from nova.virt import fake
from oslo_utils import timeutils

from tests.functional.nova.compute import Update

_VOLUME = "33333333-3333-4333-8333-333333333333"
_FLAVOR = {"memory_mb": 512, "vcpu": 1, "disk": 1, "ephemeral": 0}


#: Methods of a virt driver that start or end the process of a guest.
_OF_GUEST = (
    "destroy",
    "power_off",
    "power_on",
    "reboot",
    "rescue",
    "resume",
    "spawn",
    "suspend",
)


def _noted(name: str, calls: list[str]) -> Callable[..., Any]:
    def method(driver: fake.FakeDriver, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return getattr(fake.FakeDriver, name)(driver, *args, **kwargs)

    return method


def _driver(update: Update, calls: list[str], dumps: list[str]) -> type[Any]:
    class OsAccDriver(fake.FakeDriver):  # type: ignore[misc]
        def trigger_crash_dump(self, instance: Any) -> None:
            dumps.append(instance.uuid)

        def update_provider_tree(
            self, provider_tree: Any, nodename: str, allocations: Any = None
        ) -> None:
            super().update_provider_tree(provider_tree, nodename, allocations)
            update(provider_tree, nodename)

    for name in _OF_GUEST:
        setattr(OsAccDriver, name, _noted(name, calls))
    return OsAccDriver


class Servers(integrated_helpers.ProviderUsageBaseTestCase):  # type: ignore[misc]
    """One compute node, and the operations of ``openstack server`` on it.

    :param host: the name of the compute service and of its node.
    :ivar guest_calls: the driver's methods that Nova has called to start or end the
        process of a guest.
    :ivar dumps: the servers whose crash dump Nova has triggered.
    """

    #: Below ``nova.virt``, where Nova looks for drivers.
    compute_driver = "fake.OsAccDriver"

    def __init__(self, host: str, update: Update) -> None:
        super().__init__()
        self._host = host
        self.guest_calls: list[str] = []
        self.dumps: list[str] = []
        self._driver = _driver(update, self.guest_calls, self.dumps)

    def setUp(self) -> None:
        self.flags(
            api_paste_config=f"{sys.prefix}/etc/nova/api-paste.ini", group="wsgi"
        )
        # A server is offloaded by the operation alone, never by the time.
        self.flags(shelved_offload_time=-1)
        super().setUp()
        self.useFixture(
            fixtures.MonkeyPatch(f"nova.virt.{self.compute_driver}", self._driver)
        )
        self._compute = self.start_service("compute", host=self._host)

    def runTest(self) -> None:
        """Do nothing: the tests are in other classes."""

    def allocations(self, server: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Return the amounts that Placement has for a server, by provider."""
        found = self._get_allocations_by_server_uuid(server["id"])
        return {provider: each["resources"] for provider, each in found.items()}

    def create(self, extra_specs: dict[str, str]) -> dict[str, Any]:
        flavor = self._create_flavor(**_FLAVOR, extra_spec=extra_specs)
        server: dict[str, Any] = self._create_server(flavor_id=flavor, networks="none")
        return server

    def stop(self, server: dict[str, Any]) -> None:
        self._stop_server(server)

    def start(self, server: dict[str, Any]) -> None:
        self._start_server(server)

    def pause(self, server: dict[str, Any]) -> None:
        self._act(server, "pause", "PAUSED")

    def unpause(self, server: dict[str, Any]) -> None:
        self._act(server, "unpause", "ACTIVE")

    def suspend(self, server: dict[str, Any]) -> None:
        self._suspend_server(server)

    def resume(self, server: dict[str, Any]) -> None:
        self._resume_server(server)

    def lock(self, server: dict[str, Any]) -> None:
        self.api.post_server_action(server["id"], {"lock": None})
        assert self.api.get_server(server["id"])["locked"]

    def unlock(self, server: dict[str, Any]) -> None:
        self.api.post_server_action(server["id"], {"unlock": None})
        assert not self.api.get_server(server["id"])["locked"]

    def set_password(self, server: dict[str, Any]) -> None:
        body = {"changePassword": {"adminPass": "another"}}
        self.api.post_server_action(server["id"], body)
        self._wait_until_idle(server)

    def dump(self, server: dict[str, Any]) -> None:
        self._act(server, "trigger_crash_dump", "ACTIVE")
        end = "instance.trigger_crash_dump.end"
        self.notifier.wait_for_versioned_notifications(end)

    def snapshot(self, server: dict[str, Any]) -> None:
        self._snapshot_server(server, "snapshot")
        self._wait_until_idle(server)

    def backup(self, server: dict[str, Any]) -> None:
        kind = {"name": "backup", "backup_type": "daily", "rotation": 1}
        self.api.post_server_action(server["id"], {"createBackup": kind})
        self._wait_until_idle(server)

    def add_port(self, server: dict[str, Any]) -> None:
        self.neutron.create_port({"port": self.neutron.port_2})
        self._attach_interface(server, self.neutron.port_2["id"])

    def remove_port(self, server: dict[str, Any]) -> None:
        self._detach_interface(server, self.neutron.port_2["id"])

    def add_volume(self, server: dict[str, Any]) -> None:
        self._attach_volume(server, _VOLUME)

    def remove_volume(self, server: dict[str, Any]) -> None:
        self.api.delete_server_volume(server["id"], _VOLUME)
        self._wait_for_volume_detach(server["id"], _VOLUME)

    def rename(self, server: dict[str, Any]) -> None:
        self.api.put_server(server["id"], {"server": {"name": "another"}})
        assert self.api.get_server(server["id"])["name"] == "another"

    def set_state(self, server: dict[str, Any]) -> None:
        for state in ("error", "active"):
            body = {"os-resetState": {"state": state}}
            self.api.post_server_action(server["id"], body)
            self._wait_for_server_parameter(
                server, {"status": state.upper()}, wait_for_fault_key=False
            )

    def shelve(self, server: dict[str, Any]) -> None:
        self._shelve_server(server, expected_state="SHELVED")

    def offload(self, server: dict[str, Any]) -> None:
        self._shelve_offload_server(server)

    def unshelve(self, server: dict[str, Any]) -> None:
        self._unshelve_server(server)

    def delete(self, server: dict[str, Any]) -> None:
        self._delete_server(server)

    def delete_softly(self, server: dict[str, Any]) -> None:
        self.flags(reclaim_instance_interval=60)
        self.api.delete_server(server["id"])
        self._wait_for_state_change(server, "SOFT_DELETED")

    def restore(self, server: dict[str, Any]) -> None:
        self._act(server, "restore", "ACTIVE")

    def reclaim(self, server: dict[str, Any]) -> None:
        """Run Nova's periodic task an hour later."""
        timeutils.set_time_override(timeutils.utcnow() + datetime.timedelta(hours=1))
        try:
            self._compute.manager._reclaim_queued_deletes(context.get_admin_context())
        finally:
            timeutils.clear_time_override()
        self._wait_until_deleted(server)

    def _wait_until_idle(self, server: dict[str, Any]) -> None:
        self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})

    def _act(self, server: dict[str, Any], action: str, state: str) -> None:
        self.api.post_server_action(server["id"], {action: None})
        self._wait_for_state_change(server, state)
