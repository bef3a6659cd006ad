# SPDX-License-Identifier: Apache-2.0

"""Match request groups to the providers that Placement selected for them.

The decision is Placement's; this module reconstructs it and never changes it.
Selections always include other providers (the compute node itself, and during
evacuation those of the source host); these are ignored.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from os_acc import exception
from os_acc.objects.bitstream import names_function, names_region
from os_acc.objects.request_group import (
    Allocations,
    FlavorRequest,
    GroupAllocation,
    GroupPolicy,
    RequestGroup,
    Selection,
    SingleProvider,
    title,
)
from os_acc.scheduling.assignment import NO_PINS, Assignment
from os_acc.scheduling.missing_mappings import TraitView, without_mappings

_NOTHING_KNOWN: Final = TraitView()


def match_groups(
    request: FlavorRequest,
    selection: Selection,
    ours: Mapping[str, str],
    known: TraitView = _NOTHING_KNOWN,
    recorded: Assignment = NO_PINS,
) -> tuple[GroupAllocation, ...]:
    """Attribute a selection to the request's groups.

    :param ours: this host's providers: uuid to resource class.
    :param known: traits of these and other providers; unused with mappings.
    :param recorded: the provider of each (suffix, resource class), as far as it
        was decided before; used only without mappings.
    :returns: one entry for each group and provider, sorted; empty if the
        allocations include no provider of this host.
    :raises ProviderNotFound: a single provider that is not on this host.
    :raises InvalidAllocation: selection and request contradict each
        other; a subclass if the allocations have no mappings.
    :raises InvalidExtraSpec: a group requests a bitstream, and no provider of
        this host serves it.
    """
    if isinstance(selection, SingleProvider):
        wanted = _from_single(request, selection.uuid, ours, known)
    else:
        allocated = _of_ours(selection, ours)
        if not allocated:
            wanted = []
        elif selection.mappings is not None:
            wanted = _with_mappings(request, allocated, selection.mappings, ours)
        elif not request.groups:
            wanted = [GroupAllocation("", uuid, ours[uuid], n) for uuid, n in allocated]
        else:
            wanted = without_mappings(request, selection, ours, known, recorded)
    if request.groups:
        _check_served_once(wanted)
    _check_isolation(request, wanted)
    return tuple(sorted(_with_requirements(request, wanted)))


def check_promise(
    request: FlavorRequest, selection: Selection, ours: Mapping[str, str]
) -> None:
    """Reject accelerators allocated for a device profile that cannot be read.

    Accelerators requested by the flavor itself are accepted in any case.

    :param ours: see :func:`match_groups`.
    :raises ServiceUnavailable: accelerators of this host are allocated for the
        profile, and its requirements are unknown.
    :raises InvalidAllocation: see :func:`match_groups`.
    """
    if not request.unreadable_profile:
        return
    if isinstance(selection, SingleProvider):
        # The provider serves the entire request, which includes the profile.
        is_theirs = selection.uuid in ours
    else:
        allocated: Counter[str] = Counter()
        for provider, amount in _of_ours(selection, ours):
            allocated[ours[provider]] += amount
        own: Counter[str] = Counter()
        for group in request.groups:
            own.update(dict(group.resources))
        is_theirs = not allocated <= own
    if is_theirs:
        raise exception.ServiceUnavailable(
            "accelerators of this host are allocated for device profile "
            f"{exception.show(request.unreadable_profile)}, but no source of "
            "device profiles is configured",
            hint="set catalogue or source in [os_acc_profiles]",
            service=exception.ServiceType.ACCELERATOR,
            reason=exception.OutageReason.LOCAL_SOURCE,
        )


def _with_requirements(
    request: FlavorRequest, wanted: Sequence[GroupAllocation]
) -> list[GroupAllocation]:
    """Add the bitstream, target and policy of its group to each allocation."""
    suffixes = [one.group_suffix for one in wanted]
    groups = {group.suffix: group for group in request.groups}
    for suffix, group in sorted(groups.items()):
        if wanted and group.bitstream_request and suffix not in suffixes:
            raise exception.InvalidExtraSpec(
                f"{title(suffix)} requests {group.bitstream_request}, but none of its "
                "resources is an accelerator of this host",
                hint="use the suffix of the group that has the accelerator in this key",
            )
    found = []
    for one in wanted:
        group = groups.get(one.group_suffix, RequestGroup(one.group_suffix))
        # The traits of the unnumbered group may be on any of its providers.
        is_spread = not group.suffix and suffixes.count("") > 1
        required = () if is_spread else sorted(group.required)
        found.append(
            dataclasses.replace(
                one,
                bitstream_request=group.bitstream_request,
                attach_target=group.attach_target,
                # Those that select an FPGA region or its function.
                required=tuple(
                    each
                    for each in required
                    if names_region(each) or names_function(each)
                ),
                numa_policy=group.numa_policy,
            )
        )
    return found


def _asking(request: FlavorRequest, resource_class: str) -> list[tuple[str, int]]:
    """Return (suffix, amount) of each group that requests a resource class."""
    amounts = [(group.suffix, group.amount(resource_class)) for group in request.groups]
    return [(suffix, amount) for suffix, amount in amounts if amount]


def _from_single(
    request: FlavorRequest,
    provider: str,
    ours: Mapping[str, str],
    known: TraitView,
) -> list[GroupAllocation]:
    """Attribute one provider, as an allocation of all that the groups request of it."""
    if provider not in ours:
        raise exception.ProviderNotFound(
            f"resource provider {provider} is not an accelerator of this host",
            hint="'os-acc provider list' lists its providers",
        )
    resource_class = ours[provider]
    # The single provider stands for the entire request: a guest must not start
    # without the accelerators that another provider of this host would serve.
    for other in sorted(set(ours.values()) - {resource_class}):
        for suffix, amount in _asking(request, other):
            raise exception.InvalidAllocation(
                f"{title(suffix)} requests {amount} {other}, but the only "
                f"selected provider {provider} has {resource_class}",
                hint="pass the entire allocation request instead of one provider",
            )
    groups = tuple(
        dataclasses.replace(group, resources=((resource_class, amount),))
        for group in request.groups
        if (amount := group.amount(resource_class))
    )
    if not groups:
        raise exception.InvalidAllocation(
            f"no request group requests {resource_class}, the resource "
            f"class of the selected provider {provider}"
        )
    total = sum(group.amount(resource_class) for group in groups)
    selection = Allocations(((provider, ((resource_class, total),)),))
    only = {provider: resource_class}
    return without_mappings(FlavorRequest(groups), selection, only, known, NO_PINS)


def _of_ours(selection: Allocations, ours: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return (provider, amount) of each allocation on a provider of this host."""
    allocated = []
    for provider, resources in selection.entries:
        if provider not in ours:
            continue
        for resource_class, amount in resources:
            if resource_class != ours[provider]:
                raise exception.InvalidAllocation(
                    f"cannot serve the allocation of {amount} {resource_class} on "
                    f"provider {provider}: it has {ours[provider]}"
                )
            allocated.append((provider, amount))
    return allocated


