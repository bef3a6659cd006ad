# SPDX-License-Identifier: Apache-2.0

"""Search for an assignment by backtracking.

Dead ends are detected early: an amount that the remaining parts cannot add up
to, a required trait without a remaining provider, and, after the first failure,
insufficient room even for divisible amounts. Interchangeable parts form one
kind, interchangeable places are tried once, and a failed state is not tried
again in another order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from os_acc.scheduling.assignment import feasibility
from os_acc.scheduling.assignment.feasibility import adds_up
from os_acc.scheduling.assignment.problem import AssignmentProblem, bits

_Key: TypeAlias = tuple[object, ...]


class BudgetSpent(Exception):
    """The search has exhausted its budget."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Standing:
    """A partial assignment.

    :ivar counts: the number of unplaced parts of each kind.
    :ivar where: the places that may still serve each kind.
    :ivar left: the remaining amount of each class at each place.
    :ivar taken: the places that have a numbered group.
    :ivar lacking: the indexes of required traits that the unnumbered group still
        lacks.
    :ivar made: the (kind, place) of each placed part.
    """

    counts: tuple[int, ...]
    where: tuple[int, ...]
    left: tuple[tuple[int, ...], ...]
    taken: int
    lacking: frozenset[int]
    made: tuple[tuple[int, int], ...] = ()

    def open_kinds(self) -> Iterator[int]:
        """Return the kinds with unplaced parts."""
        return (kind for kind, count in enumerate(self.counts) if count)


