# SPDX-License-Identifier: Apache-2.0

"""The operations of ``openstack server`` that tests do on either virt driver."""

from __future__ import annotations

import contextlib
import datetime
import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from nova import context
from nova.tests.functional import integrated_helpers
from oslo_utils import timeutils

_FLAVOR = {"memory_mb": 512, "vcpu": 1, "disk": 1, "ephemeral": 0}
#: Seconds until an operation must have ended.
_DEADLINE = 120.0
#: Nova's methods that poll for some seconds, too few on a busy machine.
_POLLING = (
    "_wait_for_server_parameter",
    "_wait_for_instance_action_event",
    "_wait_for_migration_status",
    "_wait_for_volume_attach",
    "_wait_for_volume_detach",
)
_VOLUME = "33333333-3333-4333-8333-333333333333"


class ServerOperations(integrated_helpers.InstanceHelperMixin):  # type: ignore[misc]
    """Do one operation and wait for its end; for a class of Nova's tests."""

    microversion = "latest"

    def setUp(self) -> None:
        self.flags(
            api_paste_config=f"{sys.prefix}/etc/nova/api-paste.ini", group="wsgi"
        )
        # A server is offloaded by the operation alone, never by the time.
        self.flags(shelved_offload_time=-1)
        super().setUp()
        self.notifier.wait_for_versioned_notifications = functools.partial(
            self.notifier.wait_for_versioned_notifications, timeout=_DEADLINE
        )

    def runTest(self) -> None:
        """Do nothing: the tests are in other classes."""

    def allocations(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return the amounts that Placement has for a consumer, by provider."""
        found = self.placement.get(f"/allocations/{consumer}").body["allocations"]
        return {provider: each["resources"] for provider, each in found.items()}

    # -- a server begins and ends ------------------------------------------------

    def flavor(self, extra_specs: dict[str, str], **more: int) -> str:
        """Return the id of a new flavor."""
        found: str = self._create_flavor(**_FLAVOR | more, extra_spec=extra_specs)
        return found

    def create(
        self, extra_specs: dict[str, str], state: str = "ACTIVE", **more: Any
    ) -> dict[str, Any]:
        server: dict[str, Any] = self._create_server(
            flavor_id=self.flavor(extra_specs),
            networks="none",
            expected_state=state,
            **more,
        )
        return server

    def delete(self, server: dict[str, Any]) -> None:
        self._delete_server(server)

    def delete_softly(self, server: dict[str, Any]) -> None:
        self.flags(reclaim_instance_interval=60)
        self.api.delete_server(server["id"])
        self._wait_for_state_change(server, "SOFT_DELETED")

    def restore(self, server: dict[str, Any]) -> None:
        self._act(server, "restore", "ACTIVE")

    def _reclaim(self, service: Any, server: dict[str, Any]) -> None:
        """Run the periodic task of a compute service an hour later."""
        later = timeutils.utcnow() + datetime.timedelta(hours=1)
        with mock.patch("oslo_utils.timeutils.utcnow", return_value=later):
            service.manager._reclaim_queued_deletes(context.get_admin_context())
        self._wait_until_deleted(server)

    # -- its guest ends and starts again -------------------------------------------

    def stop(self, server: dict[str, Any]) -> None:
        self._stop_server(server)

    def start(self, server: dict[str, Any]) -> None:
        self._start_server(server)

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

    # -- its guest stays ---------------------------------------------------------

    def pause(self, server: dict[str, Any]) -> None:
        self._act(server, "pause", "PAUSED")

    def unpause(self, server: dict[str, Any]) -> None:
        self._act(server, "unpause", "ACTIVE")

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

    def snapshot(self, server: dict[str, Any]) -> str:
        """Return the UUID of a new image of a server."""
        before = set(self.glance.images)
        self._snapshot_server(server, "snapshot")
        self._wait_until_idle(server)
        (image,) = set(self.glance.images) - before
        self.glance.images[image]["status"] = "active"
        return str(image)

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

    def set_metadata(self, server: dict[str, Any]) -> None:
        self.api.post_server_metadata(server["id"], {"key": "value"})

    def unset_metadata(self, server: dict[str, Any]) -> None:
        self.api.delete_server_metadata(server["id"], "key")

    def read_console(self, server: dict[str, Any]) -> None:
        body = {"os-getConsoleOutput": {}}
        found = self.api.post_server_action(server["id"], body)
        assert isinstance(found["output"], str)

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

    # -- the end of an operation ---------------------------------------------------

    def _wait_until_idle(self, server: dict[str, Any]) -> None:
        self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})

    def _act(self, server: dict[str, Any], action: str, state: str) -> None:
        self.api.post_server_action(server["id"], {action: None})
        self._wait_for_state_change(server, state)


def wait_until(read: Callable[[], Any], is_done: Callable[[Any], bool]) -> Any:
    """Read a value until it is as expected; return it."""
    deadline = time.monotonic() + 300
    while not is_done(found := read()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Let Nova's helpers poll for longer than their seconds, in a block."""
    helper = integrated_helpers.InstanceHelperMixin
    with contextlib.ExitStack() as patched:
        for name in _POLLING:
            wait = functools.partialmethod(_patiently, getattr(helper, name))
            patched.enter_context(mock.patch.object(helper, name, wait))
        yield


def _patiently(case: Any, wait: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Repeat a method of Nova that polls until its limit, up to ours."""
    deadline = time.monotonic() + _DEADLINE
    while True:
        try:
            return wait(case, *args, **kwargs)
        except AssertionError:
            if time.monotonic() > deadline:
                raise
