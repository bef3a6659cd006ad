# SPDX-License-Identifier: Apache-2.0

"""The numbers in the picture of the policies match the selection."""

import dataclasses
from pathlib import Path
from xml.etree import ElementTree

import pytest

from os_acc.numa.nearest import ORDER
from os_acc.numa.policies import GuestCells, allows
from os_acc.objects.numa import Affinity, NUMACell, NUMAPolicy, NUMATopology

PICTURE = Path(__file__).parents[3] / "doc/source/user/numa-policies.svg"
SVG = "{http://www.w3.org/2000/svg}"
NAMES = {policy.value for policy in NUMAPolicy}
#: The class of a box for an accelerator that the guest may have, or may not.
COLOURS = {True: "y", False: "n"}


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """A word with its position; ``box``: the class of the innermost box around it."""

    text: str
    x: float
    y: float
    box: str


@pytest.fixture(scope="module")
def words() -> list[Word]:
    root = ElementTree.parse(PICTURE).getroot()
    found = []
    for each in root.iter(f"{SVG}text"):
        x, y = float(each.get("x", "")), float(each.get("y", ""))
        boxes = [box for box in root.iter(f"{SVG}rect") if _is_in(box, x, y)]
        found.append(Word(each.text or "", x, y, boxes[-1].get("class") or ""))
    return found


def _is_in(box: ElementTree.Element, x: float, y: float) -> bool:
    left, top = float(box.get("x", 0)), float(box.get("y", 0))
    width, height = float(box.get("width", "")), float(box.get("height", ""))
    return left <= x <= left + width and top <= y <= top + height


def panel(words: list[Word], policy: NUMAPolicy) -> list[Word]:
    """Return the words below the name of a policy, from left to right."""
    heads = [each for each in words if each.text in NAMES]
    (own,) = (head for head in heads if head.text == policy.value)
    return sorted(
        (
            each
            for each in words
            if each not in heads
            and min(heads, key=lambda head: abs(head.x - each.x)) == own
        ),
        key=lambda word: word.x,
    )


def host(drawn: list[Word]) -> NUMATopology:
    cells: list[NUMACell] = []
    socket = None
    for word in drawn:
        what, _, number = word.text.partition(" ")
        if what == "socket":
            socket = int(number)
        elif what == "cell":
            cells.append(NUMACell(int(number), socket=socket))
    return NUMATopology(tuple(cells))


def test_each_policy_has_its_part_of_the_picture(words):
    heads = {each.text for each in words if each.text in NAMES}
    assert heads == NAMES


@pytest.mark.parametrize("policy", NUMAPolicy)
def test_the_picture_numbers_what_a_guest_may_have(words, policy):
    drawn = panel(words, policy)
    topology = host(drawn)
    assert {cell.socket for cell in topology.cells} == {0, 1}
    columns = {word.x: word for word in drawn if word.text.startswith("cell ")}
    (at,) = (word.x for word in drawn if word.text == "guest")
    guest = GuestCells(topology, (number_of(columns[at]),))
    near = {guest.affinity(cell.id) for cell in topology.cells} | {Affinity.UNKNOWN}
    assert near == set(Affinity)
    turns = [each for each in ORDER if allows(policy, each)]
    below = max(word.y for word in columns.values())
    marks = [word for word in drawn if word.text == "no" or word.text.isdigit()]
    assert len(marks) == len(topology.cells) + 1
    (bottom,) = (word.y for word in drawn if word.text == "no known cell")
    for mark in marks:
        assert mark.y > below
        is_placed = mark.y < bottom - 20
        stands = guest.affinity(number_of(columns[mark.x]) if is_placed else None)
        is_allowed = allows(policy, stands)
        assert mark.text == (str(turns.index(stands) + 1) if is_allowed else "no")
        assert mark.box == COLOURS[is_allowed]


def number_of(word: Word) -> int:
    return int(word.text.removeprefix("cell "))
