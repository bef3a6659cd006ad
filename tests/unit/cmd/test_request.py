# SPDX-License-Identifier: Apache-2.0

"""``os-acc request``: the query of a flavor, and events for Nova."""

import io
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from oslo_utils import uuidutils

from os_acc import exception
from os_acc.attach.requests import Requests
from os_acc.profiles import options
from os_acc.testing import uuid_of
from tests.unit.cmd.console import Console, Ran
from tests.unit.cmd.golden_files import expect
from tests.unit.profiles.cloud_double import Cloud, running
from tests.unit.profiles.profile_examples import FPGA, GPU, profile

FLAVOR = {
    "OS-FLV-DISABLED:disabled": False,
    "OS-FLV-EXT-DATA:ephemeral": 1,
    "disk": 20,
    "id": "6",
    "name": "gzip",
    "os-flavor-access:is_public": True,
    "properties": {f"resources1:{FPGA}": "1", "trait1:CUSTOM_A": "forbidden"},
    "ram": 2048,
    "rxtx_factor": 1.0,
    "swap": 1025,
    "vcpus": 2,
}


def show(console: Console, *properties: str, more: tuple[str, ...] = ()) -> Ran:
    given = [f"--property={each}" for each in properties]
    return console.run("request", "show", *given, *more)


def in_json(console: Console, *properties: str, more: tuple[str, ...] = ()) -> Any:
    ran = show(console, *properties, more=(*more, "-f", "json"))
    assert ran.status == 0, ran.err
    return json.loads(ran.out)


def test_properties_become_groups_and_their_query(console):
    shown = in_json(
        console,
        f"resources_a:{FPGA}=1",
        "trait_a:CUSTOM_B=required",
        "trait_a:CUSTOM_A=forbidden",
        "accel_a:function_name=gzip",
        "accel_a:attach_target=host",
        "accel_a:numa_policy=socket",
        "resources1:VCPU=2",
        "group_policy=isolate",
    )
    assert shown == {
        "Groups": [
            {
                "suffix": "1",
                "resources": {"VCPU": 2},
                "required": [],
                "forbidden": [],
                "programmed_with": None,
                "attach_target": "VM",
                "numa_policy": None,
            },
            {
                "suffix": "_a",
                "resources": {FPGA: 1},
                "required": ["CUSTOM_B"],
                "forbidden": ["CUSTOM_A"],
                "programmed_with": "function_name gzip",
                "attach_target": "host",
                "numa_policy": "socket",
            },
        ],
        "Group Policy": "isolate",
        "Microversion": "1.36",
        "Query": "/allocation_candidates?group_policy=isolate&limit=1000"
        f"&required_a=CUSTOM_B%2C%21CUSTOM_A&resources1=VCPU%3A2"
        f"&resources_a={FPGA}%3A1",
    }


def test_a_table_has_a_line_for_each_thing(console):
    out = show(
        console,
        f"resources1:{FPGA}=1",
        "trait1:CUSTOM_A=forbidden",
        "accel1:attach_target=none",
        "accel1:numa_policy=required",
    ).out
    for line in (
        "group 1:",
        f"  1 {FPGA}",
        "  without CUSTOM_A",
        "  attach_target none",
        "  numa_policy required",
        f"={FPGA}:1",
    ):
        assert line in out


def test_a_flavor_s_own_amounts_are_asked_for(console, tmp_path):
    file = tmp_path / "flavor.json"
    file.write_text(json.dumps(FLAVOR))
    (unnumbered, numbered) = in_json(console, more=("--flavor-file", str(file)))[
        "Groups"
    ]
    # 20 GB, 1 GB ephemeral, and 1025 MB of swap in whole GB.
    assert unnumbered["resources"] == {"DISK_GB": 23, "MEMORY_MB": 2048, "VCPU": 2}
    assert numbered["resources"] == {FPGA: 1}
    assert numbered["forbidden"] == ["CUSTOM_A"]


def test_a_flavor_may_come_through_a_pipe_and_properties_change_it(
    console, monkeypatch
):
    # Older clients print a flavor without swap in this way.
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(FLAVOR | {"swap": ""})))
    shown = in_json(
        console,
        f"resources1:{FPGA}=3",
        "resources:DISK_GB=0",
        more=("--flavor-file", "-", "--limit", "5"),
    )
    assert [group["resources"] for group in shown["Groups"]] == [
        {"MEMORY_MB": 2048, "VCPU": 2},
        {FPGA: 3},
    ]
    assert "limit=5&" in shown["Query"]


