# SPDX-License-Identifier: Apache-2.0

"""Nova's API, conductor, scheduler and compute manager, and Placement, in this process.

The virt driver is Nova's fake one, and os_acc adds its providers to the tree.
"""

from __future__ import annotations

import datetime
import sys
from typing import Any

import fixtures
from nova import context
from nova.tests.functional import integrated_helpers
from nova.virt import fake
from oslo_utils import timeutils

from tests.functional.nova.compute import Update

_FLAVOR = {"memory_mb": 512, "vcpu": 1, "disk": 1, "ephemeral": 0}


def _driver(update: Update) -> type[fake.FakeDriver]:
    class OsAccDriver(fake.FakeDriver):  # type: ignore[misc]
        def update_provider_tree(
            self, provider_tree: Any, nodename: str, allocations: Any = None
        ) -> None:
            super().update_provider_tree(provider_tree, nodename, allocations)
            update(provider_tree, nodename)

    return OsAccDriver


class Servers(integrated_helpers.ProviderUsageBaseTestCase):  # type: ignore[misc]
    """One compute node, and the operations of ``openstack server`` on it.

    :param host: the name of the compute service and of its node.
    """

    #: Below ``nova.virt``, where Nova looks for drivers.
    compute_driver = "fake.OsAccDriver"

    def __init__(self, host: str, update: Update) -> None:
        super().__init__()
        self._host = host
        self._driver = _driver(update)

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

    def _act(self, server: dict[str, Any], action: str, state: str) -> None:
        self.api.post_server_action(server["id"], {action: None})
        self._wait_for_state_change(server, state)
