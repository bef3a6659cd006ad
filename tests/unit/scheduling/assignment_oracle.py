# SPDX-License-Identifier: Apache-2.0

"""Every valid assignment, found by trying all assignments.

The oracle shares only the value types with the library. It checks each way to
assign a provider to every part of a request against Placement's rules.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

from os_acc.objects.request_group import GroupPolicy, RequestGroup
from os_acc.scheduling.assignment import ProviderAllocation

#: The provider for each (suffix, resource class).
Way: TypeAlias = dict[tuple[str, str], ProviderAllocation]


def every_assignment(
    groups: Sequence[RequestGroup],
    policy: GroupPolicy | None,
    allocated: Sequence[ProviderAllocation],
) -> list[dict[tuple[str, str], str]]:
    """Return all assignments that follow the rules."""
    return [
        {part: by.provider for part, by in way.items()}
        for way in _ways(groups, allocated)
        if _adds_up(way, groups, allocated)
        and all(_has_its_traits(way, group) for group in groups)
        and (policy is not GroupPolicy.ISOLATE or _is_isolated(way, groups))
    ]


def _ways(
    groups: Sequence[RequestGroup], allocated: Sequence[ProviderAllocation]
) -> Iterator[Way]:
    choices: list[list[Way]] = []
    for group in groups:
        names = [name for name, _amount in group.resources]
        if group.suffix:
            choices.append(
                [{(group.suffix, name): by for name in names} for by in allocated]
            )
        else:
            choices += [[{("", name): by} for by in allocated] for name in names]
    for chosen in itertools.product(*choices):
        yield {part: by for each in chosen for part, by in each.items()}


def _adds_up(
    way: Way, groups: Sequence[RequestGroup], allocated: Sequence[ProviderAllocation]
) -> bool:
    taken: defaultdict[tuple[str, str], int] = defaultdict(int)
    for group in groups:
        for name, amount in group.resources:
            taken[way[group.suffix, name].provider, name] += amount
    there = {
        (each.provider, name): (amount, each.exact)
        for each in allocated
        for name, amount in each.resources
    }
    if not taken.keys() <= there.keys():
        return False
    return all(
        taken[key] == amount if exact else taken[key] <= amount
        for key, (amount, exact) in there.items()
    )


def _has_its_traits(way: Way, group: RequestGroup) -> bool:
    serving = [by for (suffix, _name), by in way.items() if suffix == group.suffix]
    for trait in group.forbidden:
        if any(trait in by.violates for by in serving):
            return False
    needed = any if not group.suffix else all
    return all(
        needed(trait in by.satisfies for by in serving) for trait in group.required
    )


def _is_isolated(way: Way, groups: Collection[RequestGroup]) -> bool:
    serving = [
        way[group.suffix, group.resources[0][0]].provider
        for group in groups
        if group.suffix
    ]
    return len(set(serving)) == len(serving)