@pytest.mark.parametrize(
    "printed",
    [
        [],
        {},
        FLAVOR | {"properties": "resources:VCPU='1'"},
        FLAVOR | {"vcpus": "two"},
        FLAVOR | {"ram": True},
    ],
)
def test_what_is_no_flavor_is_refused(console, tmp_path, printed):
    file = tmp_path / "flavor.json"
    file.write_text(json.dumps(printed))
    ran = show(console, more=("--flavor-file", str(file)))
    assert (ran.status, ran.out) == (1, "")
    assert "hint: pass what 'openstack flavor show FLAVOR -f json' prints" in ran.err


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (("resources1:VCPU=1", "resources2:VCPU=1"), "set group_policy to 'none'"),
        (("trait1:CUSTOM_X=required",), "add resources1:"),
        (("trait:CUSTOM_X=required",), "Nova adds only the flavor's VCPU"),
        (("resources1:VCPU=1", "accel1:bitsream_id=x"), "did you mean 'bitstream_id'?"),
        (("resources1:VCPU=1", "resources1:VCPU=2"), "name a resource class"),
        (("hw:cpu_policy=dedicated",), "set resources<S>:"),
    ],
)
def test_what_cannot_be_asked_for_is_an_error_with_a_hint(
    console, properties, expected
):
    ran = show(console, *properties)
    assert (ran.status, ran.out) == (1, "")
    message, hint = ran.err.splitlines()
    assert message.startswith("os-acc: ")
    assert hint.startswith("hint: ")
    assert expected in hint


def test_what_is_dropped_or_passed_over_is_told(console):
    ran = show(console, "resources:VCPU=1", "resources1:FPGAS=1", "resource2:VCPU=1")
    assert ran.status == 0
    assert ran.err.splitlines() == [
        "os-acc: extra spec 'resource2:VCPU' has no effect: Nova ignores it",
        "WARNING: Received an invalid ResourceClass 'FPGAS' in extra_specs.",
    ]


@pytest.fixture
def profiles(console: Console, tmp_path: Path) -> None:
    """Configure a catalogue with one profile of two groups."""
    place = tmp_path / "profiles.yaml"
    place.write_text(yaml.safe_dump([profile("gzip")]))
    console.configure(more=f"[os_acc_profiles]\ncatalogue = {place}")


def test_groups_of_a_device_profile_are_asked_for(console, profiles):
    shown = in_json(console, f"resources1:{GPU}=1", "accel:device_profile=gzip")
    assert [(each["suffix"], each["resources"]) for each in shown["Groups"]] == [
        ("1", {GPU: 1}),
        ("device_profile_0", {FPGA: 1}),
        ("device_profile_1", {GPU: 2}),
    ]
    assert shown["Group Policy"] == "none"
    for asked in (
        f"&resourcesdevice_profile_0={FPGA}%3A1",
        "&requireddevice_profile_0=CUSTOM_PROGRAMMABLE",
        "&requireddevice_profile_1=%21CUSTOM_OLD",
    ):
        assert asked in shown["Query"]


def test_an_empty_name_is_no_device_profile(console, profiles):
    ran = show(console, "resources:VCPU=1", "accel:device_profile=")
    assert (ran.status, ran.err) == (0, "")


def test_a_device_profile_that_nobody_has_is_an_error(console, profiles):
    ran = show(console, "resources:VCPU=1", "accel:device_profile=gunzip")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith("os-acc: there is no device profile 'gunzip'")


def test_without_a_catalogue_groups_of_a_profile_are_told_to_be_missing(
    console, tmp_path, monkeypatch
):
    (option,) = (each for each in options.OPTIONS if each.name == "catalogue")
    monkeypatch.setattr(option, "default", f"{tmp_path}/none.yaml")
    console.configure()
    ran = show(console, "resources:VCPU=1", "accel:device_profile=gzip")
    assert ran.status == 0
    assert ran.err.startswith("os-acc: not shown: the groups of device profile 'gzip'")


