# SPDX-License-Identifier: Apache-2.0

"""A drawing describes hosts of any shape."""

import dataclasses
import io
import re
from collections import Counter
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from os_acc.cmd import topology
from os_acc.cmd import topology_labels as labels
from os_acc.cmd import topology_render as render
from os_acc.cmd import topology_tree as tree
from os_acc.cmd.device_states import DeviceStatus
from os_acc.cmd.topology_tree import Line
from os_acc.objects.pci import PciAddress
from tests.unit.cmd.drawing_hosts import (
    BRIDGE,
    address,
    card,
    cells,
    function,
    lease,
    scene,
    scenes,
    state,
)

PF = "0000:3b:00.0"
PORT, SWITCH, GPU = "0000:16:00.0", "0000:17:00.0", "0000:19:00.0"
SVG = "{http://www.w3.org/2000/svg}"


def every(line: Line) -> Iterator[Line]:
    """Yield a line and all below it, from the top."""
    yield line
    for below in line.below:
        yield from every(below)


def line(drawing: Line, label: str) -> Line:
    (found,) = (each for each in every(drawing) if each.label.startswith(label))
    return found


def labels_of(some: Line) -> list[str]:
    return [each.label for each in some.below]


def printed(drawing: Line, width: int = 200, encoding: str = "utf-8") -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding, newline="")
    render.write_text(drawing, scene([]), out, width, colours=False)
    out.seek(0)
    return out.read().split("\n")[:-1]


def words_of(picture: str) -> str:
    """Return all texts of a picture, as they are read or selected."""
    root = ElementTree.fromstring(picture)
    return "".join("".join(each.itertext()) for each in root.iter(f"{SVG}text"))


# -- hosts of any shape ----------------------------------------------------


@given(scenes(), st.booleans())
def test_each_function_is_drawn_once_in_its_node_and_below_its_parent(host, long):
    drawing = tree.draw(host, long=long)
    lines = list(every(drawing))
    drawn = Counter(each for line in lines for each in line.functions)
    assert drawn == Counter(list(host.functions))
    assert not long or all(len(line.functions) < 2 for line in lines)
    for place in lines:
        match = re.fullmatch("cell ([0-9]+)|no NUMA node", place.label)
        if match is not None:
            node = int(match[1]) if match[1] else None
            inside = [each for line in every(place) for each in line.functions]
            assert {host.functions[each].numa_node for each in inside} <= {node}

    def check(line: Line, above: tuple[PciAddress, ...]) -> None:
        is_placed = not line.label.startswith("other functions")
        for each in line.functions[:1] if is_placed else ():
            found = host.functions[each]
            parent = found.physfn or host.parents.get(each)
            is_named = any(str(parent) in detail for detail in line.details)
            assert parent is None or parent in above or is_named
        for child in line.below:
            check(child, (*above, *line.functions))

    check(drawing, ())


@given(
    scenes(),
    st.booleans(),
    st.integers(0, 200),
    st.sampled_from(["utf-8", "ascii", "latin-1"]),
)
def test_no_line_is_wider_than_the_terminal(host, long, width, encoding):
    drawing = tree.draw(host, long=long)
    for row in printed(drawing, width, encoding):
        assert cell_len(row) <= max(width, 4 * drawing.depth + 24)
        assert row.isprintable()


def test_a_character_that_is_replaced_has_the_width_of_its_replacement():
    # U+0301 has no width, and the question mark has one.
    drawing = Line("host", ("e\u0301 " * 30,))
    assert max(map(cell_len, printed(drawing, 40, "ascii"))) <= 40


@given(scenes(), st.booleans())
def test_a_picture_is_xml_with_the_same_texts_and_wide_enough_for_them(host, long):
    drawing = tree.draw(host, long=long)
    picture = render.picture(drawing, scene([]))
    # The lines of the tree are between the parts of a folded text.
    lines = dict.fromkeys(map(ord, " │├└─"))
    said = words_of(picture).translate(lines)
    for each in every(drawing):
        for word in (each.label, each.state, *each.details):
            assert word.translate(lines) in said
    root = ElementTree.fromstring(picture)
    for text in root.iter(f"{SVG}text"):
        right = float(text.get("x", "")) + 7.3 * cell_len("".join(text.itertext()))
        assert right < float(root.get("width", ""))
        assert float(text.get("y", "")) < float(root.get("height", ""))


@given(scenes())
def test_programs_are_told_of_every_function_once(host):
    columns, rows = topology.rows(host)
    found = list(rows)
    assert {len(row) for row in found} <= {len(columns)}
    names = Counter(row[1] for row in found if row[0] not in ("socket", "cell"))
    assert names == Counter(map(str, {*host.functions, *host.states}))
    known = {row[1] for row in found} | {None}
    assert {row[2] for row in found} <= known


