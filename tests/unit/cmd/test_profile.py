# SPDX-License-Identifier: Apache-2.0

"""``os-acc profile`` and ``os-acc request list``."""

import json
import shlex
from pathlib import Path
from typing import Any

import yaml

from os_acc.attach import requests
from os_acc.testing import uuid_of
from tests.unit.cmd.console import Console
from tests.unit.profiles.cloud_double import running
from tests.unit.profiles.profile_examples import FPGA, GPU, profile

PROPERTIES = {
    f"resources_fpga-dp1_0:{FPGA}": "1",
    "trait_fpga-dp1_0:CUSTOM_PROGRAMMABLE": "required",
    "os_acc_fpga-dp1_0:bitstream_id": "d5ca2f11-3108-4426-a11c-a959987565df",
    f"resources_fpga-dp1_1:{GPU}": "2",
    "trait_fpga-dp1_1:CUSTOM_OLD": "forbidden",
}
WRONG = {"name": "bad", "groups": [{f"resources:{GPU}": "1", "accel:typo": "x"}]}


def catalogue(console: Console, place: Path, *profiles: Any, more: str = "") -> None:
    """Configure a catalogue of these profiles."""
    file = place / "profiles.yaml"
    file.write_text(yaml.safe_dump({"device_profiles": list(profiles)}))
    console.configure(more=f"[os_acc_profiles]\ncatalogue = {file}\n{more}")


def section(name: str, text: dict[str, object]) -> str:
    return "\n".join([f"[{name}]", *(f"{key} = {each}" for key, each in text.items())])


# -- list, show, check --------------------------------------------------------------


def test_profiles_are_listed_by_name(console, tmp_path):
    catalogue(console, tmp_path, profile("b"), WRONG, profile("a", description="one"))
    ran = console.run("profile", "list", "-f", "json")
    rows = json.loads(ran.out)
    assert [(row["Name"], row["Groups"], row["Accelerators"]) for row in rows] == [
        ("a", 2, 3),
        ("b", 2, 3),
    ]
    assert rows[0]["Description"] == "one"
    # An invalid profile hides no other one, and is reported.
    assert "ignoring a profile" in ran.err
    assert "typo" in ran.err


def test_a_profile_is_shown_as_it_is_written(console, tmp_path):
    catalogue(console, tmp_path, profile())
    shown = console.json("profile", "show", "fpga-dp1")
    assert shown["Groups"] == profile()["groups"]
    assert console.json("profile", "show", shown["UUID"]) == shown
    out = console.run("profile", "show", "fpga-dp1").out
    assert "group 1:" in out
    assert f"  resources:{GPU}=2" in out


def test_a_description_does_nothing_to_a_terminal(console, tmp_path):
    text = "one\x1b[31m red\x07\nand more"
    catalogue(console, tmp_path, profile(description=text))
    for ran in (
        console.run("profile", "list"),
        console.run("profile", "show", "fpga-dp1"),
    ):
        assert "one\ufffd[31m red\ufffd" in ran.out
        assert "and more" in ran.out
        assert "\x1b" not in ran.out
    # Programs get the text unchanged.
    shown = console.json("profile", "show", "fpga-dp1")
    assert shown["Description"] == text


def test_a_profile_that_nobody_has(console, tmp_path):
    catalogue(console, tmp_path, profile())
    ran = console.run("profile", "show", "other")
    assert (ran.status, ran.out) == (1, "")
    assert "os-acc profile list" in ran.err


def test_a_check_fails_if_one_cannot_be_used(console, tmp_path):
    catalogue(console, tmp_path, profile(), WRONG)
    ran = console.run("profile", "check", "-f", "json")
    assert ran.status == 1
    results = [(row["Name"], row["Result"]) for row in json.loads(ran.out)]
    assert results[0] == ("fpga-dp1", "can be used")
    assert results[1][0] is None
    assert "typo" in results[1][1]
    catalogue(console, tmp_path, profile())
    assert console.run("profile", "check").status == 0


def test_profiles_of_cyborg_are_judged(console, tmp_path):
    with running(profiles=[profile(), WRONG]) as cloud:
        text = section("os_acc_cyborg", cloud.credentials())
        catalogue(console, tmp_path, more=f"source = cyborg\n{text}")
        ran = console.run("profile", "check", "-f", "json")
    assert ran.status == 1, ran.err
    assert [row["Where"] for row in json.loads(ran.out)] == ["Cyborg", "Cyborg"]


