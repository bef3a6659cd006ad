# SPDX-License-Identifier: Apache-2.0

"""Placement's allocation candidates: the query, and the selected one.

The query is that of Nova for a flavor (``nova.scheduler.utils.ResourceRequest``, method
``to_querystring``; Placement's API reference, "List allocation candidates"); no request
is sent here. Nova passes the selected candidate as ``selected_rp``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib import parse

from os_acc import exception
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.request_group import (
    MAX_AMOUNT,
    NUMBERED_SUFFIX,
    PLACEMENT_NAME,
    AllocationEntries,
    Allocations,
    FlavorRequest,
    GroupPolicy,
    RequestGroup,
    Selection,
    SingleProvider,
    title,
)
from os_acc.scheduling import extra_specs

#: The microversion of Nova 34. Suffixes that are not numbers need 1.33, mappings
#: in the response 1.34; since 1.36 every group needs resources.
MICROVERSION: Final = "1.36"
#: The default of Nova's ``[scheduler] max_placement_results``.
LIMIT: Final = 1000
_SUFFIX = re.compile(f"({NUMBERED_SUFFIX})?")
_FORMS = (
    "pass {'uuid': <provider>}, one allocation request of Placement "
    "({'allocations': {...}, 'mappings': {...}}), or None"
)


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
    asked: list[tuple[str, str]] = []
    for one in request.groups:
        amounts = sorted(f"{name}:{amount}" for name, amount in one.resources)
        asked.append((f"resources{one.suffix}", ",".join(amounts)))
        forbidden = (f"!{name}" for name in sorted(one.forbidden))
        if traits := [*sorted(one.required), *forbidden]:
            asked.append((f"required{one.suffix}", ",".join(traits)))
    if request.policy is not None:
        asked.append(("group_policy", request.policy.value))
    if limit is not None:
        if limit < 1:
            raise exception.InvalidInput(
                f"limit is {limit}", hint="pass a number of at least 1, or None for all"
            )
        asked.append(("limit", str(limit)))
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


def parse_selected_rp(selected_rp: object) -> Selection | None:
    """Parse ``selected_rp`` in one of its forms.

    * ``{"uuid": RP, ...}``: one provider; other keys are ignored;
    * ``{"allocations": {RP: {"resources": {RC: n}}}, "mappings": {S: [RP]}}``:
      one allocation request of Placement, ``mappings`` is optional;
    * None: prepare the recorded lease again.

    UUIDs are returned in canonical form, everything sorted.

    :raises InvalidAllocation: any other value.
    """
    if selected_rp is None:
        return None
    selected = _mapping("selected_rp", selected_rp, hint=_FORMS)
    if ("uuid" in selected) == ("allocations" in selected):
        raise _malformed(
            f"selected_rp is {exception.show(selected_rp)}: either 'uuid' or "
            "'allocations' is required",
            hint=_FORMS,
        )
    if "uuid" in selected:
        return SingleProvider(_uuid("selected_rp['uuid']", selected["uuid"]))
    entries = parse_allocations(selected["allocations"], "selected_rp['allocations']")
    if "mappings" not in selected:
        return Allocations(entries)
    providers = frozenset(provider for provider, _resources in entries)
    return Allocations(entries, _mappings(selected["mappings"], providers))


def _malformed(message: str, hint: str = "") -> exception.InvalidAllocation:
    return exception.InvalidAllocation(
        message, hint=hint, reason=exception.AllocationReason.MALFORMED
    )


def _mapping(where: str, value: object, hint: str = "") -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise _malformed(f"{where} is {exception.show(value)}, not a mapping", hint)
    return value


def _uuid(where: str, value: object) -> str:
    uuid = canonical_uuid(value)
    if uuid is None:
        raise _malformed(
            f"{where} is {exception.show(value)}, not the UUID of a resource provider"
        )
    return uuid


def parse_allocations(value: object, where: str) -> AllocationEntries:
    """Return the allocations on each provider, sorted, with canonical UUIDs.

    :param value: ``{RP: {"resources": {RC: n}}}``; other keys are ignored.
    :param where: names the value in messages.
    :raises InvalidAllocation: the value has another form.
    """
    entries: dict[str, tuple[tuple[str, int], ...]] = {}
    for key, allocation in _mapping(where, value).items():
        provider = _uuid(f"a key of {where}", key)
        if provider in entries:
            raise _malformed(f"{where} has the provider {provider} twice")
        here = f"{where}[{provider!r}]"
        resources = _mapping(here, allocation).get("resources")
        entries[provider] = _resources(f"{here}['resources']", resources)
    return tuple(sorted(entries.items()))


def _resources(where: str, value: object) -> tuple[tuple[str, int], ...]:
    resources = _mapping(where, value)
    if not resources:
        raise _malformed(f"{where} is empty")
    for name, amount in resources.items():
        if not isinstance(name, str) or not PLACEMENT_NAME.fullmatch(name):
            raise _malformed(
                f"{where} has {exception.show(name)}, which is not the name "
                "of a resource class"
            )
        if type(amount) is not int or not 1 <= amount <= MAX_AMOUNT:
            raise _malformed(
                f"{where}[{name!r}] is {exception.show(amount)}, "
                f"not an integer from 1 to {MAX_AMOUNT}"
            )
    return tuple(sorted(resources.items()))


def _mappings(
    value: object, allocated: frozenset[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    where = "selected_rp['mappings']"
    mappings: list[tuple[str, tuple[str, ...]]] = []
    for suffix, members in _mapping(where, value).items():
        if not isinstance(suffix, str) or not _SUFFIX.fullmatch(suffix):
            raise _malformed(
                f"{where} has {exception.show(suffix)}, which is not the "
                "suffix of a request group"
            )
        providers = _providers(f"{where}[{suffix!r}]", members, allocated)
        mappings.append((suffix, providers))
    return tuple(sorted(mappings))


def _providers(where: str, value: object, allocated: frozenset[str]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise _malformed(
            f"{where} is {exception.show(value)}, not a list of resource providers"
        )
    providers = [_uuid(f"an item of {where}", item) for item in value]
    if len(set(providers)) < len(providers):
        raise _malformed(f"{where} names a provider twice")
    for provider in providers:
        if provider not in allocated:
            raise _malformed(
                f"{where} names the provider {provider}, which is not in the "
                "allocations"
            )
    return tuple(sorted(providers))
