# SPDX-License-Identifier: Apache-2.0

"""Assign request groups to providers, given allocations without mappings.

The allocations of a scheduler's decision are known, but without mappings the
group of each part is not. This package reconstructs it by Placement's own rules
(``placement.objects.allocation_candidate``, 16.0.0):

* one provider serves a whole numbered group, has all traits that the group
  requires and none that it forbids;
* one provider serves each resource class of the unnumbered group; together these
  providers have its required traits, and none has a forbidden one;
* under ``isolate`` no two numbered groups share a provider.

The search is exact: it finds an assignment if one exists, or reports that the
budget is exhausted. The result is deterministic.

Specification: nova-specs, rocky, "Granular Resource Request Syntax".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from os_acc import exception
from os_acc.scheduling.assignment.problem import (
    AssignmentCase,
    AssignmentProblem,
    ProviderAllocation,
    Served,
    problem_of,
)
from os_acc.scheduling.assignment.reasons import reason
from os_acc.scheduling.assignment.search import AssignmentSearch, BudgetSpent

__all__ = ["AssignmentCase", "ProviderAllocation", "Served", "assign", "find"]

#: The maximum number of groups, of parts that are served separately, and of
#: providers.
MAX_GROUPS: Final = 64
MAX_PARTS: Final = 256
MAX_PROVIDERS: Final = 512
#: The maximum number of steps of a search: parts that are placed, also on trial.
BUDGET: Final = 2_000


def assign(case: AssignmentCase, budget: int = BUDGET) -> tuple[Served, ...]:
    """Find a provider for each group.

    :param budget: in steps.
    :returns: one entry for each group and resource class, sorted.
    :raises InvalidAllocation: TOO_LARGE: the problem exceeds the bounds. TOO_HARD:
        neither found nor excluded within the budget. NO_ASSIGNMENT: none exists.
    """
    problem, search, found = _searched(case, budget)
    if found is None:
        assert search.dead_end is not None
        raise exception.InvalidAllocation(
            reason(case, search.dead_end, problem.providers),
            hint="pass the flavor and the allocations that were scheduled",
            reason=exception.AllocationReason.NO_ASSIGNMENT,
        )
    return problem.served(found)


def find(case: AssignmentCase, budget: int = BUDGET) -> tuple[Served, ...] | None:
    """Find a provider for each group; return None, without a reason, if impossible.

    :raises InvalidAllocation: TOO_LARGE or TOO_HARD, as :func:`assign`.
    """
    problem, _search, found = _searched(case, budget)
    return None if found is None else problem.served(found)


def _searched(
    case: AssignmentCase, budget: int
) -> tuple[AssignmentProblem, AssignmentSearch, tuple[tuple[int, int], ...] | None]:
    problem = problem_of(case)
    _check_bounds(len(case.groups), problem)
    search = AssignmentSearch(problem, budget)
    try:
        return problem, search, search.run()
    except BudgetSpent as error:
        raise exception.InvalidAllocation(
            f"the search for an assignment of {len(problem.providers)} "
            f"providers to {len(case.groups)} request groups exceeded "
            f"{budget} steps",
            reason=exception.AllocationReason.TOO_HARD,
        ) from error


def _check_bounds(groups: int, problem: AssignmentProblem) -> None:
    parts = sum(len(kind.suffixes) for kind in problem.kinds)
    bounds: Mapping[str, tuple[int, int]] = {
        "request groups": (groups, MAX_GROUPS),
        "resource classes of request groups": (parts, MAX_PARTS),
        "providers": (len(problem.providers), MAX_PROVIDERS),
    }
    for what, (number, bound) in bounds.items():
        if number > bound:
            raise exception.InvalidAllocation(
                f"{number} {what} exceed the limit of {bound}",
                reason=exception.AllocationReason.TOO_LARGE,
            )
