# SPDX-License-Identifier: Apache-2.0

"""Values in a catalogue that cannot be used are reported, and hide no other."""

import pytest

from os_acc import exception
from os_acc.profiles.sources import ProfileFiles
from tests.unit.profiles.profile_examples import FOREVER, results

GOOD = "- {name: good, groups: [{resources:FPGA: 1}]}\n"


@pytest.fixture
def place(tmp_path):
    return tmp_path / "profiles.yaml"


def beside_a_good_one(place, wrong):
    """Return the error of a profile that is placed before and after a good one."""
    place.write_text(f"- {wrong}\n{GOOD}- {wrong}\n")
    first, good, second = results(place)
    assert [first[0], good, second[0]] == [None, ("good", None), None]
    assert ProfileFiles(str(place)).profile("good", FOREVER).name == "good"
    first[1].encode()
    return first[1]


@pytest.mark.parametrize(
    "entry",
    [
        "{name: %s}",
        "{name: bad, groups: [{resources:FPGA: %s}]}",
        "{name: bad, groups: [{? %s : a}]}",
        "%s",
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        *("[a]", "{a: b}", "{[a]: b}", "{{a: b}: c}", "{a: 1, a: 2}", "{<<: x}", "<<"),
        *("!!int x", "!!set [a]", "!other [x]", "!!str {=: good}", "1:0:0", "0x10"),
        *("!!python/object/apply:os.system [a]", 6000 * "1", f"1{30_000 * ':1'}.5"),
    ],
    ids=lambda value: value[:40],
)
def test_a_value_that_cannot_be_used_hides_no_other(place, entry, value):
    assert len(beside_a_good_one(place, entry % value)) < 1600


@pytest.mark.parametrize(
    ("value", "excerpt"),
    [
        ("{a: 1, a: 2}", "line 1: found the key 'a' a second time"),
        ("{[a]: 1}", "line 1: found a key that is no text"),
    ],
)
def test_a_mapping_that_cannot_be_used_is_reported(place, value, excerpt):
    wrong = beside_a_good_one(place, f"{{name: bad, groups: {value}}}")
    assert f"device profile bad: its groups are <{excerpt}>" in wrong
    place.write_text(f"- {value}")
    ((_name, wrong),) = results(place)
    assert wrong == f"{place}: {excerpt}"


def test_a_profile_with_a_wrong_value_is_found_by_its_name(place):
    place.write_text(f"- {{name: bad, description: [a]}}\n{GOOD}")
    with pytest.raises(exception.InvalidProfile, match="its description"):
        ProfileFiles(str(place)).profile("bad", FOREVER)


def test_a_value_that_is_not_used_may_be_wrong(place):
    """Cyborg's responses have fields that are ignored."""
    place.write_text(GOOD.replace("}\n", ", created_at: {a: 1, a: 2}}\n"))
    assert results(place) == [("good", None)]


@pytest.mark.parametrize("null", ["", "~", "null"])
def test_a_null_is_no_value(place, null):
    place.write_text(GOOD.replace("}\n", f", uuid: {null}, description: {null}}}\n"))
    assert results(place) == [("good", None)]


def test_an_alias_stands_for_its_value(place):
    place.write_text(
        "- {name: one, groups: &g [{resources:FPGA: 1}]}\n- {name: two, groups: *g}\n"
    )
    assert results(place) == [("one", None), ("two", None)]


def test_an_alias_inside_of_its_own_value_is_invalid(place):
    place.write_text("- &a [*a]\n")
    ((name, wrong),) = results(place)
    assert name is None
    assert "an alias inside of its own anchor" in wrong


def test_aliases_that_multiply_a_file_are_invalid(place):
    """The 13,000 aliases stand for a profile of 1,000 traits each."""
    traits = "".join(f", 'trait:CUSTOM_{n}': required" for n in range(1000))
    first = f"- &a {{name: a, groups: [{{'resources:FPGA': 1{traits}}}]}}\n"
    place.write_text(first + 13_000 * "- *a\n")
    ((name, wrong),) = results(place)
    assert name is None
    assert "its aliases expand to more than 262144 nodes" in wrong


@pytest.mark.parametrize(
    "entry",
    [
        '{"name": %s}',
        '{"name": "bad", "groups": [{"resources:FPGA": %s}]}',
        '{"name": "bad", "description": %s, "groups": [{"resources:FPGA": "1"}]}',
        "%s",
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        *(5000 * "1", "-" + 60_000 * "1", 900 * "1", 60_000 * "1" + ".5"),
        *("1e999", "-1e-999", "NaN", "-Infinity", '{"a": 1, "a": 2}'),
    ],
    ids=lambda value: value[:40],
)
def test_a_value_of_json_that_cannot_be_used_hides_no_other(place, entry, value):
    good = '{"name": "good", "groups": [{"resources:FPGA": "1"}]}'
    place.write_text(f"[{entry % value},\t{good}]")
    (name, wrong), (other, _wrong) = results(place)
    assert (name, other) == (None, "good")
    assert len(wrong) < 400
    assert ProfileFiles(str(place)).profile("good", FOREVER).name == "good"
