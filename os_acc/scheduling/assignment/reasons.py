# SPDX-License-Identifier: Apache-2.0

"""Explain to an operator why no assignment exists."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from os_acc.objects.request import GroupPolicy, RequestGroup, title
from os_acc.scheduling.assignment.problem import (
    AssignmentCase,
    AssignmentPart,
    ProviderAllocation,
    parts_of,
    problem_of,
)
from os_acc.scheduling.assignment.search import AssignmentSearch, BudgetSpent

#: The budget of each search for the reason.
_BUDGET: Final = 3_750
_SHOWN: Final = 4


def reason(case: AssignmentCase) -> str:
    """Return the group without a provider and the reason, or unrequested resources."""
    # Ordered by cost; evaluation stops at the first result.
    found = itertools.chain(_alone(case), _in_all(case), _together(case))
    return next(found, "the allocations do not match the request groups")


def _works(case: AssignmentCase) -> bool:
    """Return whether an assignment exists; True if the budget is exhausted."""
    try:
        return AssignmentSearch(problem_of(case), _BUDGET).run() is not None
    except BudgetSpent:
        return True


def _alone(case: AssignmentCase) -> Iterator[str]:
    """Yield parts of the request that no provider could serve even on its own."""
    allocated = _by_uuid(case.allocated)
    for part in parts_of(case.groups):
        if any(not _why_not(part, each, case) for each in allocated):
            continue
        reasons = [why for each in allocated if (why := _why_not(part, each, case))]
        # Providers without the class at all are the least informative.
        reasons = [why for why in reasons if not why.startswith("none")] or reasons
        shown = "; ".join(reasons[:_SHOWN]) or "nothing is allocated"
        more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
        yield f"{_asks(part)}, but {shown}{more}"


def _by_uuid(allocated: Collection[ProviderAllocation]) -> list[ProviderAllocation]:
    return sorted(allocated, key=lambda each: each.provider)


def _why_not(
    part: AssignmentPart, each: ProviderAllocation, case: AssignmentCase
) -> str:
    """Return the reason why a provider cannot serve a part, empty if it can."""
    has, group = dict(each.resources), part.group
    for name, amount in part.resources:
        if not has.get(name):
            return f"none of {name} is allocated on provider {each.provider}"
        if has[name] < amount:
            return f"only {has[name]} {name} on provider {each.provider}"
        pin = case.pins.get((group.suffix, name), each.provider)
        if pin != each.provider:
            return f"provider {each.provider} is not {pin}, which must serve it"
    for trait in sorted(group.required) if part.numbered else ():
        if not each.has(trait, case.certain):
            return f"provider {each.provider} lacks the trait {trait}"
    for trait in sorted(group.forbidden):
        if not each.is_free_of(trait, case.certain):
            return f"provider {each.provider} has the forbidden trait {trait}"
    return ""


def _in_all(case: AssignmentCase) -> Iterator[str]:
    """Yield classes whose allocated amount differs from the requested amount."""
    exact = [each for each in _by_uuid(case.allocated) if each.exact]
    names = {name for each in exact for name, _amount in each.resources}
    asked = {name for group in case.groups for name, _amount in group.resources}
    for name in sorted(names | asked):
        wanted = sum(group.amount(name) for group in case.groups)
        there = [(dict(each.resources).get(name, 0), each) for each in case.allocated]
        bound = sum(amount for amount, each in there if each.exact)
        whole = sum(amount for amount, _each in there)
        asking = f"the groups request {wanted} {name} in total"
        if bound and not wanted:
            yield f"{_spread_over(name, exact)}, but no group requests any"
        if bound > wanted:
            yield f"{_spread_over(name, exact)}, but {asking}"
        if whole < wanted:
            yield f"{asking}, but {whole} are allocated"


def _spread_over(name: str, allocated: Sequence[ProviderAllocation]) -> str:
    there = [(dict(each.resources).get(name, 0), each.provider) for each in allocated]
    shown = _listed(f"{amount} on provider {uuid}" for amount, uuid in there if amount)
    return f"{sum(amount for amount, _uuid in there)} {name} are allocated ({shown})"


def _together(case: AssignmentCase) -> Iterator[str]:
    """Yield the first group for which the other groups leave no provider."""
    loose = dataclasses.replace(
        case,
        allocated=tuple(
            dataclasses.replace(each, exact=False) for each in case.allocated
        ),
    )
    if _works(loose):
        # Every group has a provider, but some allocation is not used up.
        yield from _left_over(case)
        return
    groups = sorted(case.groups, key=lambda group: group.suffix)
    fewer = [
        dataclasses.replace(loose, groups=tuple(groups[:number]))
        for number in range(1, len(groups) + 1)
    ]
    # Infeasibility is monotonic: adding groups never resolves it.
    first = bisect.bisect_left(fewer, True, key=lambda each: not _works(each))
    if first < len(fewer):
        yield f"{_wants(groups[first])}, but {_obstacle(fewer[first], groups[first])}"


def _obstacle(case: AssignmentCase, group: RequestGroup) -> str:
    """Return the constraint whose removal would give a group its provider."""
    others = [title(each.suffix) for each in case.groups if each is not group]
    beside = f" beside {', '.join(others[-_SHOWN:])}" if others else ""
    if _works(dataclasses.replace(case, policy=GroupPolicy.NONE)):
        return f"group_policy is 'isolate', and no suitable provider is left{beside}"
    plain = tuple(
        dataclasses.replace(each, required=frozenset(), forbidden=frozenset())
        for each in case.groups
    )
    if _works(dataclasses.replace(case, groups=plain)):
        return f"no provider with the right traits is left{beside}"
    return f"no provider with enough resources is left{beside}"


def _left_over(case: AssignmentCase) -> Iterator[str]:
    """Yield the first provider that cannot be used up together with earlier ones."""
    tight = [each for each in _by_uuid(case.allocated) if each.exact]
    fewer = [_with_exact(case, tight[:number]) for number in range(1, len(tight) + 1)]
    first = bisect.bisect_left(fewer, True, key=lambda each: not _works(each))
    if first == len(fewer):
        return
    what = _listed(f"{amount} {name}" for name, amount in tight[first].resources)
    rule = dataclasses.replace(fewer[first], policy=GroupPolicy.NONE)
    isolated = " while group_policy is 'isolate'" if _works(rule) else ""
    yield (
        f"{what} are allocated on provider {tight[first].provider}, "
        "but no groups that it can serve request exactly "
        f"that{isolated}"
    )


def _with_exact(
    case: AssignmentCase, tight: Sequence[ProviderAllocation]
) -> AssignmentCase:
    """Require only these providers to be used up."""
    bound = {each.provider for each in tight}
    return dataclasses.replace(
        case,
        allocated=tuple(
            dataclasses.replace(each, exact=each.provider in bound)
            for each in case.allocated
        ),
    )


def _asks(part: AssignmentPart) -> str:
    return _wants(dataclasses.replace(part.group, resources=part.resources))


def _wants(group: RequestGroup) -> str:
    what = _listed(f"{amount} {name}" for name, amount in group.resources)
    rules = [
        f"{word} {_listed(sorted(traits))}"
        for word, traits in (("requires", group.required), ("forbids", group.forbidden))
        if traits
    ]
    constraints = f" and {' and '.join(rules)}" if rules else ""
    return f"{title(group.suffix)} requests {what}{constraints}"


def _listed(names: Iterable[str]) -> str:
    """Join names, shortened to a readable number."""
    first = list(itertools.islice(names, _SHOWN + 1))
    return ", ".join(first[:_SHOWN]) + (", ..." if len(first) > _SHOWN else "")