ADDRESSES = st.builds(
    PciAddress, st.just(0), st.integers(0, 2), st.integers(0, 3), st.integers(0, 7)
)


@given(st.sets(ADDRESSES, min_size=1), st.sets(ADDRESSES))
def test_ranges_name_exactly_what_they_stand_for(some, others):
    neighbours = sorted(some | others)
    named: list[PciAddress] = []
    before = ""
    for part in labels.addresses(some, neighbours).split(", "):
        ends = []
        for end in re.findall(r"(?:[0-9a-f:]+:)?[0-9a-f]{2}\.[0-7]", part):
            before = end if ":" in end else f"{before[:8]}{end}"
            ends.append(neighbours.index(address(before)))
        named += neighbours[ends[0] : ends[-1] + 1]
    assert named == sorted(some)


# -- the shape of the tree -------------------------------------------------


def test_a_cell_on_several_sockets_is_below_the_host():
    drawing = tree.draw(scene([], topology=cells(0, None)))
    assert labels_of(drawing) == ["socket 0", "cell 1"]


def test_a_host_of_which_no_cells_are_known_is_one_branch():
    found = [function(GPU, None), function(PF, 0), function(PORT, None)]
    host = scene(found, [state(each) for each in found[:2]], topology=cells())
    drawing = tree.draw(host)
    assert labels_of(drawing) == [GPU, PF, "other functions: 1"]
    assert "NUMA cells unknown" in drawing.details


def test_bridges_in_one_line_say_where_the_first_is():
    found = [
        function(PORT, 1, class_code=BRIDGE),
        function(SWITCH, class_code=BRIDGE),
        function("0000:18:00.0", class_code=BRIDGE),
        function(GPU),
    ]
    parents = [(SWITCH, PORT), ("0000:18:00.0", SWITCH), (GPU, "0000:18:00.0")]
    drawing = tree.draw(scene(found, [state(found[3])], parents=parents))
    (bridges,) = line(drawing, "cell 0").below
    assert bridges.label == f"{SWITCH} > 0000:18:00.0"
    assert f"behind {PORT}" in bridges.details


def test_a_deep_tree_leaves_room_for_words():
    places = [f"0000:{bus:02x}:00.0" for bus in range(60)]
    found = [function(place, class_code=BRIDGE) for place in places]
    host = scene(found, parents=zip(places[1:], places, strict=False))
    drawing = tree.draw(host, long=True)
    assert drawing.depth > 60
    rows = printed(drawing, 40)
    assert all(any(place in row for row in rows) for place in places)


def test_what_has_gone_or_cannot_be_read_has_a_branch_of_its_own():
    gone = state(
        address(GPU), DeviceStatus.LEASED, given=lease(address(GPU), name="web")
    )
    drawing = tree.draw(scene([], [gone], unreadable=["0000:05:00.0"]))
    branch = line(drawing, "not to be seen")
    assert labels_of(branch) == [GPU, "0000:05:00.0"]
    assert "web" in line(drawing, GPU).details[0]


# -- leases ----------------------------------------------------------------


def test_alike_vfs_are_one_line_and_others_are_not():
    pf, *vfs = card(PF, 6)
    states = [state(vf) for vf in vfs]
    states[2] = state(vfs[2], DeviceStatus.QUARANTINED, given=lease(vfs[2].address))
    drawing = tree.draw(scene([pf, *vfs], states))
    assert labels_of(line(drawing, PF)) == [
        "5 VFs 0000:3b:02.0-02.1, 02.3-02.5",
        "0000:3b:02.2",
    ]
    assert line(drawing, "0000:3b:02.2").state == "quarantined"
    assert "groups 0-1,3-5" in line(drawing, "5 VFs").details


@pytest.mark.parametrize("node", [1, None])
def test_many_vfs_that_are_not_where_their_pfs_are_stay_readable(node):
    cards = [card(f"0000:{bus:02x}:00.0", 32) for bus in range(8)]
    moved = [
        dataclasses.replace(vf, numa_node=node) for _pf, *vfs in cards for vf in vfs
    ]
    found = [*moved, *(pf for pf, *_vfs in cards)]
    drawing = tree.draw(scene(found, map(state, moved)))
    place = line(drawing, "no NUMA node" if node is None else "cell 1")
    assert labels_of(place) == [f"32 VFs 0000:{bus:02x}:02.0-05.7" for bus in range(8)]
    for bus, some in enumerate(place.below):
        assert f"VF of 0000:{bus:02x}:00.0" in some.details
    assert len(printed(drawing)) < 40


