# SPDX-License-Identifier: Apache-2.0

"""Search for an assignment by backtracking, the most constrained part first.

Dead ends are detected early: an amount that the remaining parts cannot add up
to, a required trait without a remaining provider, and, before the first step,
parts that need more than all their places have. Interchangeable parts form one
kind, interchangeable places are tried once, and a failed state is not tried again
in another order.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from os_acc.scheduling.assignment.problem import AssignmentProblem, bits, mask

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


@dataclasses.dataclass(frozen=True, slots=True)
class DeadEnd:
    """The failed step at which most parts were placed.

    :ivar suffix: of the group that has no provider; None: ``place`` is not used up.
    :ivar obstacle: the reason for the missing provider.
    :ivar beside: the suffixes of the groups that have theirs.
    """

    suffix: str | None
    obstacle: str = ""
    beside: tuple[str, ...] = ()
    place: int = 0


_ISOLATED: Final = "group_policy is 'isolate', and no suitable provider"
_TRAITS: Final = "no provider with the right traits"
_RESOURCES: Final = "no provider with enough resources"


class AssignmentSearch:
    """One search.

    :param budget: the maximum number of steps.
    :ivar dead_end: the reason, if there is no assignment.
    """

    def __init__(self, problem: AssignmentProblem, budget: int) -> None:
        self._problem = problem
        self._needs = [dict(kind.need) for kind in problem.kinds]
        self._numbered = [kind.numbered for kind in problem.kinds]
        self._alike = _alike(problem)
        self._budget = budget
        self._failed: set[_Key] = set()
        self.dead_end: DeadEnd | None = None
        self._deepest = -1

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
        if self._is_short(start):
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
            self._note_dead_end(now, "", _TRAITS)
            return None
        now = dataclasses.replace(now, where=tuple(where))
        for kind in now.open_kinds():
            if not where[kind]:
                first = self._problem.kinds[kind].suffixes[-now.counts[kind]]
                self._note_dead_end(now, first, self._obstacle(now, kind))
                return None
        for place in self._unfilled(now):
            if not self._adds_up(now, place):
                self._note_dead_end(now, None, place=place)
                return None
        return now

    def _note_dead_end(
        self,
        now: _Standing,
        suffix: str | None,
        obstacle: str = "",
        others: Iterable[str] = (),
        place: int = 0,
    ) -> None:
        """Record a dead end if none was deeper."""
        if len(now.made) > self._deepest:
            self._deepest = len(now.made)
            placed = {
                each
                for number, kind in enumerate(self._problem.kinds)
                for each in kind.suffixes[: len(kind.suffixes) - now.counts[number]]
            }
            beside = tuple(sorted(placed.union(others) - {suffix}))
            self.dead_end = DeadEnd(suffix, obstacle, beside, place)

    def _obstacle(self, now: _Standing, kind: int) -> str:
        """Return the reason why places with enough resources cannot serve a kind."""
        need, suited = self._problem.kinds[kind].need, self._problem.kinds[kind].where
        roomy = mask(all(has[name] >= n for name, n in need) for has in now.left)
        if roomy & suited & now.taken:
            return _ISOLATED
        return _TRAITS if roomy & ~suited else _RESOURCES

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

    def _is_short(self, now: _Standing) -> bool:
        """Return whether some parts need more than all places that may serve them."""
        kinds = list(now.open_kinds())
        everywhere = functools.reduce(operator.or_, now.where, 0)
        for scope in sorted({everywhere, *now.where}):
            inside = [kind for kind in kinds if not now.where[kind] & ~scope]
            if obstacle := self._shortage(now, scope, inside):
                suffixes = set[str]()
                for kind in inside:
                    suffixes.update(self._problem.kinds[kind].suffixes)
                self._note_dead_end(now, max(suffixes), obstacle, suffixes)
                return True
        return False

    def _shortage(self, now: _Standing, scope: int, inside: Sequence[int]) -> str:
        """Return the reason why these places cannot serve these kinds; '': none."""
        for number in range(len(self._problem.classes)):
            there = sum(now.left[place][number] for place in bits(scope))
            asking = [kind for kind in inside if number in self._needs[kind]]
            if there < sum(now.counts[k] * self._needs[k][number] for k in asking):
                return self._obstacle(now, asking[-1])
        alone = sum(now.counts[kind] for kind in inside if self._numbered[kind])
        return _ISOLATED if self._problem.isolate and alone > scope.bit_count() else ""


def _with(row: int, place: int) -> int:
    """Return a row, complemented if it does not contain the place."""
    return row if row >> place & 1 else ~row


#: Sums above this, in units of the greatest common divisor of all amounts, are
#: not computed and count as reachable.
_LARGEST: Final = 1 << 14


@functools.lru_cache(maxsize=4096)
def adds_up(target: int, amounts: tuple[tuple[int, int], ...]) -> bool:
    """Return whether some of these amounts add up to exactly the target.

    :param amounts: (amount, number of times it is available); none is zero.
    :returns: False only if it is certain.
    """
    if not target:
        return True
    unit = math.gcd(*(amount for amount, _number in amounts))
    if not unit or target % unit:
        return False
    wanted = target // unit
    if sum(amount * number for amount, number in amounts) < target:
        return False
    if wanted > _LARGEST:
        return True
    window = (2 << wanted) - 1
    reached = 1
    for amount, number in amounts:
        reached = _with_more(reached, amount // unit, number, window)
    return bool(reached >> wanted & 1)


def _with_more(reached: int, amount: int, number: int, window: int) -> int:
    """Add the sums, as bits, that become reachable with more amounts."""
    many = 1
    while number:
        taken = min(many, number)
        reached |= (reached << amount * taken) & window
        number -= taken
        many *= 2
    return reached


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
