# SPDX-License-Identifier: Apache-2.0

"""Accelerator requests: create from a device profile, bind, unbind, delete.

The equivalent of Cyborg's ``/v2/accelerator_requests`` on the compute node. A bound
request is a lease with its UUID (:attr:`.Lease.request_uuid`), so that requests, plug
and unplug share one record of the devices. The store also records the properties of
each request, and the failure of a request without a lease.

Specification: Cyborg, "Nova-Cyborg interaction": a profile with N groups of M
accelerators has N*M requests, and an instance has one profile. The states are those of
``cyborg/common/constants.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)

from oslo_utils import uuidutils

from os_acc import exception
from os_acc.attach import serialize
from os_acc.attach.manager import Batch, Manager
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
from os_acc.objects.instance import InstanceInfo, consumer_uuid
from os_acc.objects.lease import Lease
from os_acc.objects.request_group import (
    Allocations,
    FlavorRequest,
    GroupPolicy,
    RequestGroup,
    profile_index,
)
from os_acc.profiles import validation
from os_acc.profiles.sources import ProfileSource
from os_acc.store.leases import Store
from os_acc.store.locks import consumer_lock

# Characters of the list of missing requests; a profile has up to 256.
_LONGEST = 400


@dataclasses.dataclass(frozen=True, slots=True)
class Requests:
    """Create, find, bind, unbind and delete accelerator requests."""

    _manager: Manager
    _profiles: ProfileSource

    def create(self, profile: object) -> tuple[AcceleratorRequest, ...]:
        """See :func:`os_acc.requests.create`."""
        deadline = time.monotonic() + self._manager.settings.plug_timeout
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
        """See :func:`os_acc.requests.find`."""
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
        """See :func:`os_acc.requests.bind`."""
        deadline = time.monotonic() + self._manager.settings.plug_timeout
        store = self._manager.store.until(deadline)
        requested = self._parsed(bindings)
        asked = _by_instance(requested)
        # All locks at once: no request changes its state between check and bind.
        owners = {*requested, *(instance.uuid for instance, _bindings in asked)}
        with self._manager.locks.hold(
            [consumer_lock(each) for each in owners], deadline
        ):
            batches = [
                (instance, self._unbound(instance, each, store))
                for instance, each in asked
            ]
            for _instance, batch in batches:
                if batch:
                    with self._failing(batch):
                        self._manager.check_bind(batch, deadline)
            for instance, batch in batches:
                if not batch:
                    self._manager.renew(instance, deadline)
                    continue
                store.change_requests(batch.requests)
                with self._failing(batch):
                    self._manager.bind(batch, deadline)
            return store.requests(requested)

    def unbind(self, uuids: object) -> int:
        """See :func:`os_acc.requests.unbind`."""
        deadline = time.monotonic() + self._manager.settings.unplug_timeout
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
        """See :func:`os_acc.requests.delete`."""
        if (uuids is None) == (instance is None):
            raise exception.InvalidInput("pass either uuids or an instance")
        deadline = time.monotonic() + self._manager.settings.unplug_timeout
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
        """See :func:`os_acc.requests.events`."""
        return serialize.events(self._manager.store.requests(uuids_from_api(uuids)))

    def notify(self, uuids: object) -> NotifyReport:
        """See :func:`os_acc.requests.notify`."""
        deadline = time.monotonic() + self._manager.settings.plug_timeout
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
        node_name = self._manager.settings.node_name
        for uuid, each in asked.items():
            # Nova names the host by its full or by its short name.
            if each.hostname not in (node_name, node_name.partition(".")[0]) and (
                each.hostname.partition(".")[0] != node_name
            ):
                raise exception.InvalidInput(
                    f"cannot bind request {uuid} to host "
                    f"{exception.show(each.hostname)}: this host is {node_name}"
                )
        return asked

    def _unbound(
        self, instance: InstanceInfo, asked: Mapping[str, RequestBinding], store: Store
    ) -> Batch | None:
        """Return an instance's requests; None: they have these bindings already."""
        found = store.requests(asked)
        if all(
            each.state is RequestState.BOUND
            and each.binding is not None
            and each.binding.is_same(asked[each.uuid])
            for each in found
        ):
            return None
        for each in found:
            _check(each, RequestAction.BIND)
        return _batch(instance, asked, found, store.requests())

    @contextlib.contextmanager
    def _failing(self, batch: Batch) -> Iterator[None]:
        """Mark the requests as failed if the body raises."""
        try:
            yield
        except BaseException as error:
            # The deadline of the plug may have passed.
            deadline = time.monotonic() + self._manager.settings.unplug_timeout
            failed = RequestState.BIND_FAILED
            try:
                self._manager.store.until(deadline).change_requests(
                    dataclasses.replace(each, recorded=failed, reason=str(error))
                    for each in batch.requests
                )
            except exception.OsAccError as why:
                error.add_note(f"cannot record that the requests failed: {why}")
            raise


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


