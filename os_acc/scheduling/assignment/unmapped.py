# SPDX-License-Identifier: Apache-2.0

"""Attribute allocations without mappings, as Nova compute passes them.

The allocations are Placement's decision. A trait therefore excludes an
assignment only after everything that may have changed since is doubted.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from os_acc import exception
from os_acc.objects.request import FlavorRequest, GroupPolicy, RequestGroup
from os_acc.objects.selection import Allocations, GroupAllocation
from os_acc.scheduling.assignment import (
    AssignmentCase,
    ProviderAllocation,
    Served,
    assign,
    find,
)
from os_acc.scheduling.assignment.problem import Pins
from os_acc.scheduling.assignment.trait_view import TraitDoubt, TraitView

#: Classes that Nova adds from a flavor's own fields to the unnumbered group
#: (``nova.scheduler.utils.ResourceRequest``).
_OF_THE_FLAVOR: Final = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})


def without_mappings(
    request: FlavorRequest,
    selection: Allocations,
    ours: Mapping[str, str],
    known: TraitView,
    recorded: Pins,
) -> list[GroupAllocation]:
    """Attribute allocations to the groups that request accelerators.

    :param ours: this host's providers: uuid to resource class.
    :param recorded: the previous decision, if any. It stays valid as long as it
        answers the request, even if traits have changed.
    :raises InvalidAllocation: the allocations cannot belong to this request, there
        are too many groups or providers (TOO_LARGE), or no answer was found within
        the budget (TOO_HARD).
    """
    cases = _cases(request, selection, ours, known)
    served = _as_recorded(cases, recorded) if recorded else None
    if served is None:
        served = _newly_found(cases)
    groups = {group.suffix: group for group in request.groups}
    return [
        GroupAllocation(
            group_suffix=each.suffix,
            provider_uuid=each.provider,
            resource_class=each.resource_class,
            amount=groups[each.suffix].amount(each.resource_class),
        )
        for each in served
        if each.provider in ours
    ]


def _as_recorded(cases: Sequence[_Case], pins: Pins) -> tuple[Served, ...] | None:
    """Return the recorded assignment; None if it no longer answers the request."""
    for case in cases:
        with contextlib.suppress(exception.InvalidAllocation):
            if served := case.found(case.allocated(TraitDoubt.ALL), pins=pins):
                return served
    return None


def _newly_found(cases: Sequence[_Case]) -> tuple[Served, ...]:
    """Return the assignment that requires the least doubt."""
    *larger, last = cases
    for case in larger:
        with contextlib.suppress(exception.InvalidAllocation):
            if served := case.found_before(TraitDoubt.ALL):
                return served
    if served := last.found_before(TraitDoubt.HEARD):
        return served
    return assign(
        AssignmentCase(last.groups, last.policy, last.allocated(TraitDoubt.HEARD))
    )


def _cases(
    request: FlavorRequest,
    selection: Allocations,
    ours: Mapping[str, str],
    known: TraitView,
) -> list[_Case]:
    """Return the case of all groups, and that of groups with accelerators only.

    The first is preferred. The second serves if Nova requested something other
    than the flavor specifies: such changes do not concern accelerators.
    """
    offered = set(ours.values())
    amounts = _smallest(selection)
    all_groups, asking = [], []
    for group in request.groups:
        sent = group
        if not group.suffix:
            sent = _as_nova_has_it(request, group, amounts, offered)
        if any(name in offered for name, _amount in group.resources):
            asking.append(sent)
            all_groups.append(sent)
        elif sent.resources and all(name in amounts for name, _n in sent.resources):
            all_groups.append(sent)
    cases = [
        _Case(tuple(each), request.policy, selection, ours, known)
        for each in (all_groups, asking)
    ]
    return cases if len(all_groups) > len(asking) else cases[:1]


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    """Groups, and allocations that include theirs."""

    groups: tuple[RequestGroup, ...]
    policy: GroupPolicy | None
    selection: Allocations
    ours: Mapping[str, str]
    known: TraitView

    def found_before(self, end: TraitDoubt) -> tuple[Served, ...] | None:
        """Return the assignment with the least doubt, below the level ``end``."""
        doubted = {doubt: self.allocated(doubt) for doubt in TraitDoubt}
        if any(each.unsure for each in doubted[TraitDoubt.UNKNOWN]):
            try:
                if served := self.found(doubted[TraitDoubt.UNKNOWN], certain=True):
                    return served
            except exception.InvalidAllocation as error:
                if error.reason is not exception.AllocationReason.TOO_HARD:
                    raise
        for doubt in (TraitDoubt.UNKNOWN, TraitDoubt.CHANGING, TraitDoubt.HEARD):
            # Skip a level that adds no doubt about these traits.
            same = (
                doubt < TraitDoubt.HEARD
                and doubted[doubt] == doubted[TraitDoubt(doubt + 1)]
            )
            if doubt < end and not same and (served := self.found(doubted[doubt])):
                return served
        return None

    def found(
        self,
        allocated: Collection[ProviderAllocation],
        *,
        certain: bool = False,
        pins: Pins = MappingProxyType({}),
    ) -> tuple[Served, ...] | None:
        """Return an assignment of these allocations."""
        return find(AssignmentCase(self.groups, self.policy, allocated, pins, certain))

    def allocated(self, doubt: TraitDoubt) -> list[ProviderAllocation]:
        """Return all allocations; only providers of this host must be used up."""
        traits = frozenset[str]().union(
            *(group.required | group.forbidden for group in self.groups)
        )
        reading = self.known.doubting(doubt, traits)
        return [
            ProviderAllocation(
                provider, resources, provider in self.ours, *reading.of(provider)
            )
            for provider, resources in self.selection.entries
        ]


def _as_nova_has_it(
    request: FlavorRequest,
    group: RequestGroup,
    amounts: Mapping[str, int],
    offered: Collection[str],
) -> RequestGroup:
    """Return the unnumbered group with every class that may contribute a trait.

    :param amounts: the allocated amounts. Nova may have replaced a class that is
        not allocated, unless it is an accelerator.
    """
    kept = {
        name: amount
        for name, amount in group.resources
        if name in amounts or name in offered
    }
    if group.required or group.forbidden:
        asked = {name for each in request.groups for name, _amount in each.resources}
        added = _OF_THE_FLAVOR.difference(asked, request.zeroed)
        kept |= {name: amounts[name] for name in added & amounts.keys()}
    return dataclasses.replace(group, resources=tuple(sorted(kept.items())))


def _smallest(selection: Allocations) -> dict[str, int]:
    """Return the smallest amount of each class on one provider.

    During a migration the allocations include those of two hosts.
    """
    amounts: dict[str, int] = {}
    for _provider, resources in selection.entries:
        for name, amount in resources:
            amounts[name] = min(amount, amounts.get(name, amount))
    return amounts
