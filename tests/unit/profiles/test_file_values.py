# SPDX-License-Identifier: Apache-2.0

"""Values in a catalogue that cannot be constructed or used are reported."""

from __future__ import annotations

import math

import pytest
import yaml

from os_acc import deadlines, exception
from os_acc.objects.profile import DeviceProfile
from os_acc.profiles.files import ProfileFiles

FOREVER = math.inf


@pytest.fixture
def place(tmp_path):
    return tmp_path / "profiles.yaml"


def results(path):
    """Return (name, None) or (None, error) of each entry."""
    return [
        (each.name, None) if isinstance(each, DeviceProfile) else (None, str(each))
        for _where, each in ProfileFiles(str(path)).judged(FOREVER)
    ]


def hexadecimal(digits):
    return "0x" + digits * "f"


def decimal(digits):
    return digits * "1"


def sexagesimal(digits):
    return "1" + digits // 2 * ":1"


def fraction(digits):
    return sexagesimal(digits) + ".5"


NUMBERS = [hexadecimal, decimal, sexagesimal, fraction]
GOOD = "- {name: good, groups: [{resources:FPGA: 1}]}\n"


def beside_a_good_one(place, wrong):
    """Return the error of a profile that is placed before and after a good one."""
    place.write_text(f"- {wrong}\n{GOOD}- {wrong}\n")
    first, good, second = results(place)
    assert [first[0], good, second[0]] == [None, ("good", None), None]
    assert ProfileFiles(str(place)).profile("good", FOREVER).name == "good"
    first[1].encode()
    return first[1]


@pytest.mark.parametrize(
    "value",
    [
        *("!!bool maybe", "!!int ''", "!!int x", "!!float ''", "!!float x"),
        *("!!timestamp x", "!!binary '@'", "!!binary \u00e9", "2001-99-99"),
        *("!!int [1]", "!!bool {a: b}", "!!timestamp {=: 2001-01-01}", "<<"),
        *("!!set [a]", "!!omap [a]", "!!pairs x", "!!seq x", "!!map x", "!!str [a]"),
        *("!other x", "!!python/object/apply:os.system [a]"),
        *("{[a]: b}", "{{a: b}: c}", "{<<: x}", "{a: 1, a: 2}"),
        # An integer of base 60 that is too large for a fraction.
        "1" + 200 * ":00" + ".0",
        # PyYAML composes deeper nesting than it constructs.
        200 * "[" + 200 * "]",
    ],
)
@pytest.mark.parametrize(
    "entry",
    [
        "{name: %s}",
        "{name: bad, groups: [{resources:FPGA: %s}]}",
        "{name: bad, groups: [%s]}",
        "{name: bad, description: %s, groups: [{resources:FPGA: 1}]}",
        "{name: bad, groups: [{resources:FPGA: 1}], ? %s : a}",
        "%s",
    ],
)
def test_a_value_that_cannot_be_constructed_hides_no_other(place, entry, value):
    beside_a_good_one(place, entry % value)


@pytest.mark.parametrize(
    ("value", "excerpt"),
    [
        ("!!bool maybe", "line 1: no !!bool: 'maybe'"),
        ("2001-99-99", "line 1: no !!timestamp: month must be in 1..12"),
        ("!!set [a]", "line 1: expected a mapping node, but found sequence"),
        ("{a: 1, a: 2}", "line 1: found the key 'a' a second time"),
        (decimal(5000), "a number of 5000 characters"),
    ],
)
def test_a_value_that_cannot_be_constructed_is_told(place, value, excerpt):
    wrong = beside_a_good_one(place, f"{{name: bad, groups: {value}}}")
    assert f"device profile bad: its groups are <{excerpt}>" in wrong
    place.write_text(value)
    ((_name, wrong),) = results(place)
    assert wrong == f"{place}: {excerpt}"


def test_a_profile_with_a_wrong_value_is_found_by_its_name(place):
    place.write_text(f"- {{name: bad, description: 2001-99-99}}\n{GOOD}")
    with pytest.raises(exception.InvalidProfile, match="month must be in"):
        ProfileFiles(str(place)).profile("bad", FOREVER)


def test_a_value_that_is_not_used_may_be_wrong(place):
    """Cyborg's responses have fields that are ignored."""
    place.write_text(GOOD.replace("}\n", ", created_at: 2001-99-99}\n"))
    assert results(place) == [("good", None)]


