# SPDX-License-Identifier: Apache-2.0

"""The allocations of servers in Placement.

Nova deletes the whole allocation of a server whose rebuild fails or is refused, also of
one that still runs (``ComputeManager.rebuild_instance``, which treats the rebuild as an
evacuation). No exception of the driver prevents that, and no later operation restores
the allocation. The driver therefore restores it once the rebuild has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from keystoneauth1 import exceptions as keystone_exceptions
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from oslo_log import log

from os_acc import deadlines, exception

LOG = log.getLogger(__name__)

#: Seconds between two looks at a server that is being rebuilt, and until the last.
_PAUSE: Final = 1.0
_LONGEST_REBUILD: Final = 3600.0
_REBUILDS: Final = (
    task_states.REBUILDING,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
    task_states.REBUILD_SPAWNING,
)


class ServerAllocations:
    """Read and restore allocations.

    :param client: returns Nova's ``SchedulerReportClient``.
    :ivar restoring: the servers whose allocation may be missing for a moment.
    """

    def __init__(self, client: Callable[[], Any]) -> None:
        self._client = client
        self.restoring: set[str] = set()

    def of(self, context: Any, consumer: str) -> Mapping[str, Any]:
        """Return the allocations of a consumer, by the UUID of the provider.

        :raises ServiceUnavailable: Placement does not answer. Nova's legacy method
            ``get_allocations_for_consumer`` returns no allocations in this case.
        """
        found: Mapping[str, Any] = self._payload(context, consumer)["allocations"]
        return found

    def _payload(self, context: Any, consumer: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._client().get_allocs_for_consumer(
                context, consumer
            )
        except (
            nova_exception.ConsumerAllocationRetrievalFailed,
            keystone_exceptions.ClientException,
        ) as error:
            raise exception.ServiceUnavailable(
                f"cannot read the allocations of consumer {consumer}: {error}",
                service=exception.ServiceType.PLACEMENT,
            ) from error
        return found

    def restore_after_rebuild(self, context: Any, server: str) -> None:
        """Restore the present allocation of a server once its rebuild has ended.

        A thread waits for the end. An error is logged with the repair: the rebuild does
        not depend on it.
        """
        try:
            before = self._payload(context, server)
            if before["allocations"]:
                self.restoring.add(server)
                deadlines.start(lambda: self._restore(context, server, before))
        except exception.OsAccError as error:
            self.restoring.discard(server)
            LOG.warning(
                "if the rebuild of server %s fails, its allocation is not restored: %s",
                *(server, error),
            )

    def _restore(self, context: Any, server: str, before: Mapping[str, Any]) -> None:
        try:
            if not _stays(context, server):
                return
            now = self._payload(context, server)
            if before["allocations"].keys() <= now["allocations"].keys():
                return
            # A consumer without an allocation has no generation.
            generation = now.get("consumer_generation")
            wanted = {**before, "consumer_generation": generation}
            if not self._client().put_allocations(context, server, wanted):
                raise nova_exception.AllocationUpdateFailed(
                    consumer_uuid=server, error="Placement refuses it"
                )
            LOG.info("restored the allocation of server %s after its rebuild", server)
        except Exception:
            # The thread has no caller that would see it.
            LOG.exception(
                "the allocation of server %s is not restored if the rebuild failed: "
                "use 'openstack resource provider allocation set %s' with %s",
                *(server, server, before["allocations"]),
            )
        finally:
            self.restoring.discard(server)


def _stays(context: Any, server: str) -> bool:
    """Wait until a rebuild has ended; return whether the server stays on its host."""
    end = time.monotonic() + _LONGEST_REBUILD
    while time.monotonic() < end:
        time.sleep(_PAUSE)
        try:
            instance = objects.Instance.get_by_uuid(context, server)
        except nova_exception.InstanceNotFound:
            return False
        if instance.task_state not in _REBUILDS:
            return instance.task_state is None
    return False
