# SPDX-License-Identifier: Apache-2.0

"""Which provider serves which request group, worked out from allocations.

What a scheduler's decision allocates is known; which group each part of it
is for is not, where the mappings are missing. Here that is found again, by
Placement's own rules (``placement.objects.allocation_candidate``, 16.0.0):

* one provider serves all of a numbered group, and has all that it requires
  and nothing that it forbids;
* each resource class of the unnumbered group is served by one provider; what
  it requires, these have between them, and none has what it forbids;
* under ``isolate`` no two numbered groups have the same provider.

The search is exact: an assignment is found wherever there is one, or the
budget is told to be spent. The same input has the same answer.

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

#: How many groups, parts of them that are served alone, and providers may
#: take part.
MAX_GROUPS: Final = 64
MAX_PARTS: Final = 256
MAX_PROVIDERS: Final = 512
#: How many steps a search may take; a step is one attempt, or one way along
#: which it is shown that an attempt cannot be ruled out.
BUDGET: Final = 50_000


def assign(case: AssignmentCase, budget: int = BUDGET) -> tuple[Served, ...]:
    """Find a provider for each group.

    :param budget: in steps.
    :returns: one entry for each group and resource class, sorted.
    :raises AssignmentTooLarge: more than the bounds take part.
    :raises AssignmentTooHard: neither found nor ruled out within the budget.
    :raises NoAssignment: there is none.
    """
    found = find(case, budget)
    if found is None:
        raise exception.NoAssignment(
            reason(case),
            hint="the flavor, or the allocations, are not those that were scheduled",
        )
    return found


def find(case: AssignmentCase, budget: int = BUDGET) -> tuple[Served, ...] | None:
    """Find a provider for each group; None, without a reason, if there is none.

    :raises AssignmentTooLarge: as :func:`assign` does.
    :raises AssignmentTooHard: as :func:`assign` does.
    """
    problem = problem_of(case)
    _check_bounds(len(case.groups), problem)
    try:
        found = AssignmentSearch(problem, budget).run()
    except BudgetSpent as error:
        raise exception.AssignmentTooHard(
            f"which of {len(problem.providers)} providers serves which of "
            f"{len(case.groups)} groups was not found in {budget} steps"
        ) from error
    return None if found is None else problem.served(found)


def _check_bounds(groups: int, problem: AssignmentProblem) -> None:
    parts = sum(len(kind.suffixes) for kind in problem.kinds)
    bounds: Mapping[str, tuple[int, int]] = {
        "request groups": (groups, MAX_GROUPS),
        "resource classes of request groups": (parts, MAX_PARTS),
        "providers": (len(problem.providers), MAX_PROVIDERS),
    }
    for what, (number, bound) in bounds.items():
        if number > bound:
            raise exception.AssignmentTooLarge(
                f"{number} {what} take part, and at most {bound} can be told apart"
            )