class AssignmentSearch:
    """One search.

    :param budget: the maximum number of steps.
    """

    def __init__(self, problem: AssignmentProblem, budget: int) -> None:
        self._problem = problem
        self._needs = [dict(kind.need) for kind in problem.kinds]
        self._numbered = [kind.numbered for kind in problem.kinds]
        self._alike = _alike(problem)
        self._budget = budget
        self._failed: set[_Key] = set()

    def run(self) -> tuple[tuple[int, int], ...] | None:
        """Return the (kind, place) of each part; None: no assignment exists.

        :raises BudgetSpent: the result is unknown.
        """
        problem = self._problem
        start = _Standing(
            counts=tuple(len(kind.suffixes) for kind in problem.kinds),
            where=tuple(kind.where for kind in problem.kinds),
            left=problem.left,
            taken=0,
            lacking=frozenset(range(len(problem.helping))),
        )
        if not self._can_be_spread(start):
            return None
        end = self._completed(start)
        return end.made if end else None

    def _step(self) -> None:
        if not self._budget:
            raise BudgetSpent
        self._budget -= 1

    def _completed(self, start: _Standing) -> _Standing | None:
        """Return the complete assignment; None: impossible."""
        key = self._key(start)
        if key in self._failed:
            return None
        now = self._narrowed(start)
        while now is not None:
            self._step()
            choice = self._choice(now)
            if choice is None:
                return now
            end = self._completed(self._placed(now, *choice))
            if end is not None:
                return end
            now = self._narrowed(self._without(now, *choice))
        # Options excluded on the way had failed before, so the key omits them.
        self._failed.add(key)
        return None

    def _key(self, now: _Standing) -> _Key:
        """Return a key shared by states with the same continuations."""
        touched = {place for _kind, place in now.made}
        places = sorted(
            (self._alike[place], now.left[place], now.taken >> place & 1)
            for place in touched
        )
        return (now.counts, now.lacking, *places)

    # -- one step ----------------------------------------------------------

    def _placed(self, now: _Standing, kind: int, place: int) -> _Standing:
        """Return the state with one more part placed."""
        need, bit = self._needs[kind], 1 << place
        counts, where, left = list(now.counts), list(now.where), list(now.left)
        counts[kind] -= 1
        left[place] = has = tuple(
            amount - need.get(number, 0) for number, amount in enumerate(left[place])
        )
        alone = self._problem.isolate and self._numbered[kind]
        for other in now.open_kinds():
            if (alone and self._numbered[other]) or any(
                has[number] < amount for number, amount in self._needs[other].items()
            ):
                where[other] &= ~bit
        lacking = now.lacking
        if not self._numbered[kind]:
            lacking = frozenset(
                each for each in lacking if not self._problem.helping[each] & bit
            )
        return _Standing(
            counts=tuple(counts),
            where=tuple(where),
            left=tuple(left),
            taken=now.taken | bit if alone else now.taken,
            lacking=lacking,
            made=(*now.made, (kind, place)),
        )

    def _without(self, now: _Standing, kind: int, place: int) -> _Standing:
        """Return the state without a kind at a place and at its equivalents."""
        same = now.where[kind] & _with(now.taken, place)
        for other in now.open_kinds():
            same &= _with(now.where[other], place)
        alike = (self._alike[place], now.left[place])
        where = list(now.where)
        for each in bits(same):
            if (self._alike[each], now.left[each]) == alike:
                where[kind] &= ~(1 << each)
        return dataclasses.replace(now, where=tuple(where))

    def _choice(self, now: _Standing) -> tuple[int, int] | None:
        """Return the kind and place to try next: the most constrained."""
        kinds = list(now.open_kinds())
        if not kinds:
            return None
        if self._problem.isolate:
            # Once these are placed, the rest is a matching.
            kinds = [each for each in kinds if not self._numbered[each]] or kinds
        kind = min(kinds, key=lambda each: self._urgency(now, each))
        ways = now.where[kind].bit_count()
        fewest: list[int] | None = None
        for place in self._unfilled(now):
            able = [each for each in kinds if now.where[each] >> place & 1]
            if able and len(able) < ways:
                ways, fewest, best = len(able), able, place
        if fewest is None:
            return kind, self._best_place(now, kind)
        return min(fewest, key=lambda each: self._preference(each, best)), best

    def _urgency(self, now: _Standing, kind: int) -> tuple[int, int]:
        return now.where[kind].bit_count(), -max(self._needs[kind].values())

    def _preference(self, kind: int, place: int) -> tuple[int, int]:
        doubtful = self._problem.kinds[kind].doubtful >> place & 1
        return doubtful, -max(self._needs[kind].values())

    def _best_place(self, now: _Standing, kind: int) -> int:
        places = now.where[kind]
        preferred = [~self._problem.kinds[kind].doubtful]
        if not self._numbered[kind]:
            preferred += [self._problem.helping[each] for each in sorted(now.lacking)]
        for these in (*preferred, self._problem.exact):
            places = places & these or places
        return min(bits(places), key=lambda place: now.left[place])

    def _unfilled(self, now: _Standing) -> Iterator[int]:
        """Yield the places that still have to be used up."""
        return (place for place in bits(self._problem.exact) if any(now.left[place]))

    # -- pruning -----------------------------------------------------------

    def _narrowed(self, now: _Standing) -> _Standing | None:
        """Remove places that can no longer serve; return None at a dead end."""
        where = list(now.where)
        if not self._brings_all(now, where):
            return None
        if self._problem.isolate and not self._leaves_nothing(now, where):
            return None
        if any(not where[kind] for kind in now.open_kinds()):
            return None
        now = dataclasses.replace(now, where=tuple(where))
        if not all(self._adds_up(now, place) for place in self._unfilled(now)):
            return None
        # Rarely useful and expensive, so only after the first failure.
        return None if self._failed and not self._can_be_spread(now) else now

    def _brings_all(self, now: _Standing, where: list[int]) -> bool:
        """Return whether each missing unnumbered trait still has a provider."""
        rest = [kind for kind in now.open_kinds() if not self._numbered[kind]]
        for trait in now.lacking:
            helping = self._problem.helping[trait]
            able = [kind for kind in rest if where[kind] & helping]
            if not able:
                return False
            if len(able) == 1:
                where[able[0]] &= helping
        return True

    def _leaves_nothing(self, now: _Standing, where: list[int]) -> bool:
        """Return whether each place can be used up with one numbered group or none."""
        kinds = list(now.open_kinds())
        for place in self._unfilled(now):
            has, bit = now.left[place], 1 << place
            rest = self._of_the_unnumbered(now, place)
            usable = _covered(has, {}, rest)
            for kind in kinds:
                if not self._numbered[kind] or not where[kind] & bit:
                    continue
                if _covered(has, self._needs[kind], rest):
                    usable = True
                else:
                    where[kind] &= ~bit
            if not usable:
                return False
        return True

    def _of_the_unnumbered(self, now: _Standing, place: int) -> dict[int, int]:
        """Return the amount of each class that unnumbered parts may still take."""
        return {
            number: amount
            for kind in now.open_kinds()
            if not self._numbered[kind] and now.where[kind] >> place & 1
            for number, amount in self._needs[kind].items()
        }

    def _adds_up(self, now: _Standing, place: int) -> bool:
        """Return whether the rest of a place can be used up."""
        able = [kind for kind in now.open_kinds() if now.where[kind] >> place & 1]
        for number, left in enumerate(now.left[place]):
            amounts: dict[int, int] = {}
            for kind in able if left else ():
                amount = self._needs[kind].get(number)
                if amount:
                    many = min(now.counts[kind], left // amount)
                    amounts[amount] = amounts.get(amount, 0) + many
            if not adds_up(left, tuple(sorted(amounts.items()))):
                return False
        return True

    def _can_be_spread(self, now: _Standing) -> bool:
        """Return whether all parts fit and all mandatory places can be used up."""
        kinds = list(now.open_kinds())
        if self._problem.isolate:
            return self._numbered_can_be_spread(now, kinds)
        return all(
            self._class_can_be_spread(now, number, kinds)
            for number in range(len(self._problem.classes))
        )

    def _class_can_be_spread(
        self, now: _Standing, number: int, kinds: Sequence[int]
    ) -> bool:
        asking = [kind for kind in kinds if number in self._needs[kind]]
        rows = [now.where[kind] for kind in asking]
        places = (1 << len(now.left)) - 1
        parts = feasibility.parts_of_places(places, rows)
        room = [sum(now.left[p][number] for p in bits(part)) for part in parts]
        exact = self._problem.exact
        must = [sum(now.left[p][number] for p in bits(part & exact)) for part in parts]
        supply = [now.counts[kind] * self._needs[kind][number] for kind in asking]
        return feasibility.saturates(supply, rows, parts, room, must, self._step)

    def _numbered_can_be_spread(self, now: _Standing, kinds: Sequence[int]) -> bool:
        asking = [kind for kind in kinds if self._numbered[kind]]
        rows = [now.where[kind] for kind in asking]
        free = (1 << len(now.left)) - 1 & ~now.taken
        needed = sum(
            1 << place
            for place in self._unfilled(now)
            if not _covered(now.left[place], {}, self._of_the_unnumbered(now, place))
        )
        parts = feasibility.parts_of_places(free, rows)
        return feasibility.saturates(
            [now.counts[kind] for kind in asking],
            rows,
            parts,
            [part.bit_count() for part in parts],
            [(part & needed).bit_count() for part in parts],
            self._step,
        )


def _with(row: int, place: int) -> int:
    """Return a row, complemented if it does not contain the place."""
    return row if row >> place & 1 else ~row


def _covered(
    has: Sequence[int], need: Mapping[int, int], rest: Mapping[int, int]
) -> bool:
    """Return whether a part uses up a place, apart from the rest's possible share."""
    return all(
        amount - need.get(number, 0) in (0, rest.get(number, 0))
        for number, amount in enumerate(has)
    )


def _alike(problem: AssignmentProblem) -> list[int]:
    """Return a number for each place, equal for interchangeable places."""
    rows = (
        problem.exact,
        *problem.helping,
        *(kind.where for kind in problem.kinds),
        *(kind.doubtful for kind in problem.kinds),
    )
    numbers: dict[_Key, int] = {}
    return [
        numbers.setdefault((left, *(row >> place & 1 for row in rows)), len(numbers))
        for place, left in enumerate(problem.left)
    ]
