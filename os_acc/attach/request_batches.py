# SPDX-License-Identifier: Apache-2.0

"""Accelerator requests that are bound together: those of one create call.

Specification: Cyborg, "Nova-Cyborg interaction": a profile with N groups of M
accelerators has N*M requests, and an instance has one profile.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from os_acc import exception
from os_acc.objects.accelerator_request import (
    AcceleratorRequest,
    RequestAction,
    RequestBinding,
)
from os_acc.objects.profile import ProfileGroup
from os_acc.objects.request import FlavorRequest, GroupPolicy
from os_acc.objects.selection import Allocations
from os_acc.profiles import parser

# Characters of the list of missing requests; a profile has up to 256.
_LONGEST = 400


def by_instance(
    asked: Mapping[str, RequestBinding],
) -> list[tuple[str, dict[str, RequestBinding]]]:
    """Return the bindings of each instance, sorted by its UUID."""
    found: defaultdict[str, dict[str, RequestBinding]] = defaultdict(dict)
    for uuid, binding in asked.items():
        found[binding.instance_uuid][uuid] = binding
    return sorted(found.items())


def groups(
    requests: Iterable[AcceleratorRequest],
) -> tuple[tuple[ProfileGroup, tuple[AcceleratorRequest, ...]], ...]:
    """Return each group with its requests, sorted by the suffix that Nova uses."""
    found: defaultdict[tuple[str, int], list[AcceleratorRequest]] = defaultdict(list)
    for each in requests:
        if each.group is not None:
            found[each.profile, each.group].append(each)
    read = [
        (parser.group(profile, index, dict(members[0].properties)), tuple(members))
        for (profile, index), members in found.items()
    ]
    return tuple(sorted(read, key=lambda each: each[0].suffix))


@dataclasses.dataclass(frozen=True, slots=True)
class BatchPlug:
    """The plug that binds the requests of an instance.

    :ivar named: the UUIDs of the requests of each group, by its suffix.
    """

    selection: Allocations
    request: FlavorRequest
    named: Mapping[str, Sequence[str]]


def plug_of(bound: Collection[AcceleratorRequest]) -> BatchPlug:
    """Return the plug for the requests of one instance, which have bindings."""
    found = groups(bound)
    amounts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for group, requests in found:
        provider = binding_of(requests[0]).device_rp_uuid
        amounts[provider].update(dict(group.request.resources))
    selection = Allocations(
        entries=tuple(
            (provider, tuple(sorted(each.items())))
            for provider, each in sorted(amounts.items())
        ),
        mappings=tuple(
            (group.suffix, (binding_of(requests[0]).device_rp_uuid,))
            for group, requests in found
        ),
    )
    (profile,) = {each.profile for each in bound}
    request = FlavorRequest(
        tuple(group.request for group, _requests in found),
        GroupPolicy.NONE,
        profile=profile,
    )
    named = {
        group.suffix: tuple(each.uuid for each in requests) for group, requests in found
    }
    return BatchPlug(selection, request, named)


def binding_of(request: AcceleratorRequest) -> RequestBinding:
    """Return the binding of a request that has one."""
    if request.binding is None:
        raise ValueError(f"accelerator request {request.uuid} has no binding")
    return request.binding


def check_whole(
    bound: Collection[AcceleratorRequest], recorded: Iterable[AcceleratorRequest]
) -> None:
    """Check that the requests can be bound to one instance together.

    :param bound: the requests, with their new bindings.
    :param recorded: all requests of this host.
    :raises InvalidInput: they are of several profiles or create calls, or not all
        requests of one call; or a group is bound to several providers.
    """
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
    ((batch, size),) = batches.items()
    if len(bound) != size:
        uuids = {each.uuid for each in bound}
        others = [
            each for each in recorded if each.batch == batch and each.uuid not in uuids
        ]
        raise exception.InvalidInput(
            f"bindings has {len(bound)} of the {size} accelerator requests that were "
            f"created together for {profile}",
            hint=_completion(others, size - len(bound)),
        )
    _check_providers(bound, profile)


def _completion(others: Collection[AcceleratorRequest], missing: int) -> str:
    """Return the remedy for a binding without some requests of a create call."""
    if len(others) < missing:
        return "some of them were deleted: create the requests of the profile again"
    uuids = exception.shorten(", ".join(each.uuid for each in others), _LONGEST)
    if all(each.allows(RequestAction.BIND) for each in others):
        return f"bind {uuids} in the same call"
    return f"unbind {uuids}, then bind all of them in one call"


def _check_providers(bound: Iterable[AcceleratorRequest], profile: str) -> None:
    for group, requests in groups(bound):
        providers = sorted(
            {each.binding.device_rp_uuid for each in requests if each.binding}
        )
        if len(providers) > 1:
            raise exception.InvalidInput(
                f"cannot bind group {group.index} of {profile} to several "
                f"providers: {', '.join(providers)}",
                hint="bind the requests of a group to one provider",
            )
