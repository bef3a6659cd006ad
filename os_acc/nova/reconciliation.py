# SPDX-License-Identifier: Apache-2.0

"""Compare the leases of this host with Placement, Nova's servers and libvirt's guests.

Nova calls no driver when a server is deleted while nova-compute is stopped, nor on the
source host when ``finish_resize`` fails on the destination, nor when an allocation is
deleted. A unit that is leased without an allocation is reserved at once, unless the
server is in a task: Placement would offer it, and a server that gets it could not be
built. A lease is released if all
of these conditions hold:

* It is old enough: an allocation may be written after the lease.
* Placement has no allocation of its provider, neither for the consumer nor for the
  server of a migration. The allocation of a migration that has failed does not count
  once its server is deleted, nor that of a server which is on another host and in no
  task: Nova never removes them.
* Nova's database has no such server on this host.
* libvirt runs no guest with the device. Of a server that has moved, the source keeps a
  definition; it counts only while the guest runs.

If an answer is missing, the lease and the reservation stay until the next round.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from os_acc.conf import DriverSettings
from os_acc.nova import conversion
from os_acc.nova.allocations import ServerAllocations
from os_acc.nova.guest_devices import GuestDevices
from os_acc.nova.initialization import DeferredNode
from os_acc.nova.moves import BOUND, migrations, units
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
#: The states of a migration that has failed.
_FAILED = ("error", "failed")


class LeaseReconciler:
    """Compare leases with allocations, servers and guests, once or periodically.

    :param node: the node's handle.
    :param allocations: of servers and migrations, in Placement.
    :param guest_devices: returns the devices in the definition that libvirt has of a
        server's guest, and whether it runs; None: there is no definition.
    :param host: the name of this compute service.
    :ivar unallocated: the uuids of the accelerators that had no allocation in the last
        round.
    """

    def __init__(
        self,
        node: DeferredNode,
        allocations: ServerAllocations,
        guest_devices: Callable[[str], tuple[GuestDevices, bool] | None],
        host: str,
    ) -> None:
        self.unallocated: frozenset[str] = frozenset()
        self._node, self._host = node, host
        self._allocations = allocations
        self._guest_devices = guest_devices
        self._ended = threading.Event()
        self._runs = False

    def start(self) -> None:
        """Run rounds in a thread of this process, the first one now.

        Later calls do nothing, unless no thread could be started.
        """
        if self._runs:
            return
        try:
            deadlines.start(self._run)
            self._runs = True
        except exception.DeviceStuck as error:
            LOG.error("leases are not compared until there is a thread: %s", error)

    def stop(self) -> None:
        """End the thread after its round."""
        self._ended.set()

    def _run(self) -> None:
        pause = 0.0
        while not self._ended.wait(pause):
            pause = DriverSettings.load(CONF).reconcile_interval
            try:
                self.run_once(nova_context.get_admin_context())
            except Exception:
                # An error must not end the thread, and no caller would see it.
                LOG.exception("cannot compare the leases with Nova, will retry")
                self._node.count_error()

    def run_once(self, context: Any) -> None:
        """Release the leases of each consumer that is proven to have left."""
        try:
            self._node.ready()
            held = self._node.attached()
        except exception.OsAccError as error:
            LOG.debug("leases are not compared with Nova's servers: %s", error)
            return
        unallocated: set[str] = set()
        age = DriverSettings.load(CONF).reconcile_age
        for consumer, entries in held.items():
            if all(entry["state"] == _QUARANTINED for entry in entries):
                continue
            try:
                unallocated |= self._compared(context, consumer, held, age)
            except exception.ServiceUnavailable as error:
                LOG.warning(
                    "leases are not compared until Placement answers: %s", error
                )
                return
            except _PASSING as error:
                unallocated |= self.unallocated & {each["uuid"] for each in entries}
                LOG.warning(
                    "cannot reconcile the leases of consumer %s: %s", consumer, error
                )
        self.unallocated = frozenset(unallocated)

    def _compared(
        self,
        context: Any,
        consumer: str,
        held: Mapping[str, Sequence[AcceleratorEntry]],
        age: float,
    ) -> set[str]:
        """Release the leases of a consumer that has left.

        :returns: the uuids of its accelerators that stay, and of which neither it nor
            a migration of its server has an allocation.
        :raises ServiceUnavailable: Placement does not answer.
        """
        entries = held[consumer]
        server, has_failed = _server_of(context, consumer)
        if server in self._allocations.restoring:
            return set()
        allocated = self._allocated(context, {consumer, server})
        # After a resize on one host, the server has leases of the same providers.
        used = units(held.get(server, ()) if server != consumer else ())
        missing = _outside(entries, allocated - used)
        instance = _instance(context, server)
        if missing and instance is not None:
            # A migration that has not ended has the allocation of its source.
            others = {each.uuid for each in migrations(context, instance)} - {consumer}
            kept = self._allocated(context, others)
            for other in others:
                used += units(held.get(other, ()))
            missing = _outside(entries, allocated + kept - used)
        if not missing and not has_failed and not self._is_elsewhere(instance):
            return missing
        if instance is not None and instance.task_state is not None:
            # A migration may have the allocation, and return it: Placement gives a
            # reserved unit to no consumer.
            missing &= self.unallocated
        is_allocated = any(each["device_rp_uuid"] in allocated for each in entries)
        is_elsewhere = server == consumer and self._is_elsewhere(instance)
        if is_allocated and not is_elsewhere and (instance or not has_failed):
            return missing
        if not all(each["device_rp_uuid"] for each in entries):
            # An adopted device that is not offered now may have an allocation.
            return missing
        if any(os_acc.held_seconds(entry) < age for entry in entries):
            return missing
        if not self._has_left(instance, consumer, server, entries):
            return missing
        # The server may have come back meanwhile, and got these leases again.
        now = self._allocated(context, {consumer, server})
        if now != allocated or _place(_instance(context, server)) != _place(instance):
            return missing
        released = self._node.ready().unplug({"uuid": consumer})
        LOG.warning(
            "consumer %s has left this host: released %d accelerators",
            *(consumer, released),
        )
        if is_allocated and is_elsewhere:
            LOG.warning(
                "Placement still has an allocation of server %s on this host, to which "
                "it has not moved: see 'openstack resource provider allocation show "
                "%s'",
                *(consumer, consumer),
            )
        elif is_allocated:
            LOG.warning(
                "Placement still has the allocation of migration %s, whose server is "
                "deleted: remove it with 'openstack resource provider allocation "
                "delete %s'",
                *(consumer, consumer),
            )
        return set()

    def _allocated(self, context: Any, consumers: Iterable[str]) -> Counter[str]:
        """Return the units that the consumers have allocations of, by provider."""
        found: Counter[str] = Counter()
        for each in consumers:
            for provider, amounts in self._allocations.of(context, each).items():
                found[provider] += sum(amounts["resources"].values())
        return found

    def _is_elsewhere(self, instance: Any) -> bool:
        """Return whether a server is on another host, and in no task.

        Nova leaves the allocation of a live migration's target if nova-compute of its
        source ends meanwhile.
        """
        return (
            instance is not None
            and instance.host not in (None, self._host)
            and instance.task_state is None
        )

    def _has_left(
        self,
        instance: Any,
        consumer: str,
        server: str,
        entries: Sequence[AcceleratorEntry],
    ) -> bool:
        is_here = (
            instance is not None
            and instance.host == self._host
            and instance.vm_state != vm_states.SHELVED_OFFLOADED
        )
        if is_here and server == consumer:
            requests = conversion.may_request_accelerators(instance.flavor)
            # An idle server with a flavor without accelerators needs none.
            if requests or instance.task_state is not None:
                return False
        found = self._guest_devices(server)
        if found is None:
            return True
        devices, is_running = found
        return not devices & GuestDevices.of_entries(entries) or not (
            is_running or is_here or server == consumer
        )


def _outside(entries: Sequence[AcceleratorEntry], allocated: Counter[str]) -> set[str]:
    """Return the uuids of the accelerators that exceed these units of a provider."""
    left, found = allocated.copy(), set()
    known = [each for each in entries if each["device_rp_uuid"]]
    # Those that are not ready are the first to be without an allocation.
    for each in sorted(known, key=lambda each: each["state"] != BOUND):
        left[each["device_rp_uuid"]] -= 1
        if left[each["device_rp_uuid"]] < 0:
            found.add(each["uuid"])
    return found


def _place(instance: Any) -> tuple[Any, ...] | None:
    if instance is None:
        return None
    return instance.host, instance.vm_state, instance.task_state


def _server_of(context: Any, consumer: str) -> tuple[str, bool]:
    """Return the UUID of the server: that of a migration, or the consumer itself.

    :returns: in addition, whether it is a migration that has failed.
    """
    try:
        migration = objects.Migration.get_by_uuid(context, consumer)
    except nova_exception.MigrationNotFound:
        return consumer, False
    return str(migration.instance_uuid), migration.status in _FAILED


def _instance(context: Any, server: str) -> Any:
    """Return a server; None: Nova has none, or it is deleted."""
    try:
        return objects.Instance.get_by_uuid(context, server)
    except nova_exception.InstanceNotFound:
        return None