def _with_mappings(
    request: FlavorRequest,
    allocated: Iterable[tuple[str, int]],
    mappings: Sequence[tuple[str, tuple[str, ...]]],
    ours: Mapping[str, str],
) -> list[GroupAllocation]:
    wanted = []
    for provider, amount in allocated:
        suffixes = [suffix for suffix, members in mappings if provider in members]
        parts = _parts(request, provider, amount, suffixes, ours[provider])
        wanted += [GroupAllocation(s, provider, ours[provider], n) for s, n in parts]
    named = {suffix for suffix, _members in mappings}
    for resource_class in sorted(set(ours.values())):
        for suffix, amount in _asking(request, resource_class):
            if suffix not in named:
                raise exception.InvalidAllocation(
                    f"{title(suffix)} requests {amount} {resource_class}, but the "
                    "mappings lack this group"
                )
    return wanted


def _parts(
    request: FlavorRequest,
    provider: str,
    allocated: int,
    suffixes: Sequence[str],
    resource_class: str,
) -> list[tuple[str, int]]:
    """Divide one provider's allocation among its groups."""
    if not suffixes:
        raise exception.InvalidAllocation(
            f"the mappings lack a group for provider {provider}"
        )
    if not request.groups:
        if len(suffixes) > 1:
            raise exception.InvalidAllocation(
                f"provider {provider} serves the groups "
                f"{', '.join(suffixes)}, but the amount of each is unknown",
                hint="pass the flavor's extra specs as well",
            )
        return [(suffixes[0], allocated)]
    known = {group.suffix for group in request.groups}
    for suffix in suffixes:
        if suffix not in known:
            raise exception.InvalidAllocation(
                f"the mappings give provider {provider} to {title(suffix)}, "
                "which the flavor lacks"
            )
    parts = [part for part in _asking(request, resource_class) if part[0] in suffixes]
    asked = sum(amount for _suffix, amount in parts)
    if asked != allocated:
        raise exception.InvalidAllocation(
            f"{allocated} {resource_class} are allocated on provider "
            f"{provider}, but its groups request {asked}"
        )
    return parts


def _check_served_once(wanted: Iterable[GroupAllocation]) -> None:
    # Placement never splits a resource class of one group over providers.
    provider_of: dict[tuple[str, str], str] = {}
    for one in wanted:
        served = (one.group_suffix, one.resource_class)
        first = provider_of.setdefault(served, one.provider_uuid)
        if first != one.provider_uuid:
            raise exception.InvalidAllocation(
                f"{title(one.group_suffix)} requests {one.amount} "
                f"{one.resource_class}, but provider {first} and provider "
                f"{one.provider_uuid} would each serve all of it"
            )


def _check_isolation(request: FlavorRequest, wanted: Iterable[GroupAllocation]) -> None:
    if request.policy is not GroupPolicy.ISOLATE:
        return
    holder: dict[str, str] = {}
    for one in wanted:
        if not one.group_suffix:
            continue
        first = holder.setdefault(one.provider_uuid, one.group_suffix)
        if first != one.group_suffix:
            raise exception.InvalidAllocation(
                f"group_policy is 'isolate', but the groups {first!r} and "
                f"{one.group_suffix!r} are both on provider {one.provider_uuid}"
            )
