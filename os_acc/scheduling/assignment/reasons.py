# SPDX-License-Identifier: Apache-2.0

"""Explain to an operator why no assignment exists."""

from __future__ import annotations

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
)
from os_acc.scheduling.assignment.search import DeadEnd

_SHOWN: Final = 4


def reason(case: AssignmentCase, end: DeadEnd, providers: Sequence[str]) -> str:
    """Return the group without a provider and the reason, or unrequested resources.

    :param end: the failed step of the search.
    :param providers: the uuid of the provider at each place.
    """
    found = itertools.chain(_alone(case), _in_all(case))
    return next(found, "") or _furthest(case, end, providers)


def _alone(case: AssignmentCase) -> Iterator[str]:
    """Yield parts of the request that no provider could serve even on its own."""
    allocated = _by_uuid(case.allocated)
    for part in parts_of(case.groups):
        reasons = [part.obstacle(each, case) for each in allocated]
        if not all(reasons):
            continue
        # Providers without the class at all are the least informative.
        reasons = [why for why in reasons if not why.startswith("none")] or reasons
        shown = "; ".join(reasons[:_SHOWN]) or "nothing is allocated"
        more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
        yield f"{_asks(part)}, but {shown}{more}"


def _by_uuid(allocated: Collection[ProviderAllocation]) -> list[ProviderAllocation]:
    return sorted(allocated, key=lambda each: each.provider)


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


def _furthest(case: AssignmentCase, end: DeadEnd, providers: Sequence[str]) -> str:
    """Return the group, or the allocation, at which the search failed."""
    if end.suffix is not None:
        (group,) = (each for each in case.groups if each.suffix == end.suffix)
        others = [title(each) for each in end.beside]
        beside = f" beside {', '.join(others[-_SHOWN:])}" if others else ""
        return f"{_wants(group)}, but {end.obstacle} is left{beside}"
    uuid = providers[end.place]
    (there,) = (each for each in case.allocated if each.provider == uuid)
    what = _listed(f"{amount} {name}" for name, amount in there.resources)
    isolated = " while group_policy is 'isolate'"
    return (
        f"{what} are allocated on provider {uuid}, but no groups that it can serve "
        f"request exactly that{isolated * (case.policy is GroupPolicy.ISOLATE)}"
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
