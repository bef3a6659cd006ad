# SPDX-License-Identifier: Apache-2.0

"""The accelerators of Nova's servers on one compute node.

Each method is one event in the life of a server, in Nova's terms; the virt driver
(:mod:`os_acc.nova.driver`) decides when. The leases of a server are the record: no
method keeps a state of its own, so that nova-compute may be restarted at any time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nova import exception as nova_exception
from nova import objects
from oslo_log import log

from os_acc import exception
from os_acc.nova import conversion, errors
from os_acc.nova.initialization import DeferredNode

LOG = log.getLogger(__name__)

#: The state of an accelerator that is ready for its guest.
_BOUND = "Bound"
#: Nova copies keys with this prefix from the image, and to snapshots of the server.
_SNAPSHOT_OF = "image_os_acc_server"


class ServerAccelerators:
    """Attach, keep and release the accelerators of the servers of a node.

    :param node: the node's handle.
    :param allocations_of: returns the allocations of a consumer in Placement, by the
        UUID of the provider.
    """

    def __init__(
        self,
        node: DeferredNode,
        allocations_of: Callable[[Any, str], Mapping[str, Any]],
    ) -> None:
        self._node = node
        self._allocations_of = allocations_of

    # -- a guest that is created here ------------------------------------------

    @contextlib.contextmanager
    def attached(
        self,
        context: Any,
        instance: Any,
        image_meta: Any,
        allocations: Mapping[str, Any] | None,
        network_info: Iterable[Any] | None,
    ) -> Iterator[None]:
        """Attach the allocated accelerators; take new ones back if the block fails.

        Accelerators that the instance had before, as in a rebuild, stay attached.

        :param allocations: by the UUID of the provider; None or empty: unknown.
        :raises BuildAbortException: no host can serve the request.
        :raises ComputeResourcesUnavailable: another host may serve it.
        :raises ImageUnacceptable: see :func:`check_snapshot`.
        """
        if conversion.is_cyborgs(instance):
            yield
            return
        with errors.while_building(instance):
            # Nova passes no allocations also if Placement did not answer.
            allocations = allocations or self._allocations_of(context, instance.uuid)
            is_ours = self._node.owns_any(allocations)
        if not is_ours:
            yield
            return
        check_snapshot(instance)
        info = conversion.instance_info(instance, image_meta, network_info)
        with errors.while_building(instance):
            had = bool(self._node.attached(info))
            self._node.plug(
                info,
                conversion.allocation_request(allocations),
                instance.flavor.extra_specs,
            )
        try:
            mark_snapshots(instance)
            yield
        except BaseException:
            if not had:
                self.release(instance)
            raise

    # -- a guest that starts again ---------------------------------------------

    def renew(self, context: Any, instance: Any, network_info: Any = None) -> None:
        """Prepare the accelerators of a server before its guest starts again.

        1. Its leases are confirmed. 2. Without a lease: leases that a migration of it
        holds come back if the allocation has come back to the server. 3. Without these,
        too: its allocations are attached as for a new guest.

        :raises InternalError: the guest must not start without its accelerators.
        """
        if conversion.is_cyborgs(instance):
            return
        info = conversion.instance_info(instance, network_info=network_info)
        with errors.while_restarting(instance):
            if not self._node.attached(info):
                allocations = self._allocations_of(context, instance.uuid)
                if not self._node.owns_any(allocations):
                    return
                if not self._take_back(context, instance):
                    self._node.plug(
                        info,
                        conversion.allocation_request(allocations),
                        instance.flavor.extra_specs,
                    )
                    return
            self._node.plug(info, None, None)

    def _take_back(self, context: Any, instance: Any) -> bool:
        """Move leases that a migration of the server holds back to the server.

        Nova returns the allocation of a failed migration without a call of the driver.
        A migration that has an allocation is still undecided.
        """
        held = self._node.attached()
        for migration in _migrations(context, instance):
            if migration in held and not self._allocations_of(context, migration):
                self._node.rekey(migration, instance.uuid)
                return True
        return False

    def accel_info(self, instance: Any) -> list[dict[str, Any]]:
        """Return the accelerators of a server as Nova's driver expects them.

        :raises InternalError: one is not ready for the guest.
        """
        with errors.while_restarting(instance):
            held = self._node.attached({"uuid": instance.uuid})
        entries = held.get(instance.uuid, [])
        unready = [each for each in entries if each["state"] != _BOUND]
        if unready:
            raise nova_exception.InternalError(
                f"instance {instance.uuid} has an accelerator in state "
                f"{unready[0]['state']}: {unready[0]['uuid']}"
            )
        return conversion.accel_info(entries)

    # -- a guest that moves, or ends -------------------------------------------

    def release(self, instance: Any) -> None:
        """Return the accelerators of a server to the host.

        An error is logged: it must not prevent the deletion of the server. The node
        retries the release.
        """
        self._release(instance.uuid, instance)

    def release_migration(self, instance: Any, migration: Any) -> None:
        """Return the accelerators that a confirmed migration holds."""
        self._release(migration.uuid, instance)

    def release_migrations(self, context: Any, instance: Any) -> None:
        """Return the accelerators that any migration of a server holds here."""
        for migration in _migrations(context, instance):
            self._release(migration, instance)

    def _release(self, consumer: str, instance: Any) -> None:
        try:
            self._node.unplug({"uuid": consumer})
        except exception.OsAccError as error:
            LOG.error(
                "cannot release the accelerators of consumer %s: %s",
                consumer,
                error,
                instance=instance,
            )

    def keep_for_migration(self, context: Any, instance: Any) -> None:
        """Move the leases of a server that leaves this host to its migration.

        :raises InternalError: the leases cannot be moved.
        """
        if not self._node.attached({"uuid": instance.uuid}):
            return
        migration = objects.Migration.get_by_id_and_instance(
            context, instance.migration_context.migration_id, instance.uuid
        )
        with errors.while_restarting(instance):
            self._node.rekey(instance.uuid, migration.uuid)

    def take_back(self, instance: Any, migration: Any) -> None:
        """Move the leases of a reverted migration back to the server.

        :raises InternalError: the leases cannot be moved.
        """
        with errors.while_restarting(instance):
            if self._node.attached({"uuid": migration.uuid}):
                self._node.rekey(migration.uuid, instance.uuid)


def check_snapshot(instance: Any) -> None:
    """Refuse a snapshot of another server that had accelerators.

    It may depend on a state of these accelerators; the specification excludes
    "booting off a snapshot". A server may boot a snapshot of its own: unshelved, or
    rebuilt.

    :raises ImageUnacceptable: the image is such a snapshot.
    """
    server = instance.system_metadata.get(_SNAPSHOT_OF)
    if server not in (None, instance.uuid):
        raise nova_exception.ImageUnacceptable(
            image_id=instance.image_ref,
            reason=f"it is a snapshot of server {server}, which had accelerators",
        )


def mark_snapshots(instance: Any) -> None:
    """Let snapshots of a server carry its UUID in ``os_acc_server``."""
    if instance.system_metadata.get(_SNAPSHOT_OF) != instance.uuid:
        instance.system_metadata[_SNAPSHOT_OF] = instance.uuid
        instance.save()


def _migrations(context: Any, instance: Any) -> list[str]:
    """Return the UUIDs of the migrations of a server."""
    filters = {"instance_uuid": instance.uuid}
    found = objects.MigrationList.get_by_filters(context, filters)
    return [migration.uuid for migration in found]
