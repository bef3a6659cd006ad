# SPDX-License-Identifier: Apache-2.0

"""Accelerator requests: create from a device profile, bind, unbind, delete.

The equivalent of Cyborg's ``/v2/accelerator_requests`` on the compute node. A bound
request is a lease with its UUID (:attr:`.Lease.request_uuid`), so that requests, plug
and unplug share one record of the devices. The store also records the properties of
each request, and the failure of a request without a lease.

Specification: Cyborg, "Nova-Cyborg interaction"; the states are those of
``cyborg/common/constants.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from oslo_utils import uuidutils

from os_acc import exception
from os_acc.attach import request_batches, serialize
from os_acc.attach.manager import Manager
from os_acc.attach.request_batches import Batch, InstanceBindings
from os_acc.objects.accelerator_request import (
    BINDING,
    AcceleratorRequest,
    RequestAction,
    RequestBinding,
    RequestState,
    uuid_from_api,
    uuids_from_api,
)
from os_acc.objects.api import ExternalEvents, NotifyReport
from os_acc.objects.instance import consumer_uuid
from os_acc.objects.lease import Lease
from os_acc.objects.request_group import profile_index
from os_acc.profiles.sources import ProfileSource
from os_acc.store.leases import Store
from os_acc.store.locks import consumer_lock


class Requests:
    """Create, find, bind, unbind and delete accelerator requests.

    :param profiles: the source of device profiles.
    """

    def __init__(self, manager: Manager, profiles: ProfileSource) -> None:
        self._manager = manager
        self._profiles = profiles

    def create(self, profile: object) -> tuple[AcceleratorRequest, ...]:
        """Create the requests of a profile: one for each accelerator of each group.

        They are in the order of the groups; each has the index of its group.

        :raises InvalidInput: the profile's name is not a string.
        :raises NotFound: there is no profile of that name.
        :raises InvalidProfile: the profile is invalid.
        """
        deadline = self._deadline(self._manager.settings.plug_timeout)
        if not isinstance(profile, str):
            raise exception.InvalidInput(
                f"{exception.show(profile)} is not the name of a device profile"
            )
        found = self._profiles.profile(profile, deadline)
        batch = uuidutils.generate_uuid()
        made = tuple(
            AcceleratorRequest(
                uuid=uuidutils.generate_uuid(),
                profile=found.name,
                group=group.index,
                properties=group.properties,
                batch=batch,
                batch_size=found.accelerators,
            )
            for group in found.groups
            for _ in range(group.accelerators)
        )
        self._manager.store.until(deadline).add_requests(made)
        return made

    def find(
        self, instance: object = None, bind_state: object = None
    ) -> tuple[AcceleratorRequest, ...]:
        """Return requests in the order of their creation, then plugged accelerators.

        :param instance: only those that are, or were last, bound to this instance.
        :param bind_state: ``resolved``: only those that are bound or have failed.
        :raises InvalidInput: invalid UUID or state.
        """
        if bind_state is not None and not (
            isinstance(bind_state, str) and bind_state == "resolved"
        ):
            raise exception.InvalidInput(
                f"bind_state is {exception.show(bind_state)}",
                hint="pass 'resolved', or omit it",
            )
        uuid = None if instance is None else consumer_uuid(instance)
        return tuple(
            each
            for each in self._all(self._manager.store)
            if (uuid is None or each.instance == uuid)
            and (bind_state is None or each.is_resolved)
        )

    def _all(self, store: Store) -> tuple[AcceleratorRequest, ...]:
        host = self._manager.settings.node_name
        return with_plugged(store.requests(), store.leases(), host)

    def bind(self, bindings: object) -> tuple[AcceleratorRequest, ...]:
        """Bind each request to a host, a provider and an instance.

        The requests of one instance are bound together, or none of them. The call is
        checked as a whole before the first request is bound. If a provider or the
        accelerators of an instance do not allow the binding, the requests of this
        instance are marked as failed, and no other one changes. A repeated call
        confirms the bindings.

        :param bindings: ``hostname``, ``device_rp_uuid``, ``instance_uuid`` and
            optionally ``image_id`` for the UUID of each request.
        :returns: the bound requests.
        :raises InvalidInput: the bindings are malformed or inconsistent, or have only
            a part of the requests of a profile.
        :raises NotFound: a request does not exist.
        :raises Conflict: a request is in a state that does not allow it.
        :raises OsAccError: as :func:`os_acc.plug`; the requests are marked as failed.
        """
        deadline = self._deadline(self._manager.settings.plug_timeout)
        store = self._manager.store.until(deadline)
        requested = self._parsed(bindings)
        asked = request_batches.by_instance(requested)
        # All locks at once: no request changes its state between check and bind.
        owners = {*requested, *(each.instance for each in asked)}
        with self._manager.locks.hold(
            [consumer_lock(each) for each in owners], deadline
        ):
            batches = [(each, self._unbound(each, store)) for each in asked]
            for each, batch in batches:
                if batch:
                    with self._failing(batch):
                        self._manager.check_bind(
                            each.instance,
                            batch.selection,
                            batch.flavor,
                            set(each.bindings),
                            deadline,
                        )
            for each, batch in batches:
                if not batch:
                    self._manager.renew(each.instance, deadline, each.image_id)
                    continue
                store.change_requests(batch.requests)
                with self._failing(batch):
                    self._manager.bind(
                        each.instance,
                        batch.selection,
                        batch.flavor,
                        batch.named,
                        deadline,
                        each.image_id,
                    )
            return store.requests(requested)

    def unbind(self, uuids: object) -> int:
        """Release the accelerators of requests; return their number.

        A request without an accelerator becomes unbound as well, and may be bound
        again.

        :raises InvalidInput: not a list of UUIDs.
        :raises NotFound: a request does not exist.
        :raises DevicesUnreleased: some devices could not be given back.
        """
        deadline = self._deadline(self._manager.settings.unplug_timeout)
        requested = uuids_from_api(uuids)
        with self._locked(lambda store: store.requests(requested), deadline) as found:
            return self._unbind(found, deadline)

    @contextlib.contextmanager
    def _locked(
        self,
        which: Callable[[Store], tuple[AcceleratorRequest, ...]],
        deadline: float,
        *consumers: str,
    ) -> Iterator[tuple[AcceleratorRequest, ...]]:
        """Yield requests, with the locks of the requests and their consumers held.

        The lock of a request is that of a consumer with its UUID.
        """
        store = self._manager.store.until(deadline)
        found = which(store)
        while True:
            names = {consumer_lock(each) for each in (*consumers, *_lock_owners(found))}
            with self._manager.locks.hold(names, deadline):
                found = which(store)
                # Another process may have bound one of them meanwhile.
                if all(consumer_lock(each) in names for each in _lock_owners(found)):
                    yield found
                    return

    def _unbind(self, found: Collection[AcceleratorRequest], deadline: float) -> int:
        store = self._manager.store.until(deadline)
        leases = [each.lease for each in found if each.lease]
        count = self._manager.give_back(leases, deadline) if leases else 0
        store.change_requests(
            dataclasses.replace(
                each, recorded=RequestState.UNBOUND, reason="", lease=None
            )
            for each in found
            if each.is_made
        )
        return count

    def delete(self, uuids: object = None, instance: object = None) -> int:
        """Delete requests; return their number.

        :param uuids: the UUIDs of requests without accelerators.
        :param instance: instead: unbind and delete all requests of this instance.
            Accelerators of a plug count as requests.
        :raises InvalidInput: neither or both are given, or not UUIDs.
        :raises NotFound: a request does not exist.
        :raises Conflict: a request has an accelerator.
        :raises DevicesUnreleased: some devices could not be given back; all requests
            stay.
        """
        if (uuids is None) == (instance is None):
            raise exception.InvalidInput("pass either uuids or an instance")
        deadline = self._deadline(self._manager.settings.unplug_timeout)
        store = self._manager.store.until(deadline)
        if instance is None:
            requested = uuids_from_api(uuids)
            with self._manager.locks.hold(
                [consumer_lock(each) for each in requested], deadline
            ):
                for each in store.requests(requested):
                    _check(each, RequestAction.DELETE)
                store.delete_requests(requested)
            return len(requested)
        uuid = consumer_uuid(instance)

        def of_instance(store: Store) -> tuple[AcceleratorRequest, ...]:
            return tuple(each for each in self._all(store) if each.instance == uuid)

        with self._locked(of_instance, deadline, uuid) as found:
            self._unbind(found, deadline)
            store.delete_requests(each.uuid for each in found)
        return len(found)

    def events(self, uuids: object) -> ExternalEvents:
        """See :func:`os_acc.attach.serialize.events`.

        :raises InvalidInput: not a list of UUIDs.
        :raises NotFound: a request does not exist.
        """
        return serialize.events(self._manager.store.requests(uuids_from_api(uuids)))

    def notify(self, uuids: object) -> NotifyReport:
        """See :meth:`os_acc.attach.external_events.NovaEvents.notify`.

        :raises InvalidInput: not a list of UUIDs.
        :raises NotFound: a request does not exist.
        """
        deadline = self._deadline(self._manager.settings.plug_timeout)
        requested = uuids_from_api(uuids)
        found = self._manager.store.until(deadline).requests(requested)
        return self._manager.nova_events.notify(found, deadline)

    # -- binding -----------------------------------------------------------

    def _parsed(self, bindings: object) -> dict[str, RequestBinding]:
        if not isinstance(bindings, Mapping) or not bindings:
            raise exception.InvalidInput(
                f"bindings is {exception.show(bindings)}, not a mapping of requests",
                hint=f"pass {', '.join(BINDING)} for the UUID of each request",
            )
        asked = {
            uuid_from_api(uuid): RequestBinding.from_api(uuid, each)
            for uuid, each in bindings.items()
        }
        if len(asked) < len(bindings):
            raise exception.InvalidInput("bindings has the same request twice")
        for uuid, each in asked.items():
            self._check_host(uuid, each.hostname)
        return asked

    def _check_host(self, uuid: str, hostname: str) -> None:
        # Nova names the host by its full or by its short name.
        node_name = self._manager.settings.node_name
        if hostname not in (node_name, node_name.partition(".")[0]) and (
            hostname.partition(".")[0] != node_name
        ):
            raise exception.InvalidInput(
                f"cannot bind request {uuid} to host {exception.show(hostname)}: this "
                f"host is {node_name}"
            )

    def _unbound(self, asked: InstanceBindings, store: Store) -> Batch | None:
        """Return an instance's requests; None: they have these bindings already."""
        found = store.requests(asked.bindings)
        if all(
            each.state is RequestState.BOUND
            and each.binding is not None
            and each.binding.is_same(asked.bindings[each.uuid])
            for each in found
        ):
            return None
        for each in found:
            _check(each, RequestAction.BIND)
        return request_batches.batch(asked.bindings, found, store.requests())

    @contextlib.contextmanager
    def _failing(self, batch: Batch) -> Iterator[None]:
        """Mark the requests as failed if the body raises."""
        try:
            yield
        except BaseException as error:
            # The deadline of the plug may have passed.
            deadline = self._deadline(self._manager.settings.unplug_timeout)
            failed = RequestState.BIND_FAILED
            try:
                self._manager.store.until(deadline).change_requests(
                    dataclasses.replace(each, recorded=failed, reason=str(error))
                    for each in batch.requests
                )
            except exception.OsAccError as why:
                error.add_note(f"cannot record that the requests failed: {why}")
            raise

    @staticmethod
    def _deadline(seconds: float) -> float:
        return time.monotonic() + seconds


