# SPDX-License-Identifier: Apache-2.0

"""Device profiles are read from a catalogue of files."""

import contextlib
import gc
import itertools
import json
import os
import sys
import threading
import time

import pytest
import yaml

from os_acc import deadlines, exception
from os_acc.profiles import validation
from os_acc.profiles.sources import ProfileFiles
from tests.expected_errors import raises
from tests.unit.profiles.profile_examples import FOREVER, profile, results


@pytest.fixture
def place(tmp_path):
    return tmp_path / "profiles.yaml"


def write(place, *profiles):
    place.write_text(
        yaml.safe_dump({"device_profiles": list(profiles)}, sort_keys=False)
    )


def test_a_profile_is_found_by_name_and_by_uuid(place):
    uuid = "5518a925-1c2c-49a2-a8bf-0927d9456f3e"
    write(place, profile(uuid=uuid), profile("another"))
    catalogue = ProfileFiles(str(place))
    assert catalogue.profile("fpga-dp1", FOREVER) == validation.read(profile(uuid=uuid))
    assert catalogue.profile(uuid, FOREVER).name == "fpga-dp1"


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_is_read_as_json(place, indent):
    phrase = "a fast \U0001f680 card"
    answered = {"device_profiles": [profile(description=phrase)]}
    place.write_text(json.dumps(answered, indent=indent))
    assert "\\ud83d" in place.read_text()
    assert ProfileFiles(str(place)).profile("fpga-dp1", FOREVER).description == phrase


def test_a_key_that_is_there_twice_in_json_is_told(place):
    place.write_text('[{\t"name": "a", "groups": [], "name": "b"}]')
    ((name, wrong),) = results(place)
    assert name is None
    assert "profiles.yaml: found the key 'name' a second time" in wrong


def test_a_description_that_cannot_be_written_hides_no_other(place):
    text = json.dumps([profile("a", description="half \ud83d"), profile("b")])
    place.write_text(text)
    (_name, wrong), good = results(place)
    assert "device profile a: its description" in wrong
    wrong.encode()
    assert good == ("b", None)


def test_a_change_is_seen_at_once(place):
    write(place, profile())
    catalogue = ProfileFiles(str(place))
    with raises(exception.ObjectKind.PROFILE):
        catalogue.profile("new", FOREVER)
    write(place, profile("new"))
    assert catalogue.profile("new", FOREVER).name == "new"


def test_a_directory_has_several_files(tmp_path):
    write(tmp_path / "a.yaml", profile("a"))
    write(tmp_path / "b.yaml", profile("b"))
    (tmp_path / "b.yaml~").write_text("an editor's")
    assert results(tmp_path) == [("a", None), ("b", None)]


def test_a_wrong_file_hides_none_of_the_others(tmp_path):
    write(tmp_path / "a.yaml", profile("a"))
    (tmp_path / "b.yaml").write_text("device_profiles: [")
    catalogue = ProfileFiles(str(tmp_path))
    assert catalogue.profile("a", FOREVER).name == "a"
    with pytest.raises(exception.InvalidProfile, match="as YAML"):
        # The profile may be in the faulty file.
        catalogue.profile("b", FOREVER)


def test_two_of_one_name_are_none(tmp_path):
    write(tmp_path / "a.yaml", profile("a"))
    write(tmp_path / "b.yaml", profile("a"), profile("b"))
    with pytest.raises(exception.InvalidProfile, match=r"a\.yaml.*b\.yaml"):
        ProfileFiles(str(tmp_path)).profile("a", FOREVER)
    wrong = [phrase for _name, phrase in results(tmp_path)]
    assert [phrase is not None for phrase in wrong] == [True, True, False]


def test_two_of_one_uuid_are_none(place):
    uuid = "5518a925-1c2c-49a2-a8bf-0927d9456f3e"
    write(place, profile("a", uuid=uuid), profile("b", uuid=uuid), profile("c"))
    with pytest.raises(exception.InvalidProfile, match="2 device profiles"):
        ProfileFiles(str(place)).profile(uuid, FOREVER)
    two = f"there are 2 device profiles {uuid}"
    assert results(place) == [(None, two), (None, two), ("c", None)]


def test_thousands_of_one_name_are_told_in_one_line(place):
    place.write_text(json.dumps([profile("a", groups=[{"resources:FPGA": 1}])] * 3000))
    with pytest.raises(exception.InvalidProfile) as caught:
        ProfileFiles(str(place)).profile("a", FOREVER)
    assert caught.value.message == f"there are 3000 device profiles a: in {place}"


@pytest.mark.parametrize("name", [["a"], {"a": 1}, None, "", "\ud800"])
def test_a_name_that_is_none_hides_none_of_the_others(place, name):
    write(place, profile(name), profile("good"))
    assert [name for name, _wrong in results(place)] == [None, "good"]
    assert ProfileFiles(str(place)).profile("good", FOREVER).name == "good"


