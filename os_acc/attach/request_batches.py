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
from os_acc.objects.request_group import (
    Allocations,
    FlavorRequest,
    GroupPolicy,
    RequestGroup,
)
from os_acc.profiles import parser

# Characters of the list of missing requests; a profile has up to 256.
_LONGEST = 400


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceBindings:
    """The bindings of one call to one instance, by the UUID of the request.

    :ivar image_id: the image that the instance boots, or ''.
    """

    instance: str
    image_id: str
    bindings: Mapping[str, RequestBinding]


def by_instance(asked: Mapping[str, RequestBinding]) -> list[InstanceBindings]:
    """Return the bindings of each instance, sorted by its UUID.

    :raises InvalidInput: the bindings of an instance name several images.
    """
    found: defaultdict[str, dict[str, RequestBinding]] = defaultdict(dict)
    for uuid, binding in asked.items():
        found[binding.instance_uuid][uuid] = binding
    bindings = []
    for instance, together in sorted(found.items()):
        images = sorted({each.image_id for each in together.values()} - {""})
        if len(images) > 1:
            raise exception.InvalidInput(
                f"the bindings of instance {instance} name several images: "
                f"{', '.join(map(exception.show, images))}",
                hint="pass the image that the instance boots",
            )
        bindings.append(InstanceBindings(instance, "".join(images), together))
    return bindings


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one create call, with bindings to one instance.

    :ivar named: the UUIDs of the requests of each group, by its suffix.
    """

    requests: tuple[AcceleratorRequest, ...]
    selection: Allocations
    flavor: FlavorRequest
    named: Mapping[str, Sequence[str]]


def batch(
    asked: Mapping[str, RequestBinding],
    found: Iterable[AcceleratorRequest],
    recorded: Iterable[AcceleratorRequest],
) -> Batch:
    """Return the requests with their new bindings, and the plug that binds them.

    :param found: the requests of these bindings.
    :param recorded: all requests of this host.
    :raises InvalidInput: they are of several profiles or create calls, or not all
        requests of one call; or a group is bound to several providers.
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
        group = parser.group(profile, index, dict(members[0].properties)).request
        amounts[providers[0]].update(dict(group.resources))
        groups.append(group)
        mappings.append((group.suffix, (providers[0],)))
        named[group.suffix] = [each.uuid for each in members]
    entries = sorted((at, tuple(sorted(each.items()))) for at, each in amounts.items())
    groups.sort(key=lambda each: each.suffix)
    return Batch(
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
