# SPDX-License-Identifier: Apache-2.0

"""The accelerators of Nova's servers on one compute node.

Each method is one event in the life of a server, in Nova's terms; the virt driver
(:mod:`os_acc.nova.driver`) decides when. The leases of a server are the record: no
method keeps a state of its own, so that nova-compute may be restarted at any time.

A server whose flavor has no resource class of accelerators needs neither Placement nor
the store.

nova-compute decides by the class of an exception whether it tries another host: after
``BuildAbortException`` it does not, and the user of the server reads the reason; after
``ComputeResourcesUnavailable`` it does. A server that exists is on this host, where
only ``InternalError`` applies. It leaves the server in the state ERROR, unless it is
rolled back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from nova import exception as nova_exception
from nova import objects
from nova.conf import CONF
from oslo_log import log
from oslo_utils import strutils

from os_acc import exception
from os_acc.conf import DriverSettings
from os_acc.nova import conversion, moves
from os_acc.nova.allocations import ServerAllocations
from os_acc.nova.guest_devices import GuestDevices
from os_acc.nova.initialization import DeferredNode
from os_acc.objects.api import AcceleratorEntry, InstanceDict

LOG = log.getLogger(__name__)

#: Nova copies keys with this prefix from the image, and to snapshots of the server.
_SNAPSHOT_OF: Final = "image_os_acc_server"
#: The owner of a snapshot declares with it that the image depends on no accelerator.
_GOLDEN: Final = "image_os_acc_golden"


class ServerAccelerators:
    """Attach, keep and release the accelerators of the servers of a node.

    :param node: the node's handle.
    :param allocations: of servers and migrations, in Placement.
    :param guest_devices: see :meth:`.driver.LibvirtDriver._kept_definition`.
    :param iommufd: whether guests get PCI functions through iommufd.
    """

    def __init__(
        self,
        node: DeferredNode,
        allocations: ServerAllocations,
        guest_devices: Callable[[str], tuple[GuestDevices, bool] | None],
        iommufd: bool,
    ) -> None:
        self._node = node
        self._allocations = allocations
        self._guest_devices = guest_devices
        self._iommufd = iommufd

    # -- a guest that is created here ------------------------------------------

    def attach(
        self,
        context: Any,
        instance: Any,
        info: InstanceDict,
        allocations: Mapping[str, Any] | None,
        *,
        restarts: bool = False,
        arrives: bool = False,
    ) -> bool:
        """Attach the allocated accelerators; return whether they are new.

        :param allocations: by the UUID of the provider; None or empty: unknown.
        :param restarts: the server exists, as in a rebuild: another host is no choice.
        :param arrives: the server had no guest here: its other leases are left over.
        :raises BuildAbortException: no host can serve the request.
        :raises ComputeResourcesUnavailable: another host may serve it.
        :raises InternalError: the server exists, and cannot be served.
        """
        if not conversion.may_request_accelerators(instance.flavor):
            return False
        with _converted(instance, restarts=restarts):
            # Nova passes no allocations also if Placement did not answer.
            allocations = allocations or self._allocations.of(context, instance.uuid)
            if not self._node.owns_any(allocations):
                # Nova deletes the allocation of a server whose rebuild has failed.
                if not (self._node.attached(info) and self._confirm(instance, info)):
                    self._check_needs_none(instance)
                return False
            conversion.check_one_service(instance)
            self._check_encryption(instance, allocations)
            is_new = not self._node.attached(info)
            try:
                self._plug(instance.flavor, info, allocations)
            except exception.Conflict:
                if is_new or not arrives:
                    raise
                self.release(instance)
                self._plug(instance.flavor, info, allocations)
                return True
            return is_new

    def _check_encryption(
        self, instance: Any, allocations: Collection[str] = ()
    ) -> None:
        """Check that encrypted memory permits the devices of a server.

        :param allocations: the providers of the devices that are not leased yet.
        :raises InvalidExtraSpec: see :func:`.conversion.check_encryption`.
        """
        if conversion.memory_encryption(instance):
            leased = {e["device_rp_uuid"] for e in self._entries(instance.uuid)}
            named = leased.union(allocations)
            found = [e for e in self._node.ready().providers() if e["uuid"] in named]
            conversion.check_encryption(instance, found, iommufd=self._iommufd)

    def _plug(
        self, flavor: Any, info: InstanceDict, allocations: Mapping[str, Any]
    ) -> None:
        resources = {
            provider: {"resources": dict(each["resources"])}
            for provider, each in allocations.items()
        }
        request = {"allocations": resources}
        self._node.ready().plug(info, request, flavor.extra_specs)

    # -- a guest that starts again ---------------------------------------------

    def renew(self, context: Any, instance: Any, info: InstanceDict) -> None:
        """Prepare the accelerators of a server before its guest starts again.

        1. Settle leases that its migrations hold here. 2. Confirm its own leases.
        3. Without any: attach its allocation as for a new guest.

        :raises InternalError: the guest must not start without its accelerators.
        """
        if not conversion.may_request_accelerators(instance.flavor):
            return
        self.settle(context, instance)
        with _converted(instance, restarts=True):
            if self._node.attached(info) and self._confirm(instance, info):
                return
            allocations = self._allocations.of(context, instance.uuid)
            if not (owned := self._owned(allocations)):
                self._check_needs_none(instance)
                return
            conversion.check_one_service(instance)
            self._check_encryption(instance, owned)
            flavor = conversion.allocated_flavor(instance, owned)
            self._plug(flavor, info, allocations)

    def settle(self, context: Any, instance: Any) -> None:
        """Keep those leases of a server and of its migrations here that have its data.

        :raises InternalError: os_acc cannot serve, or the guest has to be stopped.
        """
        if not conversion.may_request_accelerators(instance.flavor):
            return
        with _converted(instance, restarts=True):
            held = self._node.attached()
            for migration in moves.migrations(context, instance):
                if moves.units(held.get(migration.uuid, ())):
                    owned = self._owned(self._allocations.of(context, instance.uuid))
                    self._settle(context, instance, migration, owned)

    def _owned(self, allocations: Mapping[str, Any]) -> dict[str, Any]:
        """Return those allocations that are of our providers."""
        owns = self._node.owns_any
        return {at: each for at, each in allocations.items() if owns({at: each})}

    def _confirm(self, instance: Any, info: InstanceDict) -> bool:
        """Confirm the leases; return False if all were about to be released."""
        self._check_encryption(instance)
        try:
            self._node.ready().plug(info, None, None)
        except exception.NotFound as error:
            if error.reason is not exception.ObjectKind.LEASE:
                raise
            return False
        return True

    def _check_needs_none(self, instance: Any) -> None:
        """Check that a server without a lease and without an allocation needs none.

        A provider of another service may have a resource class of os_acc.

        :raises Conflict: its flavor requests accelerators of this host.
        """
        if self._node.ready().requests_accelerators(instance.flavor.extra_specs):
            raise exception.Conflict(
                f"the flavor of instance {instance.uuid} requests accelerators, but "
                "Placement has no allocation of os_acc's providers for it",
                reason=exception.ConflictReason.CONSUMER,
                hint="migrate the server; give no other provider a resource class of "
                "os_acc",
            )

    def _settle(
        self, context: Any, instance: Any, migration: Any, owned: Mapping[str, Any]
    ) -> None:
        """Keep those leases of a server and its ended migration that are allocated.

        Nova returns the allocation of a failed migration without a call of the driver,
        or keeps that of the new flavor. A migration that has an allocation is still
        undecided, unless its rollback has failed. After a resize on one host, both have
        leases here.

        :param owned: the allocation of the server on our providers.
        :raises Conflict: the guest runs with devices that are to be released.
        """
        entries = self._entries(instance.uuid), self._entries(migration.uuid)
        own, its = map(moves.units, entries)
        defined, runs = self._guest_devices(instance.uuid) or (GuestDevices(), False)
        both = [GuestDevices.of_entries(each) for each in entries]
        runs_with_own = runs and bool(defined & both[0])
        if self._allocations.of(context, migration.uuid):
            if moves.is_rollback_due(instance, migration, bool(own)):
                moves.check_stopped(instance, runs_with_own)
                self.take_back(instance, migration)
            return
        wanted = conversion.accelerator_amounts(owned)
        # The provider of an adopted device that is not offered now is unknown.
        if not wanted or "" in own | its or (own and own != wanted != its):
            return
        has_moved = own == wanted and moves.has_moved(
            instance, migration, defined, *both
        )
        if its != wanted or has_moved:
            self.release(instance, migration.uuid)
            return
        moves.check_stopped(instance, runs_with_own)
        self._node.ready().unplug({"uuid": instance.uuid})
        self._node.ready().rekey(migration.uuid, instance.uuid)

    def guest_devices(self, instance: Any) -> GuestDevices:
        """Return the devices that the guest of a server gets.

        :raises InternalError: one is not ready for the guest.
        """
        entries = self.ready_entries(instance)
        return GuestDevices.of_entries(entries, iommufd=self._iommufd)

    def mediated_devices(self) -> dict[str, str]:
        """Return the consumer of each mediated device of os_acc, by its UUID.

        :raises InternalError: the store cannot be read.
        """
        try:
            held = self._node.attached()
        except exception.OsAccError as error:
            raise nova_exception.InternalError(
                f"cannot distinguish mediated devices of os_acc from others: {error}"
            ) from error
        return {
            uuid: consumer
            for consumer, entries in held.items()
            for uuid in GuestDevices.of_entries(entries).mdevs
        }

    def mark_snapshots(self, instance: Any) -> None:
        """Let snapshots of a server with accelerators carry its UUID.

        :raises InternalError: an accelerator is not ready for the guest.
        """
        is_marked = instance.system_metadata.get(_SNAPSHOT_OF) == instance.uuid
        if self.guest_devices(instance) and not is_marked:
            instance.system_metadata[_SNAPSHOT_OF] = instance.uuid
            # Snapshots of this server have a state of their own.
            instance.system_metadata.pop(_GOLDEN, None)
            instance.save()

    def ready_entries(self, instance: Any) -> list[AcceleratorEntry]:
        """Return the accelerators of a server, without devices that were replaced.

        :raises InternalError: one is not ready for the guest.
        """
        if not conversion.may_request_accelerators(instance.flavor):
            return []
        with _converted(instance, restarts=True):
            entries = [e for e in self._entries(instance.uuid) if not e.get("is_spare")]
        unready = [each for each in entries if each["state"] != moves.BOUND]
        if unready:
            raise nova_exception.InternalError(
                f"instance {instance.uuid} has an accelerator in state "
                f"{unready[0]['state']}: {unready[0]['uuid']}"
            )
        return entries

    def _entries(self, consumer: str) -> list[AcceleratorEntry]:
        return self._node.attached({"uuid": consumer}).get(consumer, [])

    # -- a guest that moves, or ends -------------------------------------------

    def release(self, instance: Any, migration: str | None = None) -> None:
        """Return the accelerators of a server to the host.

        An error is logged: it must not prevent the deletion of the server. The node
        retries the release, or :mod:`.reconciliation` does.

        :param migration: the UUID of the migration that holds them; None: the server.
        """
        consumer = instance.uuid if migration is None else migration
        try:
            if self._node.attached({"uuid": consumer}):
                self._node.ready().unplug({"uuid": consumer})
        except exception.OsAccError as error:
            LOG.error(
                "cannot release the accelerators of consumer %s: %s",
                consumer,
                error,
                instance=instance,
            )

    def release_migrations(self, context: Any, instance: Any) -> None:
        """Return the accelerators that any migration of a server holds here."""
        for migration in moves.migrations(context, instance):
            self.release(instance, migration.uuid)

    def check_ready(self, instance: Any) -> None:
        """Check that os_acc serves, before Nova ends a guest or moves its disks.

        :raises InstanceFaultRollback: os_acc cannot serve; the server stays as it is.
        """
        if not conversion.may_request_accelerators(instance.flavor):
            return
        with rolled_back(), _converted(instance, restarts=True):
            if self._node.attached({"uuid": instance.uuid}):
                self._node.ready()

    def keep_allocation(self, context: Any, instance: Any) -> None:
        """Let a server keep its allocation if the rebuild that begins fails."""
        if conversion.may_request_accelerators(instance.flavor):
            self._allocations.restore_after_rebuild(context, instance.uuid)

    @contextlib.contextmanager
    def moving(self, context: Any, instance: Any) -> Iterator[None]:
        """Keep the leases for the migration when a block has ended the guest.

        A resize on one host does so before the block, and attaches the accelerators of
        the new flavor. If one of these, or the block, fails, the server has its leases
        as before.

        :raises InstanceFaultRollback: os_acc cannot serve; the server stays as it is.
        """
        flavors = filter(None, (instance.flavor, instance.new_flavor))
        if not any(map(conversion.may_request_accelerators, flavors)):
            yield
            return
        migration = objects.Migration.get_by_id_and_instance(
            context, instance.migration_context.migration_id, instance.uuid
        )
        if migration.source_compute != migration.dest_compute:
            self.check_ready(instance)
            yield
            self._keep_for_migration(instance, migration)
            return
        with contextlib.ExitStack() as undo:
            with rolled_back():
                self._keep_for_migration(instance, migration)
                undo.callback(self._return, instance, migration)
                self._attach_resized(context, instance)
            yield
            undo.pop_all()

    def _attach_resized(self, context: Any, instance: Any) -> None:
        resized = instance.obj_clone()
        resized.flavor = instance.new_flavor
        resized.apply_migration_context()
        networks = instance.get_network_info()
        info = conversion.instance_info(resized, instance.image_meta, networks)
        self.attach(context, resized, info, None, restarts=True)

    def _return(self, instance: Any, migration: Any) -> None:
        """Undo a move on one host, and let its own error reach nova-compute."""
        self.release(instance)
        try:
            self.take_back(instance, migration)
        except nova_exception.InternalError as error:
            LOG.error("%s", error, instance=instance)

    def _keep_for_migration(self, instance: Any, migration: Any) -> None:
        if not conversion.may_request_accelerators(instance.flavor):
            return
        with _converted(instance, restarts=True):
            if self._node.attached({"uuid": instance.uuid}):
                self._node.ready().rekey(instance.uuid, migration.uuid)

    def take_back(self, instance: Any, migration: Any) -> None:
        """Move the leases of a reverted migration back to the server.

        :raises InternalError: the leases cannot be moved.
        """
        if not conversion.may_request_accelerators(instance.flavor):
            return
        with _converted(instance, restarts=True):
            if self._node.attached({"uuid": migration.uuid}):
                # nova-compute has ended in a resize on one host.
                self.release(instance)
                self._node.ready().rekey(migration.uuid, instance.uuid)


class Restarts(threading.local):
    """The servers whose guests end to start again, by thread.

    Nova's ``destroy`` ends the guest of a deleted server and, in a reboot or a rebuild,
    a guest that starts again and keeps its accelerators; the parameters do not differ.
    A mark counts for its thread and its request alone: another thread may delete the
    server meanwhile, and a thread that was interrupted may serve another request.
    """

    def __init__(self) -> None:
        super().__init__()
        #: The id of the request, by the UUID of the server.
        self._requests: dict[str, str] = {}

    def mark(self, context: Any, instance: Any) -> None:
        """Mark a server: its guest ends and starts again in this request."""
        # A thread serves one request at a time.
        self._requests = {instance.uuid: context.request_id}

    def has(self, context: Any, instance: Any) -> bool:
        """Return whether the server is marked in this thread and this request."""
        return bool(self._requests.get(instance.uuid) == context.request_id)

    def end(self) -> None:
        """Remove the mark."""
        self._requests = {}


@contextlib.contextmanager
def _converted(instance: Any, *, restarts: bool) -> Iterator[None]:
    """Convert the errors of os_acc in a block.

    :param restarts: the server exists.
    :raises BuildAbortException: no host can serve the request.
    :raises ComputeResourcesUnavailable: another host may serve it.
    :raises InternalError: the server exists.
    """
    try:
        yield
    except exception.OsAccError as error:
        if restarts:
            raise nova_exception.InternalError(
                f"accelerators of instance {instance.uuid}: {error}"
            ) from error
        if error.elsewhere and error.fault is not exception.Fault.REQUEST:
            raise nova_exception.ComputeResourcesUnavailable(
                reason=str(error)
            ) from error
        raise nova_exception.BuildAbortException(
            instance_uuid=instance.uuid, reason=str(error)
        ) from error


@contextlib.contextmanager
def rolled_back() -> Iterator[None]:
    """Let a server that Nova has not changed yet stay in its state.

    :raises InstanceFaultRollback: the block has raised ``InternalError``, or
        ``ImageUnacceptable``.
    """
    try:
        yield
    except (nova_exception.InternalError, nova_exception.ImageUnacceptable) as error:
        raise nova_exception.InstanceFaultRollback(inner_exception=error) from error


def check_image(instance: Any) -> None:
    """Refuse the snapshot of another server to a server with accelerators.

    Such a snapshot may depend on a state of the accelerators; the specification
    excludes "booting off a snapshot". A server may boot its own: unshelved, or rebuilt.
    The operator may permit images whose owner declares that they depend on none.

    :raises ImageUnacceptable: the image is such a snapshot.
    """
    metadata = instance.system_metadata
    server = metadata.get(_SNAPSHOT_OF)
    if server in (None, instance.uuid):
        return
    is_golden = strutils.bool_from_string(metadata.get(_GOLDEN))
    if is_golden and DriverSettings.load(CONF).golden_images:
        return
    if conversion.may_request_accelerators(instance.flavor):
        raise nova_exception.ImageUnacceptable(
            image_id=instance.image_ref,
            reason=f"it is a snapshot of server {server}, which had accelerators, and "
            "the property os_acc_golden or the option [os_acc_driver] golden_images "
            "does not permit that",
        )