def test_a_wrong_mapping_is_wrong_wherever_it_is_merged(place):
    place.write_text(
        "- &a {name: a, <<: 7, groups: [{resources:FPGA: 1}]}\n"
        "- {<<: *a, name: b}\n"
        "- *a\n"
        "- {name: c, groups: [{<<: {x: 1, x: 2}, resources:FPGA: 1}]}\n" + GOOD
    )
    assert [name for name, _wrong in results(place)] == [*4 * [None], "good"]


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("number", NUMBERS)
def test_an_amount_of_thousands_of_digits_hides_none_of_the_others(place, sign, number):
    amount = sign + number(6000)
    beside_a_good_one(place, f"{{name: bad, groups: [{{resources:FPGA: {amount}}}]}}")


@pytest.mark.parametrize("digits", [900, 1000, 4000, 5000, 60_000])
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "entry",
    [
        "{name: bad, ? %s : a, groups: []}",
        "{name: bad, groups: [{? %s : a}]}",
        "{name: bad, description: {? %s : a}, groups: []}",
        "{name: bad, description: %s, groups: [{resources:FPGA: 1}]}",
        "{name: %s}",
        "{? %s : a}",
        "%s",
    ],
)
@pytest.mark.share(6)
def test_a_number_of_thousands_of_digits_hides_none_of_the_others(
    place, entry, digits, number
):
    beside_a_good_one(place, entry % number(digits))


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
)
def test_a_value_of_json_that_cannot_be_used_hides_no_other(place, entry, value):
    good = '{"name": "good", "groups": [{"resources:FPGA": "1"}]}'
    place.write_text(f"[{entry % value},\t{good}]")
    (name, wrong), (other, _wrong) = results(place)
    assert (name, other) == (None, "good")
    assert len(wrong) < 400
    assert ProfileFiles(str(place)).profile("good", FOREVER).name == "good"


@pytest.mark.parametrize("tag", ["int", "float"])
@pytest.mark.parametrize("is_tagged", [True, False])
@pytest.mark.parametrize("number", NUMBERS)
def test_no_number_of_thousands_of_characters_is_constructed(
    place, monkeypatch, tag, is_tagged, number
):
    """Constructing an integer of base 60 takes quadratic time in its length."""
    constructors = yaml.SafeLoader.yaml_constructors
    full = f"tag:yaml.org,2002:{tag}"
    construct, lengths = constructors[full], []

    def observed(loader, node):
        lengths.append(len(node.value))
        return construct(loader, node)

    monkeypatch.setitem(constructors, full, observed)
    value = f"!!{tag} {number(200_000)}" if is_tagged else number(200_000)
    place.write_text(f"- {{name: {value}, description: !!{tag} 7}}\n{GOOD}")
    assert [name for name, _wrong in results(place)] == [None, "good"]
    assert 1 in lengths
    assert max(lengths) <= 1000


def test_a_deadline_holds_while_values_are_constructed(place, monkeypatch):
    place.write_text("- [" + "[]," * 300 + "]\n")
    has_begun, has_ended = [], []
    construct = yaml.SafeLoader.construct_document

    def construct_document(loader, node):
        has_begun.append(True)
        found = construct(loader, node)
        has_ended.append(True)
        return found

    def left(deadline):
        if has_begun:
            raise exception.DeviceStuck("no time is left")
        return deadline

    monkeypatch.setattr(yaml.SafeLoader, "construct_document", construct_document)
    monkeypatch.setattr(deadlines, "left", left)
    with pytest.raises(exception.DeviceStuck):
        ProfileFiles(str(place)).profile("a", FOREVER)
    assert has_begun
    assert not has_ended


@pytest.mark.parametrize(
    "entry",
    [
        "{name: !!str {=: one, =: other}, groups: [{resources:FPGA: 1}]}",
        "{name: !!str {=: one, x: 1, x: 2}, groups: [{resources:FPGA: 1}]}",
        "{name: bad, groups: [{resources:FPGA: !!int {=: 1}}]}",
        "{name: bad, description: !!null {=: 1}, groups: [{resources:FPGA: 1}]}",
        "{name: a, ? !!str {=: name} : b, groups: [{resources:FPGA: 1}]}",
        f"{{name: bad, groups: [resources:FPGA: !!int {{=: {hexadecimal(5000)}}}]}}",
        f"{{name: bad, groups: [resources:FPGA: !!int {{=: {sexagesimal(100_000)}}}]}}",
    ],
    ids=lambda entry: entry[:60],
)
def test_a_mapping_is_no_scalar(place, entry):
    """PyYAML would use the value of the key ``=`` as the scalar."""
    place.write_text(f"- {entry}\n{GOOD}")
    wrong, good = results(place)
    assert wrong[0] is None
    assert "mapping" in wrong[1]
    assert good == ("good", None)
