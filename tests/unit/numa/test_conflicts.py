# SPDX-License-Identifier: Apache-2.0

"""A reported conflict is minimal: without any one part it can be met."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from os_acc.numa.fit.cell_assignment import CellRequirement, GuestRequirements, least
from os_acc.numa.fit.devices import DeviceRequest

NEEDS = tuple(CellRequirement(f"n{at}", 1 << at) for at in range(6))
REQUESTS = tuple(DeviceRequest(f"r{at}", 1, frozenset()) for at in range(6))
EVERYTHING = GuestRequirements(NEEDS, REQUESTS)
parts = st.sets(st.sampled_from((*NEEDS, *REQUESTS)), min_size=1)


@dataclasses.dataclass(slots=True)
class Judge:
    """A check that knows the conflicts, and rejects requirements with one of them.

    :ivar talkative: whether a refusal names the parts of the conflict.
    """

    conflicts: list[set[CellRequirement | DeviceRequest]]
    talkative: bool
    asked: int = 0

    def __call__(self, wants: GuestRequirements) -> GuestRequirements | None:
        self.asked += 1
        for conflict in self.conflicts:
            if all(part in wants for part in conflict):
                return only(conflict) if self.talkative else wants
        return None


def only(kept: set[CellRequirement | DeviceRequest]) -> GuestRequirements:
    return GuestRequirements(
        tuple(each for each in NEEDS if each in kept),
        tuple(each for each in REQUESTS if each in kept),
    )


@given(st.lists(parts, min_size=1, max_size=4), st.booleans())
def test_no_part_of_the_least_can_be_spared(
    conflicts: list[set[CellRequirement | DeviceRequest]], talkative: bool
) -> None:
    judge = Judge(conflicts, talkative)
    found = least(EVERYTHING, judge)
    assert judge(found) is not None
    for part in (*found.needs, *found.requests):
        assert judge(found.without(part)) is None


def test_what_a_refusal_does_not_name_is_not_asked_for_again() -> None:
    conflict = {NEEDS[4], REQUESTS[5]}
    judge, mute = Judge([conflict], True), Judge([conflict], False)
    assert least(EVERYTHING, judge) == least(EVERYTHING, mute) == only(conflict)
    # The first refusal, and one check for each part of the conflict.
    assert judge.asked == 1 + len(conflict)
    assert mute.asked == len(NEEDS) + len(REQUESTS)
