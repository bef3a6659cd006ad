# SPDX-License-Identifier: Apache-2.0

"""Measure the assignment of providers to request groups, against reading them."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import measure
from benchmarks.plan import Benchmark, Plan
from benchmarks.rows import Row
from os_acc import exception
from os_acc.objects.request_group import Allocations, GroupAllocation
from os_acc.scheduling import allocation_candidates, extra_specs
from os_acc.scheduling.matching import match_groups
from os_acc.scheduling.missing_mappings import TraitView

NAME = "assignment"
_FLOOR = "reading flavor and allocations"
_GPU = "CUSTOM_ACCELERATOR_GPU"
_PROVIDERS = (64, 128, 256, 512)
#: The number of providers for each request group.
_EACH = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a plug, and the provider data for its assignment.

    :ivar ours: os_acc's providers; the request uses up all of them.
    :ivar known: the traits of the providers.
    :ivar refused: the expected reason, if no assignment exists.
    """

    specs: dict[str, str]
    selected: dict[str, Any]
    ours: dict[str, str]
    known: TraitView
    refused: exception.AllocationReason | None = None


def _uuid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def _request(
    amounts: list[int],
    allocated: list[int],
    ours: int,
    rules: Callable[[int], list[str]] = lambda _group: [],
    traits: Callable[[int], list[str]] = lambda _provider: [],
    policy: str = "none",
    refused: exception.AllocationReason | None = None,
) -> Request:
    """Build a request with these amounts of groups and allocations of providers.

    :param rules: returns the traits that a group requires.
    :param traits: returns the traits of a provider.
    """
    specs = {"group_policy": policy}
    for group, amount in enumerate(amounts):
        specs[f"resources{group}:{_GPU}"] = str(amount)
        specs |= {f"trait{group}:{name}": "required" for name in rules(group)}
    uuids = [_uuid(number) for number in range(len(allocated))]
    known = {uuid: frozenset(traits(n)) for n, uuid in enumerate(uuids)}
    return Request(
        specs,
        {
            "allocations": {
                uuid: {"resources": {_GPU: amount}}
                for uuid, amount in zip(uuids, allocated, strict=True)
            }
        },
        dict.fromkeys(uuids[:ours], _GPU),
        TraitView(own={uuid: known[uuid] for uuid in uuids[:ours]}, published=known),
        refused,
    )


def _alike(providers: int) -> Request:
    groups = providers // _EACH
    return _request([1] * groups, [1] * providers, groups, policy="isolate")


def _own_traits(providers: int) -> Request:
    groups = providers // _EACH
    return _request(
        [1] * groups,
        [1] * providers,
        groups,
        # The last group needs the first provider.
        rules=lambda group: [f"CUSTOM_{groups - 1 - group}"],
        traits=lambda provider: [f"CUSTOM_{provider}"],
    )


def _mixed(providers: int) -> Request:
    groups = providers // _EACH
    dice = random.Random(1)
    amounts = [dice.randint(1, 8) for _ in range(groups)]
    ours = groups // 4
    allocated = [sum(amounts[at::ours]) for at in range(ours)]
    return _request(amounts, [*allocated, *[1] * (providers - ours)], ours)


def _one_too_few(providers: int) -> Request:
    groups = providers // _EACH
    return _request(
        [1] * groups,
        [1] * providers,
        groups,
        rules=lambda group: ["CUSTOM_A", "CUSTOM_B"][group % 2 :][:1],
        traits=lambda provider: ["CUSTOM_A", "CUSTOM_B"] * (provider < groups - 1),
        refused=exception.AllocationReason.NO_ASSIGNMENT,
    )


def _too_hard(providers: int) -> Request:
    dice = random.Random(1)
    amounts = [dice.randint(10**5, 10**7) for _ in range(32)]
    ours = 8
    allocated = [sum(amounts[at::ours]) for at in range(ours)]
    return _request(
        amounts,
        [*allocated, *[1] * (providers - ours)],
        ours,
        refused=exception.AllocationReason.TOO_HARD,
    )


_CASES: dict[str, Callable[[int], Request]] = {
    "groups that are alike, isolated": _alike,
    "a trait for each group": _own_traits,
    "mixed amounts": _mixed,
    "one provider too few": _one_too_few,
    "given up": _too_hard,
}


def rows(plan: Plan) -> Iterator[Row]:
    """Yield rows for growing numbers of providers, with a group for each sixteen."""
    for case, made in _CASES.items():
        for providers in plan.sizes(*_PROVIDERS):
            yield _row(plan, case, providers, made(providers))


def _row(plan: Plan, case: str, providers: int, request: Request) -> Row:
    pairs = measure.paired(
        measure.Work(
            functools.partial(_assign, *_read(request), request),
            lambda answer: _check(request, answer),
        ),
        measure.Work(lambda: _read(request), lambda read: None),
        plan.times(21),
    )
    return measure.row(
        pairs,
        benchmark=NAME,
        case=case,
        size=providers,
        things="providers",
        floor_is=_FLOOR,
    )


def _read(request: Request) -> tuple[Any, Allocations]:
    selection = allocation_candidates.parse_selected_rp(request.selected)
    assert isinstance(selection, Allocations)
    return extra_specs.parse(request.specs), selection


def _assign(
    flavor: Any, selection: Allocations, request: Request
) -> tuple[GroupAllocation, ...] | exception.OsAccError:
    try:
        return match_groups(flavor, selection, request.ours, request.known)
    except exception.InvalidAllocation as error:
        return error


def _check(
    request: Request, answer: tuple[GroupAllocation, ...] | exception.OsAccError
) -> None:
    if isinstance(answer, exception.OsAccError):
        assert answer.reason is request.refused, str(answer)
        return
    assert request.refused is None, f"answered with {answer}"
    amounts: dict[str, int] = {}
    for one in answer:
        amounts[one.provider_uuid] = amounts.get(one.provider_uuid, 0) + one.amount
        rule = request.specs[f"resources{one.group_suffix}:{_GPU}"]
        assert one.amount == int(rule), f"{one} is not {rule}"
    wanted = {
        uuid: request.selected["allocations"][uuid]["resources"][_GPU]
        for uuid in request.ours
    }
    assert amounts == wanted, f"{amounts} is not {wanted}"


def _cases(plan: Plan) -> set[tuple[str, int]]:
    return {(case, size) for case in _CASES for size in plan.sizes(*_PROVIDERS)}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(rows(plan)), _cases)
