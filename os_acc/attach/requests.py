# SPDX-License-Identifier: Apache-2.0

"""Accelerator requests: made of a device profile, bound, unbound, deleted.

What Cyborg's API does for Nova with ``/v2/accelerator_requests``, on the
compute node. A request that is bound is a lease with the same uuid: there is
one record of who has what, and plug and unplug use it as well. What is
recorded besides is what a request asks for, and how it ended where it has no
lease.

Specification: Cyborg, "Nova-Cyborg interaction"; the states are those of
``cyborg/common/constants.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from oslo_utils import uuidutils

from os_acc import exception
from os_acc.attach import serialize
from os_acc.attach.manager import Manager
from os_acc.objects.accelerator_request import (
    BINDING,
    AcceleratorRequest,
    RequestAction,
    RequestBinding,
    RequestState,
    uuid_from_api,
    uuids_from_api,
)
from os_acc.objects.api import ExternalEvents
from os_acc.objects.instance import consumer_uuid
from os_acc.objects.lease import Lease
from os_acc.objects.profile import ProfileGroup, index_of
from os_acc.objects.request import FlavorRequest, GroupPolicy
from os_acc.objects.selection import Allocations
from os_acc.profiles import parser
from os_acc.profiles.options import ProfileSource
from os_acc.store.leases import Store
from os_acc.store.locks import consumer_lock

_DONE: Final = {
    RequestAction.BIND: "bound",
    RequestAction.UNBIND: "unbound",
    RequestAction.DELETE: "deleted",
}


class Requests:
    """Accelerator requests, by a manager.

    :param profiles: where device profiles are.
    """

    def __init__(self, manager: Manager, profiles: ProfileSource) -> None:
        self._manager = manager
        self._profiles = profiles

    def create(self, profile: object) -> tuple[AcceleratorRequest, ...]:
        """Make the requests of a profile: N groups of M accelerators, N*M of them.

        They are in the order of the groups; each knows the index of its own.

        :raises InvalidInput: that is no name.
        :raises NotFound: there is none of that name.
        :raises InvalidProfile: nobody can be served by it.
        """
        deadline = self._deadline(self._manager.settings.plug_timeout)
        if not isinstance(profile, str):
            raise exception.InvalidInput(
                f"{exception.show(profile)} is no profile's name"
            )
        found = self._profiles.profile(profile, deadline)
        made = tuple(
            AcceleratorRequest(
                uuid=uuidutils.generate_uuid(),
                profile=found.name,
                group=group.index,
                properties=group.properties,
            )
            for group in found.groups
            for _ in range(group.accelerators)
        )
        self._manager.store.until(deadline).add_requests(made)
        return made

    def find(
        self, instance: object = None, bind_state: object = None
    ) -> tuple[AcceleratorRequest, ...]:
        """Requests in the order in which they were made; then what was plugged.

        :param instance: only what is, or was last, bound to this one.
        :param bind_state: ``resolved``: only those to which nothing more
            happens by itself.
        :raises InvalidInput: that is no uuid, or no such word.
        """
        if bind_state is not None and not (
            isinstance(bind_state, str) and bind_state == "resolved"
        ):
            raise exception.InvalidInput(
                f"bind_state is {exception.show(bind_state)}",
                hint="it is 'resolved', or left out",
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
        """Bind requests: each to a host, a provider and an instance.

        Those of one instance succeed together, or none of them does. The same
        again confirms.

        :param bindings: for each request's uuid ``hostname``,
            ``device_rp_uuid`` and ``instance_uuid``.
        :returns: the requests, all of them bound.
        :raises InvalidInput: that is not what they are.
        :raises NotFound: one of them does not exist.
        :raises Conflict: one of them cannot be bound now.
        :raises OsAccError: as :func:`os_acc.plug`; the requests have failed.
        """
        deadline = self._deadline(self._manager.settings.plug_timeout)
        asked = self._asked(bindings)
        # None is bound if one of them does not exist.
        self._manager.store.until(deadline).requests(asked)
        bound: list[AcceleratorRequest] = []
        for uuid, theirs in _by_instance(asked):
            with self._manager.locks.hold(_locks(uuid, theirs), deadline):
                self._bind(uuid, theirs, deadline)
                bound += self._manager.store.until(deadline).requests(theirs)
        return tuple(bound)

    def unbind(self, uuids: object) -> int:
        """Give back what requests have; how many of them had something.

        One that has nothing is unbound as well, and may be bound again.

        :raises InvalidInput: that is no list of uuids.
        :raises NotFound: one of them does not exist.
        :raises DevicesUnreleased: some could not be given back.
        """
        deadline = self._deadline(self._manager.settings.unplug_timeout)
        wanted = uuids_from_api(uuids)
        with self._held(lambda store: store.requests(wanted), deadline) as found:
            return self._unbind(found, deadline)

    def delete_of(self, instance: object) -> int:
        """Unbind and forget all requests of an instance; how many there were.

        What a plug has given it is unbound and forgotten as well.

        :raises InvalidInput: that is no uuid.
        :raises DevicesUnreleased: some could not be given back: they stay.
        """
        deadline = self._deadline(self._manager.settings.unplug_timeout)
        uuid = consumer_uuid(instance)

        def theirs(store: Store) -> tuple[AcceleratorRequest, ...]:
            return tuple(each for each in self._all(store) if each.instance == uuid)

        with self._held(theirs, deadline, uuid) as found:
            self._unbind(found, deadline)
            self._manager.store.until(deadline).delete_requests(
                each.uuid for each in found
            )
        return len(found)

    @contextlib.contextmanager
    def _held(
        self,
        which: Callable[[Store], tuple[AcceleratorRequest, ...]],
        deadline: float,
        *consumers: str,
    ) -> Iterator[tuple[AcceleratorRequest, ...]]:
        """Requests, with their locks and those of all who have something of them."""
        store = self._manager.store.until(deadline)
        found = which(store)
        while True:
            names = {consumer_lock(each) for each in (*consumers, *_concerned(found))}
            with self._manager.locks.hold(names, deadline):
                found = which(store)
                # Somebody else may have bound one of them meanwhile.
                if all(consumer_lock(each) in names for each in _concerned(found)):
                    yield found
                    return

    def _unbind(self, found: Collection[AcceleratorRequest], deadline: float) -> int:
        store = self._manager.store.until(deadline)
        leases = [each.lease for each in found if each.lease]
        count = self._manager.give_back(leases, deadline) if leases else 0
        store.change_requests(
            _with(each, recorded=RequestState.UNBOUND, reason="", lease=None)
            for each in found
            if each.is_made
        )
        return count

    def delete(self, uuids: object = None, instance: object = None) -> int:
        """Forget requests; how many there were.

        :param uuids: of requests that have nothing.
        :param instance: instead of them; see :meth:`delete_of`.
        :raises InvalidInput: neither, or both; or they are no uuids.
        :raises NotFound: one of them does not exist.
        :raises Conflict: one of them has something: unbind it first.
        :raises DevicesUnreleased: some could not be given back: they stay.
        """
        if (uuids is None) == (instance is None):
            raise exception.InvalidInput("pass either uuids or an instance")
        if instance is not None:
            return self.delete_of(instance)
        deadline = self._deadline(self._manager.settings.unplug_timeout)
        wanted = uuids_from_api(uuids)
        locks = sorted(consumer_lock(each) for each in wanted)
        with self._manager.locks.hold(locks, deadline):
            store = self._manager.store.until(deadline)
            for each in store.requests(wanted):
                _check(each, RequestAction.DELETE)
            store.delete_requests(wanted)
        return len(wanted)

    def events(self, uuids: object) -> ExternalEvents:
        """See :func:`os_acc.attach.serialize.events`.

        :raises InvalidInput: that is no list of uuids.
        :raises NotFound: one of them does not exist.
        """
        made = self._manager.store.requests(uuids_from_api(uuids))
        return serialize.events(made)

    # -- binding -----------------------------------------------------------

    def _asked(self, bindings: object) -> dict[str, RequestBinding]:
        if not isinstance(bindings, Mapping) or not bindings:
            raise exception.InvalidInput(
                f"bindings are {exception.show(bindings)}",
                hint=f"pass {', '.join(BINDING)} for the uuid of each request",
            )
        asked = {
            uuid_from_api(uuid): RequestBinding.from_api(uuid, each)
            for uuid, each in bindings.items()
        }
        if len(asked) < len(bindings):
            raise exception.InvalidInput("bindings name a request twice")
        for uuid, each in asked.items():
            self._check_host(uuid, each.hostname)
        return asked

    def _check_host(self, uuid: str, hostname: str) -> None:
        # Nova calls the host by its full name, or by the short one.
        mine = self._manager.settings.node_name
        if hostname not in (mine, mine.partition(".")[0]) and (
            hostname.partition(".")[0] != mine
        ):
            raise exception.InvalidInput(
                f"request {uuid} is to be bound to {exception.show(hostname)}, but "
                f"this is {mine}"
            )

    def _bind(
        self, uuid: str, asked: Mapping[str, RequestBinding], deadline: float
    ) -> None:
        store = self._manager.store.until(deadline)
        found = store.requests(asked)
        if all(
            each.state is RequestState.BOUND
            and _binding_of(each).is_same(asked[each.uuid])
            for each in found
        ):
            self._manager.renew(uuid, deadline)
            return
        for each in found:
            _check(each, RequestAction.BIND)
        bound = tuple(
            _with(
                each,
                recorded=RequestState.INITIAL,
                binding=asked[each.uuid],
                reason="",
            )
            for each in found
        )
        _check_whole(bound)
        store.change_requests(bound)
        try:
            self._plug(uuid, bound, deadline)
        except BaseException as error:
            self._failed(bound, error)
            raise

    def _failed(
        self, bound: Iterable[AcceleratorRequest], error: BaseException
    ) -> None:
        failed = [
            _with(each, recorded=RequestState.BIND_FAILED, reason=str(error))
            for each in bound
        ]
        # The time for the plug may be what has run out.
        deadline = self._deadline(self._manager.settings.unplug_timeout)
        try:
            self._manager.store.until(deadline).change_requests(failed)
        except exception.OsAccError as why:
            error.add_note(f"that the requests failed could not be recorded: {why}")

    def _plug(
        self, uuid: str, bound: Iterable[AcceleratorRequest], deadline: float
    ) -> None:
        groups = _groups(bound)
        amounts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for group, requests in groups:
            provider = _binding_of(requests[0]).device_rp_uuid
            amounts[provider].update(dict(group.request.resources))
        selection = Allocations(
            entries=tuple(
                (provider, tuple(sorted(each.items())))
                for provider, each in sorted(amounts.items())
            ),
            mappings=tuple(
                (group.suffix, (_binding_of(requests[0]).device_rp_uuid,))
                for group, requests in groups
            ),
        )
        (profile,) = {each.profile for each in bound}
        request = FlavorRequest(
            tuple(group.request for group, _requests in groups),
            GroupPolicy.NONE,
            profile=profile,
        )
        named = {
            group.suffix: tuple(each.uuid for each in requests)
            for group, requests in groups
        }
        self._manager.bind(uuid, selection, request, named, deadline)

    @staticmethod
    def _deadline(seconds: float) -> float:
        return time.monotonic() + seconds


def with_plugged(
    made: tuple[AcceleratorRequest, ...], leases: Iterable[Lease], host: str
) -> tuple[AcceleratorRequest, ...]:
    """Requests that were made, and then what leases are that were not.

    What a plug has given is listed as Bound all the same, with its profile where
    the flavor has named one.
    """
    known = {each.uuid for each in made}
    plugged = (
        AcceleratorRequest(
            uuid=lease.uuid,
            profile=lease.profile,
            group=index_of(lease.group) if lease.profile else None,
            binding=RequestBinding(host, lease.provider, lease.consumer),
            lease=lease,
        )
        for lease in leases
        if lease.uuid not in known
    )
    return (*made, *plugged)


def _groups(
    bound: Iterable[AcceleratorRequest],
) -> tuple[tuple[ProfileGroup, tuple[AcceleratorRequest, ...]], ...]:
    """Each group with its requests, sorted by the suffix that Nova gives it."""
    found: defaultdict[tuple[str, int], list[AcceleratorRequest]] = defaultdict(list)
    for each in bound:
        if each.group is not None:
            found[each.profile, each.group].append(each)
    groups = [
        (parser.group(profile, index, dict(requests[0].properties)), tuple(requests))
        for (profile, index), requests in found.items()
    ]
    return tuple(sorted(groups, key=lambda each: each[0].suffix))


def _check_whole(bound: Collection[AcceleratorRequest]) -> None:
    """Make sure that these are what one instance can be bound at once.

    :raises InvalidInput: they are of several profiles, or of several versions of
        one, or a part of a group.
    """
    profiles = sorted({each.profile for each in bound})
    if len(profiles) > 1:
        raise exception.InvalidInput(
            f"the requests of one instance are of the profiles {', '.join(profiles)}",
            hint="there is one device profile in a request",
        )
    for group, requests in _groups(bound):
        if len(requests) != group.accelerators:
            raise exception.InvalidInput(
                f"group {group.index} of {profiles[0]} asks for {group.accelerators} "
                f"accelerators, but {len(requests)} of its requests are to be bound",
                hint="bind all requests of a group together",
            )
        if any(each.properties != requests[0].properties for each in requests):
            raise exception.InvalidInput(
                f"the requests of group {group.index} of {profiles[0]} ask for "
                "different things: the profile was changed between them",
                hint="bind those together that were made together",
            )
        providers = sorted({_binding_of(each).device_rp_uuid for each in requests})
        if len(providers) > 1:
            raise exception.InvalidInput(
                f"group {group.index} of {profiles[0]} is to be bound to the "
                f"providers {' and '.join(providers)}",
                hint="one provider serves a group",
            )


def _by_instance(
    asked: Mapping[str, RequestBinding],
) -> list[tuple[str, dict[str, RequestBinding]]]:
    found: defaultdict[str, dict[str, RequestBinding]] = defaultdict(dict)
    for uuid, binding in asked.items():
        found[binding.instance_uuid][uuid] = binding
    return sorted(found.items())


def _concerned(found: Iterable[AcceleratorRequest]) -> Iterator[str]:
    """Requests, and the consumers that have something of them."""
    for each in found:
        yield each.uuid
        if each.instance:
            yield each.instance
        if each.lease:
            yield each.lease.consumer


def _locks(instance: str, theirs: Iterable[str]) -> list[str]:
    # A request has no other lock than that of a consumer with its uuid.
    return [consumer_lock(each) for each in (instance, *theirs)]


def _check(request: AcceleratorRequest, action: RequestAction) -> None:
    if not request.allows(action):
        raise exception.Conflict(
            f"accelerator request {request.uuid} is {request.state.value}: it cannot "
            f"be {_DONE[action]}{_because(request)}",
            hint="unbind it first",
            reason=exception.ConflictReason.REQUEST,
        )


def _because(request: AcceleratorRequest) -> str:
    return f" ({request.reason})" if request.reason else ""


def _with(request: AcceleratorRequest, **changes: Any) -> AcceleratorRequest:
    return dataclasses.replace(request, **changes)


def _binding_of(request: AcceleratorRequest) -> RequestBinding:
    if request.binding is None:
        raise ValueError(f"{request.uuid} was never bound")
    return request.binding
