# SPDX-License-Identifier: Apache-2.0

"""The search for an assignment: place one part, see what is left, go back.

What cannot work is seen early: an amount that the rest cannot make up, a
trait that nobody is left to bring, and, once something has gone wrong, room
that is too small however amounts are spread. Parts that are alike are one
kind, places that are alike are tried once, and a situation that has failed
is not tried again in another order.
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
    """The search has taken as many steps as it may."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Standing:
    """How far an assignment is.

    :ivar counts: how many of each kind have no place yet.
    :ivar where: where one of each kind may still be served.
    :ivar left: what each place has left of each class.
    :ivar taken: the places that have a numbered group.
    :ivar lacking: the traits that the unnumbered group still has to get, by
        their numbers.
    :ivar made: the (kind, place) of each part that has one.
    """

    counts: tuple[int, ...]
    where: tuple[int, ...]
    left: tuple[tuple[int, ...], ...]
    taken: int
    lacking: frozenset[int]
    made: tuple[tuple[int, int], ...] = ()

    def open_kinds(self) -> Iterator[int]:
        """Those of which some have no place yet."""
        return (kind for kind, count in enumerate(self.counts) if count)


class AssignmentSearch:
    """One search.

    :param budget: how many steps it may take.
    """

    def __init__(self, problem: AssignmentProblem, budget: int) -> None:
        self._problem = problem
        self._needs = [dict(kind.need) for kind in problem.kinds]
        self._numbered = [kind.numbered for kind in problem.kinds]
        self._alike = _alike(problem)
        self._budget = budget
        self._failed: set[_Key] = set()

    def run(self) -> tuple[tuple[int, int], ...] | None:
        """The (kind, place) of each part; None: there is no assignment.

        :raises BudgetSpent: it is not known.
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
        """The standing with everything served; None: there is none."""
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
        # What was ruled out on the way here had been tried: it is not in the key.
        self._failed.add(key)
        return None

    def _key(self, now: _Standing) -> _Key:
        """The same for standings from which the same can be reached."""
        touched = {place for _kind, place in now.made}
        places = sorted(
            (self._alike[place], now.left[place], now.taken >> place & 1)
            for place in touched
        )
        return (now.counts, now.lacking, *places)

    # -- one step ----------------------------------------------------------

    def _placed(self, now: _Standing, kind: int, place: int) -> _Standing:
        """With one more part served."""
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
        """With no more of a kind at a place, nor at any like it."""
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
        """The kind and place to be tried next: where there are fewest ways."""
        kinds = list(now.open_kinds())
        if not kinds:
            return None
        if self._problem.isolate:
            # With these placed, what is left is a matching.
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
        wishes = [~self._problem.kinds[kind].doubtful]
        if not self._numbered[kind]:
            wishes += [self._problem.helping[each] for each in sorted(now.lacking)]
        for wish in (*wishes, self._problem.exact):
            places = places & wish or places
        return min(bits(places), key=lambda place: now.left[place])

    def _unfilled(self, now: _Standing) -> Iterator[int]:
        """The places that have to be used up, and are not yet."""
        return (place for place in bits(self._problem.exact) if any(now.left[place]))

    # -- what cannot work --------------------------------------------------

    def _narrowed(self, now: _Standing) -> _Standing | None:
        """Without places that cannot serve any more; None: that ends it."""
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
        # Seldom needed, and dear: not before something has gone wrong.
        return None if self._failed and not self._can_be_spread(now) else now

    def _brings_all(self, now: _Standing, where: list[int]) -> bool:
        """Whether somebody is left for each trait of the unnumbered group."""
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
        """Whether one numbered group, or none, can use each place up."""
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
        """The amounts of each class that it may still take from a place."""
        return {
            number: amount
            for kind in now.open_kinds()
            if not self._numbered[kind] and now.where[kind] >> place & 1
            for number, amount in self._needs[kind].items()
        }

    def _adds_up(self, now: _Standing, place: int) -> bool:
        """Whether what is left of a place can be used up."""
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
        """Whether there is room for all, and enough to use up what has to be."""
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
    """The places that are in a row if this one is, and else those that are not."""
    return row if row >> place & 1 else ~row


def _covered(
    has: Sequence[int], need: Mapping[int, int], rest: Mapping[int, int]
) -> bool:
    """Whether a part takes all that a place has, but for what the rest may take."""
    return all(
        amount - need.get(number, 0) in (0, rest.get(number, 0))
        for number, amount in enumerate(has)
    )


def _alike(problem: AssignmentProblem) -> list[int]:
    """A number for each place, the same for those that nothing tells apart."""
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
