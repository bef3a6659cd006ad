# SPDX-License-Identifier: Apache-2.0

"""Build the query for ``GET /allocation_candidates`` from a flavor, as Nova does.

No request is sent here. See Placement's API reference, "List allocation
candidates", and ``nova.scheduler.utils.ResourceRequest.to_querystring``.
"""

from __future__ import annotations

import dataclasses
from typing import Final
from urllib import parse

from os_acc import exception
from os_acc.objects.request_group import (
    MAX_AMOUNT,
    FlavorRequest,
    GroupPolicy,
    RequestGroup,
    title,
)
from os_acc.scheduling import extra_specs

#: The microversion of Nova 34. Suffixes that are not numbers need 1.33, mappings
#: in the response 1.34; since 1.36 every group needs resources.
MICROVERSION: Final = "1.36"
#: The default of Nova's ``[scheduler] max_placement_results``.
LIMIT: Final = 1000


def query(request: FlavorRequest, limit: int | None = LIMIT) -> str:
    """Return the query string; reject requests that Placement would reject.

    Only Placement knows an operator's custom classes and traits; it answers 400
    to an unknown name.

    :param limit: the maximum number of candidates; None for all.
    :raises InvalidExtraSpec: as :func:`os_acc.scheduling.extra_specs.parse`; the
        request is empty; the unnumbered group has traits and no resources.
    :raises InvalidInput: a limit below 1.
    """
    extra_specs.check(request)
    _check_resources(request)
    asked = [(f"resources{one.suffix}", _resources(one)) for one in request.groups]
    asked += [
        (f"required{one.suffix}", traits)
        for one in request.groups
        if (traits := _traits(one))
    ]
    if request.policy is not None:
        asked.append(("group_policy", request.policy.value))
    if limit is not None:
        asked.append(("limit", _limit(limit)))
    return parse.urlencode(sorted(asked))


def filled(
    request: FlavorRequest, *, vcpus: int, memory_mb: int, disk_gb: int
) -> FlavorRequest:
    """Add the amounts of the flavor's own fields to a request, as Nova does.

    They are added to the unnumbered group. A class named by any extra spec, even
    with 0 (``resources:VCPU=0``), is not added.

    :param disk_gb: root, ephemeral and swap disk together, in GiB; without
        the root disk for a server that boots from a volume.
    :raises InvalidExtraSpec: an amount exceeds Placement's range.
    """
    named = request.zeroed | {
        name for group in request.groups for name, _amount in group.resources
    }
    own = {"MEMORY_MB": memory_mb, "DISK_GB": disk_gb}
    if "PCPU" not in named:
        own["VCPU"] = vcpus
    added = {name: own[name] for name in own.keys() - named if own[name]}
    for name, amount in sorted(added.items()):
        if not 0 < amount <= MAX_AMOUNT:
            raise exception.InvalidExtraSpec(
                f"the flavor itself has {exception.show(amount)} of {name}",
                hint=f"use an amount from 1 to {MAX_AMOUNT}",
            )
    if not added:
        return request
    by_suffix = {group.suffix: group for group in request.groups}
    unnumbered = by_suffix.get("", RequestGroup(""))
    by_suffix[""] = dataclasses.replace(
        unnumbered, resources=tuple(sorted((*unnumbered.resources, *added.items())))
    )
    return dataclasses.replace(
        request, groups=tuple(group for _suffix, group in sorted(by_suffix.items()))
    )


def miscounted(request: FlavorRequest) -> tuple[str, ...]:
    """Return classes that Placement 16 may allocate beyond the requested amount.

    If the unnumbered group and a numbered one get a class from the same
    provider, and the policy is not ``none``, Placement adds the second amount to
    other candidates as well: it modifies a shared object
    (``placement.objects.research_context``, ``copy_arr_if_needed``).
    """
    if request.policy is GroupPolicy.NONE:
        return ()
    unnumbered, numbered = (
        {
            name
            for group in request.groups
            if bool(group.suffix) is is_numbered
            for name, _amount in group.resources
        }
        for is_numbered in (False, True)
    )
    return tuple(sorted(unnumbered & numbered))


def _check_resources(request: FlavorRequest) -> None:
    if not request.groups:
        raise exception.InvalidExtraSpec(
            "the flavor requests no resources: there are no candidates",
            hint="set resources<S>:<resource class>=<amount>",
        )
    for group in request.groups:
        if not group.resources:
            traits = sorted(group.required | group.forbidden)
            raise exception.InvalidExtraSpec(
                f"{title(group.suffix)} has traits ({', '.join(traits)}) "
                "but no resources",
                hint="request a resource: Placement rejects a group without "
                "resources, and Nova adds only the flavor's VCPU, MEMORY_MB "
                "and DISK_GB",
            )


def _resources(group: RequestGroup) -> str:
    return ",".join(sorted(f"{name}:{amount}" for name, amount in group.resources))


def _traits(group: RequestGroup) -> str:
    return ",".join(
        [*sorted(group.required), *(f"!{name}" for name in sorted(group.forbidden))]
    )


def _limit(limit: int) -> str:
    if limit < 1:
        raise exception.InvalidInput(
            f"limit is {limit}", hint="pass a number of at least 1, or None for all"
        )
    return str(limit)