def profiles(size):
    return "".join(
        f"- name: p{n}\n  groups:\n  - resources:FPGA: 1\n" for n in range(size // 42)
    )


def lists(size):
    return "- [" + "[]," * (size // 3) + "]\n"


def groups(size):
    each = "  - resources:FPGA: 1\n"
    return "- name: a\n  groups:\n" + each * (size // len(each))


def traits(size):
    lines = (f"    trait:CUSTOM_T{n}: required\n" for n in range(size // 30))
    return "- name: a\n  groups:\n  - resources:FPGA: 1\n" + "".join(lines)


def names(size):
    return "- {name: a, groups: [{'resources:FPGA': 1}]}\n" * (size // 46)


def calls_of(place, text):
    """Return the number of function calls in reading all of a file."""
    place.write_text(text)
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        list(ProfileFiles(str(place)).checked(FOREVER))
        with contextlib.suppress(exception.OsAccError):
            ProfileFiles(str(place)).profile("a", FOREVER)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        *((profiles, 2**12), (lists, 2**12), (groups, 2**12), (traits, 2**12)),
        (names, 2**12),
    ],
)
def test_reading_costs_in_proportion_to_the_size(place, shape, size):
    once, twice = (calls_of(place, shape(each)) for each in (size, 2 * size))
    assert twice < 2.5 * once


def test_a_deadline_holds_within_a_file(place, monkeypatch):
    place.write_text(lists(2**16))
    looks = itertools.count(1)

    def left(deadline):
        if next(looks) == 100:
            raise exception.DeviceStuck("no time is left")
        return deadline

    monkeypatch.setattr(deadlines, "left", left)
    with pytest.raises(exception.DeviceStuck):
        ProfileFiles(str(place)).profile("a", FOREVER)
    assert next(looks) < 110


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("? [1, 2]\n: 3", "line 1: found a key that is no text"),
        ("", "no list of device profiles"),
        ("7", "no list of device profiles"),
        ("profiles: []", "start the list with 'device_profiles:'"),
        ("a: b: c", "as YAML"),
        ("!!python/object/apply:os.system ['false']", "is not a device profile"),
        ("\x00", "as YAML"),
        ("[" * 5000, "as YAML"),
    ],
)
def test_what_is_no_catalogue_is_told(place, text, phrase):
    # A deep recursion leaves no room for the finalizers of earlier tests' objects.
    gc.collect()
    place.write_text(text)
    ((name, wrong),) = results(place)
    assert name is None
    assert phrase in wrong


def test_a_file_of_256_kib_is_read(place):
    text = json.dumps([profile()])
    place.write_text(text.ljust(2**18))
    assert results(place) == [("fpga-dp1", None)]
    place.write_text(text.ljust(2**18 + 1))
    ((_name, wrong),) = results(place)
    assert "more than 262144 bytes" in wrong


def fifo(place):
    os.mkfifo(place)


def device(place):
    place.symlink_to("/dev/zero")


def directory(place):
    place.mkdir()


@pytest.mark.parametrize(
    ("made", "phrase"),
    [
        (fifo, "not a regular file"),
        (device, "not a regular file"),
        (directory, "Is a directory"),
    ],
)
def test_what_is_no_file_is_not_waited_for(tmp_path, made, phrase):
    write(tmp_path / "a.yaml", profile("a"))
    made(tmp_path / "b.yaml")
    catalogue = ProfileFiles(str(tmp_path))
    found = []
    # A daemon thread: if it blocks, the test fails and the run continues.
    reader = threading.Thread(
        target=lambda: found.extend(catalogue.checked(FOREVER)), daemon=True
    )
    reader.start()
    reader.join(30)
    assert not reader.is_alive()
    (_, good), (where, wrong) = found
    assert good.name == "a"
    assert where == str(tmp_path / "b.yaml")
    assert isinstance(wrong, exception.ServiceUnavailable)
    assert wrong.reason is exception.OutageReason.LOCAL_SOURCE
    assert phrase in str(wrong)


def test_a_file_may_be_a_link(tmp_path, place):
    write(tmp_path / "elsewhere", profile("a"))
    place.symlink_to("elsewhere")
    assert results(place) == [("a", None)]


def test_no_file_at_all_may_be_there_later(place):
    with raises(exception.ServiceType.ACCELERATOR) as caught:
        ProfileFiles(str(place)).profile("a", FOREVER)
    assert caught.value.retryable


def test_a_deadline_holds(tmp_path):
    write(tmp_path / "a.yaml", profile("a"))
    with pytest.raises(exception.DeviceStuck):
        ProfileFiles(str(tmp_path)).profile("a", time.monotonic() - 1)