def with_plugged(
    made: tuple[AcceleratorRequest, ...], leases: Iterable[Lease], host: str
) -> tuple[AcceleratorRequest, ...]:
    """Return the recorded requests, then one for each other lease.

    The accelerators of a plug are listed as Bound, with the device profile of their
    flavor, if any.
    """
    recorded = {each.uuid for each in made}
    plugged = (
        AcceleratorRequest(
            uuid=lease.request_uuid,
            profile=lease.profile,
            group=profile_index(lease.group) if lease.profile else None,
            binding=RequestBinding(host, lease.provider, lease.consumer),
            lease=lease,
        )
        for lease in leases
        if lease.request_uuid not in recorded and not lease.erasure
    )
    return (*made, *plugged)


def _lock_owners(found: Iterable[AcceleratorRequest]) -> Iterator[str]:
    """Yield the UUIDs of requests, their instances and their leases' consumers."""
    for each in found:
        yield each.uuid
        if each.instance:
            yield each.instance
        if each.lease:
            yield each.lease.consumer


def _check(request: AcceleratorRequest, action: RequestAction) -> None:
    if not request.allows(action):
        reason = f" ({request.reason})" if request.reason else ""
        raise exception.Conflict(
            f"cannot {action.value} accelerator request {request.uuid}: it is "
            f"{request.state.value}{reason}",
            hint="unbind it first",
            reason=exception.ConflictReason.REQUEST,
        )
