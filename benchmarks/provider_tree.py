# SPDX-License-Identifier: Apache-2.0

"""Measure ``update_provider_tree()``, against the same calls of the tree alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import host, leased, measure
from benchmarks.plan import Benchmark, Plan, scratch
from benchmarks.rows import Count, Row
from os_acc.attach.manager import Manager
from os_acc.placement import provider_tree as called
from os_acc.testing.nova import FakeProviderTree

NAME = "provider-tree"
FIRST, AGAIN = "into an empty tree", "into a tree that has it all"
_FLOOR = "the same calls of the tree"
_CARDS = (1, 4, 16, 64, 256)
_NODE = "host"

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def rows(plan: Plan) -> Iterator[Row]:
    """Yield rows for growing numbers of cards with fifteen VFs, one provider each."""
    for cards in plan.sizes(*_CARDS):
        with scratch() as directory:
            functions = cards * host.CARD
            bench = leased.bench(os.path.join(directory, "bench"), functions)
            with leased.privileged_here(bench) as manager:
                for case in (FIRST, AGAIN):
                    yield _row(plan, manager, cards, case)


def _row(plan: Plan, manager: Manager, cards: int, case: str) -> Row:
    def fresh() -> _Recording:
        made = _Recording()
        made.new_root(_NODE, "2f3b7f0a-6a5b-4b3e-8c39-1f9a2b7b6d10")
        if case == AGAIN:
            manager.update_provider_tree(made, _NODE)
        made.calls.clear()
        return made

    recorded = fresh()
    manager.update_provider_tree(recorded, _NODE)
    calls = tuple(recorded.calls)
    subject = _work(
        fresh, cards, lambda tree: manager.update_provider_tree(tree, _NODE)
    )
    pairs = measure.paired(
        subject, _work(fresh, cards, lambda tree: _replay(tree, calls)), plan.times(21)
    )
    return measure.row(
        pairs,
        benchmark=NAME,
        case=case,
        size=cards,
        things="providers",
        floor_is=_FLOOR,
        counts=(Count("calls of the tree", len(calls)),),
    )


def _work(
    fresh: Callable[[], FakeProviderTree],
    cards: int,
    write: Callable[[FakeProviderTree], None],
) -> measure.Work[FakeProviderTree]:
    ready: list[FakeProviderTree] = []

    def run() -> FakeProviderTree:
        write(ready[-1])
        return ready.pop()

    def check(tree: FakeProviderTree) -> None:
        uuids = tree.get_provider_uuids()[1:]
        assert len(uuids) == cards, f"{len(uuids)} providers"
        totals = [
            record["total"]
            for uuid in uuids
            for record in tree.data(uuid).inventory.values()
        ]
        assert totals == [host.CARD - 1] * cards, f"totals are {totals}"

    def before() -> None:
        ready.append(_plain(fresh()))

    return measure.Work(run, check, before)


def _plain(tree: FakeProviderTree) -> FakeProviderTree:
    """Return the same tree, without recording."""
    tree.__class__ = FakeProviderTree
    return tree


def _replay(tree: FakeProviderTree, calls: tuple[Call, ...]) -> None:
    for name, args, more in calls:
        getattr(tree, name)(*args, **more)


class _Recording(FakeProviderTree):
    """Records the calls from outside, but not those of its own methods."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.inside = False


def _noting(name: str) -> Callable[..., Any]:
    real = getattr(FakeProviderTree, name)

    def call(tree: _Recording, *args: Any, **more: Any) -> Any:
        if tree.inside:
            return real(tree, *args, **more)
        tree.calls.append((name, args, more))
        tree.inside = True
        try:
            return real(tree, *args, **more)
        finally:
            tree.inside = False

    return call


for _name in vars(called.ProviderTree):
    if not _name.startswith("_"):
        setattr(_Recording, _name, _noting(_name))


def _cases(plan: Plan) -> set[tuple[str, int]]:
    return {(case, cards) for case in (FIRST, AGAIN) for cards in plan.sizes(*_CARDS)}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(rows(plan)), _cases)
