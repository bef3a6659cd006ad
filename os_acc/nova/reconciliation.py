# SPDX-License-Identifier: Apache-2.0

"""Release the accelerators of servers that have left this host unnoticed.

Nova calls no driver when a server is deleted while nova-compute is stopped, nor on the
source host when ``finish_resize`` fails on the destination. A lease is released if

* it is old enough: an allocation may be written after the lease,
* libvirt has no domain of its server on this host, and
* Placement answers that neither the server nor its migration has an allocation of the
  lease's provider.

If one of these cannot be determined, the lease stays until the next round.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from oslo_config import cfg
from oslo_log import log

import os_acc
from os_acc import deadlines, exception
from os_acc.nova.initialization import DeferredNode
from os_acc.objects.api import AcceleratorEntry

LOG = log.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class NovaView:
    """The questions of a round; each raises an exception of Nova or Keystone.

    :ivar allocations: returns the allocations of a consumer in Placement.
    :ivar domains: returns the UUIDs of the domains that libvirt has on this host.
    """

    allocations: Callable[[Any, str], Mapping[str, Any]]
    domains: Callable[[], Sequence[str]]


class LeaseReconciler:
    """Compare leases with domains and allocations, once or periodically.

    :param node: the node's handle.
    :param settings: the section ``[os_acc_driver]``, read in each round.
    """

    def __init__(
        self, node: DeferredNode, nova: NovaView, settings: cfg.ConfigOpts.GroupAttr
    ) -> None:
        self._node, self._nova, self._settings = node, nova, settings
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
        while not self._ended.wait(self._settings.reconcile_interval):
            self.run_once(nova_context.get_admin_context())

    def run_once(self, context: Any) -> None:
        """Release the leases of each consumer that is proven to have left."""
        try:
            held = self._node.attached()
            present = set(self._nova.domains()) if held else set()
        except (exception.OsAccError, nova_exception.NovaException) as error:
            LOG.warning("cannot compare leases with the servers of Nova: %s", error)
            return
        for consumer, entries in held.items():
            try:
                if self._has_left(context, consumer, entries, present):
                    LOG.warning(
                        "consumer %s has left this host: releasing its accelerators",
                        consumer,
                    )
                    self._node.unplug({"uuid": consumer})
            except (exception.OsAccError, nova_exception.NovaException) as error:
                LOG.warning(
                    "cannot reconcile the leases of consumer %s: %s", consumer, error
                )

    def _has_left(
        self,
        context: Any,
        consumer: str,
        entries: Sequence[AcceleratorEntry],
        present: set[str],
    ) -> bool:
        if any(
            os_acc.held_seconds(entry) < self._settings.reconcile_age
            for entry in entries
        ):
            return False
        consumers = {consumer, *_server_of_migration(context, consumer)}
        if consumers & present:
            return False
        providers = {entry["device_rp_uuid"] for entry in entries}
        return not any(
            providers & set(self._nova.allocations(context, each)) for each in consumers
        )


def _server_of_migration(context: Any, consumer: str) -> list[str]:
    """Return the server's UUID if the consumer is a migration."""
    try:
        migration = objects.Migration.get_by_uuid(context, consumer)
    except nova_exception.MigrationNotFound:
        return []
    return [migration.instance_uuid]