# -- apply ------------------------------------------------------------------------


def test_what_is_to_be_set_is_printed(console, tmp_path):
    catalogue(console, tmp_path, profile())
    ran = console.run("profile", "apply", "fpga-dp1", "big one", "-f", "json")
    shown = json.loads(ran.out)
    assert (shown["Flavor"], shown["Properties"]) == ("big one", PROPERTIES)
    words = shlex.split(shown["Command"])
    assert words[:3] == ["openstack", "flavor", "set"]
    assert words[-1] == "big one"
    assert dict(each.split("=") for each in words[4:-1:2]) == PROPERTIES
    assert "group_policy" in ran.err


def test_the_prefix_may_be_chosen(console, tmp_path):
    catalogue(console, tmp_path, profile())
    shown = console.json("profile", "apply", "fpga-dp1", "m1", "--suffix", "_x")
    assert {key.partition(":")[0] for key in shown["Properties"]} == {
        *("resources_x0", "trait_x0", "os_acc_x0", "resources_x1", "trait_x1")
    }
    assert (
        console.run("profile", "apply", "fpga-dp1", "m1", "--suffix", "é").status == 1
    )


def test_it_is_set_where_that_is_asked_for(console, tmp_path):
    with running(flavors={("1", "m1"): {"accel:device_profile": "x"}}) as cloud:
        text = section("os_acc_nova", cloud.credentials())
        catalogue(console, tmp_path, profile(), more=text)
        ran = console.run("profile", "apply", "fpga-dp1", "m1", "--set", "-f", "json")
        assert ran.status == 0, ran.err
        assert json.loads(ran.out) == {
            "Flavor": "m1",
            "Properties": PROPERTIES,
            "Removed": [],
        }
        # The flavor would request both.
        assert "accel:device_profile" in ran.err
        assert "group_policy" in ran.err
        specs = cloud.flavors["1", "m1"]
        assert specs == {"accel:device_profile": "x", **PROPERTIES}

        del specs["accel:device_profile"]
        specs["group_policy"] = "isolate"
        less = {**profile(), "groups": profile()["groups"][:1]}
        catalogue(console, tmp_path, less, more=text)
        ran = console.run("profile", "apply", "fpga-dp1", "1", "--set", "-f", "json")
        assert ran.err == ""
        assert json.loads(ran.out)["Removed"] == [
            key for key in sorted(PROPERTIES) if "_1:" in key
        ]
        kept = {key: each for key, each in PROPERTIES.items() if "_0:" in key}
        assert specs == {"group_policy": "isolate", **kept}


def test_without_credentials_nothing_is_set(console, tmp_path):
    catalogue(console, tmp_path, profile())
    ran = console.run("profile", "apply", "fpga-dp1", "m1", "--set")
    assert (ran.status, ran.out) == (1, "")
    assert "[os_acc_nova] auth_type" in ran.err


# -- requests ---------------------------------------------------------------------


def test_requests_are_listed_with_what_they_have(console, tmp_path):
    bench = console.bench
    one = {"name": "one", "groups": [{f"resources:{GPU}": "1"}]}
    catalogue(console, tmp_path, one)
    assert console.json("request", "list") == []
    bench.groups["os_acc_profiles"] = {"catalogue": str(tmp_path / "profiles.yaml")}
    manager = bench.restart()
    book = requests.Requests(manager, manager.profiles.source)
    (first,), (second,) = book.create("one"), book.create("one")
    provider = bench.provider("0000:17:00.0")
    book.bind(
        {
            first.uuid: {
                "hostname": "node1",
                "device_rp_uuid": provider.uuid,
                "instance_uuid": uuid_of(1),
            }
        }
    )
    bench.plug(2, "0000:5e:00.0")
    (lease,) = manager.store.leases(uuid_of(2))
    rows = console.json("request", "list")
    assert [tuple(row.values()) for row in rows] == [
        (first.uuid, "Bound", uuid_of(1), "one", 0, "0000:17:00.0"),
        (second.uuid, "Initial", None, "one", 0, None),
        (lease.uuid, "Bound", uuid_of(2), None, None, "0000:5e:00.0"),
    ]
    (row,) = console.json("request", "list", "--instance", uuid_of(1), "--long")
    assert (row["Provider"], row["Host"], row["Reason"]) == (
        provider.uuid,
        "node1",
        None,
    )
    assert console.json("request", "list", "--instance", uuid_of(3)) == []