def test_what_placement_miscounts_is_told_of(console):
    ran = show(console, f"resources:{FPGA}=1", f"resources1:{FPGA}=1")
    assert ran.status == 0
    assert f"a numbered one request {FPGA}" in ran.err


def test_it_needs_no_configuration_no_state_and_no_helper(console):
    console.config_file.unlink()
    assert show(console, "resources:VCPU=1").status == 0
    assert console.bench.kernel.writes() == []


# -- events for Nova -----------------------------------------------------------

GPUS = "CUSTOM_ACCELERATOR_GPU"


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with running(servers={uuid_of(1): "node1"}) as cloud:
        yield cloud


@pytest.fixture
def book(console: Console, tmp_path: Path, cloud: Cloud) -> Requests:
    """Return the requests of a host whose os-acc has credentials for Nova."""
    file = tmp_path / "profiles.yaml"
    groups = [{f"resources:{GPUS}": "1"}]
    file.write_text(yaml.safe_dump([{"name": "one", "groups": groups}]))
    values = [f"{key} = {value}" for key, value in cloud.credentials().items()]
    console.configure(more="\n".join(["[os_acc_nova]", *values]))
    console.bench.groups["os_acc_profiles"] = {"catalogue": str(file)}
    manager = console.bench.restart()
    return Requests(manager, manager.profiles.source)


def bound(console: Console, book: Requests) -> str:
    """Return the UUID of a request that is bound."""
    (made,) = book.create("one")
    provider = console.bench.provider("0000:17:00.0")
    binding = {
        "hostname": "node1",
        "device_rp_uuid": provider.uuid,
        "instance_uuid": uuid_of(1),
    }
    book.bind({made.uuid: binding})
    return made.uuid


def test_the_event_of_a_request_is_sent(console, book, cloud):
    uuid = bound(console, book)
    writes = console.bench.kernel.writes()
    (row,) = console.json("request", "notify", uuid.upper())
    assert (row["UUID"], row["State"], row["Result"]) == (uuid, "Bound", "sent")
    assert cloud.events == book.events([uuid])["events"]
    assert console.bench.kernel.writes() == writes


def test_it_ends_with_1_where_nova_refuses_an_event(console, book, cloud):
    uuid = bound(console, book)
    (waiting,) = book.create("one")
    cloud.servers.clear()
    ran = console.run("request", "notify", uuid, waiting.uuid, "-f", "json")
    assert ran.status == 1
    results = {row["UUID"]: row["Result"] for row in json.loads(ran.out)}
    assert results[waiting.uuid] == "no event yet"
    assert results[uuid].startswith(f"Nova has no server {uuid_of(1)}")
    assert results[uuid].endswith("(code 404)")


def test_an_accelerator_of_a_plug_has_no_event(console, book, cloud):
    console.bench.plug(1, "0000:17:00.0")
    (listed,) = console.json("request", "list")
    ran = console.run("request", "notify", listed["UUID"])
    assert (ran.status, ran.out) == (1, "")
    assert f"{listed['UUID']} was attached to instance {uuid_of(1)} by a plug" in (
        ran.err
    )
    assert "no event" in ran.err
    assert "request list" not in ran.err
    for refused in (book.events, book.notify, book.unbind, book.delete):
        with pytest.raises(exception.NotFound, match="by a plug"):
            refused([listed["UUID"]])
    assert console.bench.plugged(1) == ["0000:17:00.0"]
    assert cloud.asked == []


def test_a_request_that_does_not_exist_is_an_error(console, book, cloud):
    uuid = bound(console, book)
    ran = console.run("request", "notify", uuid, uuid_of(9))
    assert (ran.status, ran.out) == (1, "")
    assert f"no accelerator request {uuid_of(9)}" in ran.err
    assert "hint: 'os-acc request list'" in ran.err
    assert cloud.asked == []


def test_the_output_in_the_manual(console, book, monkeypatch):
    numbers = itertools.count(1)
    monkeypatch.setattr(
        uuidutils, "generate_uuid", lambda: f"{next(numbers):08x}" + uuid_of(0)[8:]
    )
    uuid = bound(console, book)
    ran = console.run("request", "notify", uuid)
    expect("request-notify.txt", ran.out + ran.err)