# -- the requests that are bound together ------------------------------------


def _by_instance(
    asked: Mapping[str, RequestBinding],
) -> list[tuple[InstanceInfo, Mapping[str, RequestBinding]]]:
    """Return the bindings of each instance, sorted by its UUID."""
    found: defaultdict[str, dict[str, RequestBinding]] = defaultdict(dict)
    for uuid, binding in asked.items():
        found[binding.instance_uuid][uuid] = binding
    bindings = list[tuple[InstanceInfo, Mapping[str, RequestBinding]]]()
    for instance, together in sorted(found.items()):
        images = sorted({each.image_id for each in together.values()} - {""})
        if len(images) > 1:
            raise exception.InvalidInput(
                f"the bindings of instance {instance} name several images: "
                f"{', '.join(map(exception.show, images))}",
                hint="pass the image that the instance boots",
            )
        info = InstanceInfo(instance, image_id="".join(images))
        bindings.append((info, together))
    return bindings


def _batch(
    instance: InstanceInfo,
    asked: Mapping[str, RequestBinding],
    found: Iterable[AcceleratorRequest],
    recorded: Iterable[AcceleratorRequest],
) -> Batch:
    """Return the requests with their new bindings, and the plug that binds them.

    :param found: the requests of these bindings.
    :param recorded: all requests of this host.
    """
    bound = tuple(each.with_binding(asked[each.uuid]) for each in found)
    profile = _check_together(bound, recorded)
    by_group: defaultdict[int, list[AcceleratorRequest]] = defaultdict(list)
    for each in bound:
        by_group[each.group or 0].append(each)
    amounts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    groups, mappings = list[RequestGroup](), list[tuple[str, tuple[str, ...]]]()
    named = dict[str, Sequence[str]]()
    for index, members in by_group.items():
        providers = sorted({asked[each.uuid].device_rp_uuid for each in members})
        if len(providers) > 1:
            raise exception.InvalidInput(
                f"cannot bind group {index} of {profile} to several "
                f"providers: {', '.join(providers)}",
                hint="bind the requests of a group to one provider",
            )
        group = validation.group(profile, index, dict(members[0].properties)).request
        amounts[providers[0]].update(dict(group.resources))
        groups.append(group)
        mappings.append((group.suffix, (providers[0],)))
        named[group.suffix] = [each.uuid for each in members]
    entries = sorted((at, tuple(sorted(each.items()))) for at, each in amounts.items())
    groups.sort(key=lambda each: each.suffix)
    return Batch(
        instance,
        bound,
        Allocations(tuple(entries), tuple(sorted(mappings))),
        FlavorRequest(tuple(groups), GroupPolicy.NONE, profile=profile),
        named,
    )


def _check_together(
    bound: Collection[AcceleratorRequest], recorded: Iterable[AcceleratorRequest]
) -> str:
    """Check that these are the requests of one create call; return its profile."""
    profiles = sorted({each.profile for each in bound})
    if len(profiles) > 1:
        raise exception.InvalidInput(
            f"cannot bind requests of several profiles to one instance: "
            f"{', '.join(profiles)}",
            hint="bind the requests of one device profile",
        )
    (profile,) = profiles
    batches = {each.batch: each.batch_size for each in bound}
    if len(batches) > 1:
        raise exception.InvalidInput(
            f"cannot bind these requests of {profile} to one instance: they were not "
            "created together",
            hint="bind the requests of one create call",
        )
    ((made_by, size),) = batches.items()
    if len(bound) != size:
        uuids = {each.uuid for each in bound}
        others = [
            each
            for each in recorded
            if each.batch == made_by and each.uuid not in uuids
        ]
        raise exception.InvalidInput(
            f"bindings has {len(bound)} of the {size} accelerator requests that were "
            f"created together for {profile}",
            hint=_completion(others, size - len(bound)),
        )
    return profile


def _completion(others: Collection[AcceleratorRequest], missing: int) -> str:
    if len(others) < missing:
        return "some of them were deleted: create the requests of the profile again"
    uuids = exception.shorten(", ".join(each.uuid for each in others), _LONGEST)
    if all(each.allows(RequestAction.BIND) for each in others):
        return f"bind {uuids} in the same call"
    return f"unbind {uuids}, then bind all of them in one call"
