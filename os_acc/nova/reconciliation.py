# SPDX-License-Identifier: Apache-2.0

"""Release the accelerators of servers that have left this host unnoticed.

Nova calls no driver when a server is deleted while nova-compute is stopped, nor on the
source host when ``finish_resize`` fails on the destination. A lease is released if all
of these conditions hold:

* It is old enough: an allocation may be written after the lease.
* Placement has no allocation of its provider, neither for the consumer nor for the
  server of a migration.
* Nova's database has no such server on this host.
* libvirt runs no guest with the device. Of a server that has moved, the source keeps a
  definition; it counts only while the guest runs.

If an answer is missing, the lease stays until the next round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import oslo_messaging
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import vm_states
from nova.conf import CONF
from oslo_log import log

import os_acc
from os_acc import deadlines, exception
from os_acc.nova.guest_devices import GuestDevices
from os_acc.nova.initialization import DeferredNode
from os_acc.nova.options import DriverSettings
from os_acc.objects.api import AcceleratorEntry

LOG = log.getLogger(__name__)

#: Errors of a question that another round may answer.
_PASSING = (
    exception.OsAccError,
    nova_exception.NovaException,
    oslo_messaging.MessagingException,
)
#: The state of an accelerator that waits for an operator.
_QUARANTINED = "UnbindFailed"


class LeaseReconciler:
    """Compare leases with allocations, servers and guests, once or periodically.

    :param node: the node's handle.
    :param allocations_of: returns the allocations of a consumer in Placement.
    :param guest_devices: returns the devices in the definition that libvirt has of a
        server's guest, and whether it runs; None: there is no definition.
    :param host: the name of this compute service.
    """

    def __init__(
        self,
        node: DeferredNode,
        allocations_of: Callable[[Any, str], Mapping[str, Any]],
        guest_devices: Callable[[str], tuple[GuestDevices, bool] | None],
        host: str,
    ) -> None:
        self._node, self._host = node, host
        self._allocations_of = allocations_of
        self._guest_devices = guest_devices
        self._ended = threading.Event()

    def start(self) -> None:
        """Run rounds in a thread of this process until :meth:`stop`."""
        try:
            deadlines.start(self._run)
        except exception.DeviceStuck as error:
            LOG.error("leases are compared only when nova-compute starts: %s", error)

    def stop(self) -> None:
        """End the thread after its round."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(DriverSettings.load(CONF).reconcile_interval):
            self.run_once(nova_context.get_admin_context())

    def run_once(self, context: Any) -> None:
        """Release the leases of each consumer that is proven to have left."""
        try:
            node = self._node.ready()
            held = self._node.attached()
        except exception.OsAccError as error:
            LOG.debug("leases are not compared with Nova's servers: %s", error)
            return
        age = DriverSettings.load(CONF).reconcile_age
        for consumer, entries in held.items():
            if all(entry["state"] == _QUARANTINED for entry in entries):
                continue
            try:
                if _are_older(entries, age) and self._has_left(
                    context, consumer, entries
                ):
                    released = node.unplug({"uuid": consumer})
                    LOG.warning(
                        "consumer %s has left this host: released %d accelerators",
                        consumer,
                        released,
                    )
            except _PASSING as error:
                LOG.warning(
                    "cannot reconcile the leases of consumer %s: %s", consumer, error
                )

    def _has_left(
        self, context: Any, consumer: str, entries: Sequence[AcceleratorEntry]
    ) -> bool:
        server = _server_of(context, consumer)
        providers = {entry["device_rp_uuid"] for entry in entries}
        if any(
            providers & set(self._allocations_of(context, each))
            for each in {consumer, server}
        ):
            return False
        is_here = self._is_here(context, server)
        if is_here and server == consumer:
            return False
        found = self._guest_devices(server)
        if found is None:
            return True
        devices, is_running = found
        return not devices & GuestDevices.of_entries(entries) or not (
            is_running or is_here or server == consumer
        )

    def _is_here(self, context: Any, server: str) -> bool:
        """Return whether Nova's database has a server on this host."""
        try:
            instance = objects.Instance.get_by_uuid(context, server)
        except nova_exception.InstanceNotFound:
            return False
        return bool(
            instance.host == self._host
            and instance.vm_state != vm_states.SHELVED_OFFLOADED
        )


def _are_older(entries: Sequence[AcceleratorEntry], seconds: float) -> bool:
    return all(os_acc.held_seconds(entry) >= seconds for entry in entries)


def _server_of(context: Any, consumer: str) -> str:
    """Return the UUID of the server: that of a migration, or the consumer itself."""
    try:
        migration = objects.Migration.get_by_uuid(context, consumer)
    except nova_exception.MigrationNotFound:
        return consumer
    return str(migration.instance_uuid)