def test_a_vf_that_is_elsewhere_and_differs_has_a_line_of_its_own():
    pf, *vfs = card(PF, 6)
    vfs = [dataclasses.replace(vf, numa_node=1) for vf in vfs]
    states = [state(vf) for vf in vfs]
    states[2] = state(
        vfs[2], DeviceStatus.LEASED, given=lease(vfs[2].address, name="web")
    )
    drawing = tree.draw(scene([pf, *vfs], states))
    assert labels_of(line(drawing, "cell 1")) == [
        "5 VFs 0000:3b:02.0-02.1, 02.3-02.5",
        "0000:3b:02.2",
    ]
    assert f"VF of {PF}" in line(drawing, "0000:3b:02.2").details


def test_vfs_of_a_pf_that_cannot_be_read_are_one_line():
    _pf, *vfs = card(PF, 3)
    drawing = tree.draw(scene(vfs, map(state, vfs), unreadable=[PF]))
    assert labels_of(line(drawing, "cell 0")) == ["3 VFs 0000:3b:02.0-02.2"]


@pytest.mark.parametrize(("instances", "lines_of_vfs"), [(8, 8), (9, 1)])
def test_many_holders_are_counted_and_few_are_named(instances, lines_of_vfs):
    pf, *vfs = card(PF, 18)
    states = [
        state(vf, DeviceStatus.LEASED, given=lease(vf.address, 1 + number % instances))
        for number, vf in enumerate(vfs)
    ]
    drawing = tree.draw(scene([pf, *vfs], states))
    found = line(drawing, PF).below
    assert len(found) == lines_of_vfs
    assert ("9 instances" in found[0].details) is (instances == 9)


def test_names_that_are_no_text_do_no_harm():
    gpu = function(GPU)
    name = '<b>&"\x1b[31m\n\u202e'
    given = lease(gpu.address, name=name)
    drawing = tree.draw(scene([gpu], [state(gpu, DeviceStatus.LEASED, given=given)]))
    shown = '<b>&"\ufffd[31m\ufffd\ufffd'
    assert shown in "\n".join(printed(drawing))
    assert shown in words_of(render.picture(drawing, scene([])))


def contrast(one: str, other: str) -> float:
    """Return the contrast as the Web Content Accessibility Guidelines 2.1 define it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_text_of_a_picture_is_readable_on_light_and_on_dark_ground():
    root = ElementTree.fromstring(render.picture(tree.draw(scene([])), scene([])))
    style = root.findtext(f"{SVG}style") or ""
    for half in style.split("@media"):
        colours = dict(
            re.findall(r"^\.?([a-z]+) {.*?fill: (#[0-9a-f]{6});", half, re.M)
        )
        ground = colours.pop("ground")
        assert set(colours) == {"text", "green", "blue", "magenta", "red", "yellow"}
        for colour in colours.values():
            assert contrast(colour, ground) >= 4.5


# -- free devices by policy ------------------------------------------------

FOUR = cells(0, 0, 1, 1)
ONE_EACH = (0, 1, 2, None)


def test_each_cell_says_how_many_each_policy_would_allow():
    host = scene([], topology=FOUR)
    # By policy: required, socket, legacy, preferred.
    assert list(tree.supplies(host, ONE_EACH)) == [
        ("0-1", "1", "2", "2", "4"),
        ("2", "1", "1", "2", "4"),
        ("3", "0", "1", "1", "4"),
    ]


def test_what_is_not_free_counts_for_nobody():
    out = io.StringIO()
    host = scene([], free={"GPU": ()})
    render.write_text(Line("host"), host, out, 80, colours=False)
    assert out.getvalue().splitlines()[-2:] == ["", "GPU, free: 0"]


def test_where_no_cells_are_known_every_policy_allows_all():
    host = scene([], topology=cells())
    assert list(tree.supplies(host, ONE_EACH)) == [("any", *("4",) * 4)]


@pytest.mark.parametrize(
    ("node", "guest", "said"),
    [
        (1, (0,), "same socket (socket, preferred)"),
        (2, (0, 2), "local (every policy)"),
    ],
)
def test_for_a_guest_each_device_says_how_near_it_is(node, guest, said):
    gpu = function(GPU, node)
    host = scene([gpu], [state(gpu)], topology=FOUR, guest=guest)
    assert said in line(tree.draw(host), GPU).details


def test_a_guest_in_several_cells_is_one_row():
    host = scene([], topology=FOUR, guest=(0, 2))
    assert list(tree.supplies(host, ONE_EACH)) == [("0+2", "2", "3", "3", "4")]
