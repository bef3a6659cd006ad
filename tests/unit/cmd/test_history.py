# SPDX-License-Identifier: Apache-2.0

"""``os-acc device history`` lists the recorded events of devices."""

from __future__ import annotations

import datetime
import json
import os

import pytest

from os_acc.testing import uuid_of
from tests.unit.cmd.console import Console

GPU, FPGA = "0000:17:00.0", "0000:5e:00.0"


@pytest.fixture
def used(console: Console) -> Console:
    """Return a shell on a host with two devices that had instances."""
    console.bench.plug(1, GPU)
    console.bench.plug(2, FPGA)
    console.bench.unplug(1)
    return console


def test_each_change_of_a_device_is_listed_the_newest_last(used: Console) -> None:
    rows = used.json("device", "history", GPU)
    assert [(each["Operation"], each["State"]) for each in rows] == [
        ("add", "preparing"),
        ("replace", "held"),
        ("replace", "releasing"),
        ("delete", "releasing"),
    ]
    assert {each["Address"] for each in rows} == {GPU}
    assert {each["Consumer"] for each in rows} == {uuid_of(1)}
    times = [datetime.datetime.fromisoformat(each["Time"]) for each in rows]
    assert times == sorted(times)
    assert times[0].tzinfo == datetime.UTC


def test_without_an_address_every_device_is_listed(used: Console) -> None:
    rows = used.json("device", "history")
    assert {each["Address"] for each in rows} == {GPU, FPGA}


def test_an_instance_has_a_history_too(used: Console) -> None:
    rows = used.json("device", "history", "--consumer", uuid_of(2))
    assert [each["Operation"] for each in rows] == ["add", "replace"]
    assert {each["Address"] for each in rows} == {FPGA}


def test_a_rekey_is_in_the_history_of_both_consumers(used: Console) -> None:
    used.bench.manager.rekey(uuid_of(2), uuid_of(3))
    for consumer in (uuid_of(2), uuid_of(3)):
        *_, last = used.json("device", "history", "--consumer", consumer)
        assert last["Operation"] == "rekey"
        assert last["Detail"] == f"from {uuid_of(2)}"


def test_the_newest_events_are_selected(used: Console) -> None:
    everything = used.json("device", "history", GPU)
    assert used.json("device", "history", GPU, "--limit", "2") == everything[-2:]


def test_nothing_recorded_is_no_error(console: Console) -> None:
    ran = console.run("device", "history", "-f", "json")
    assert (ran.status, json.loads(ran.out)) == (0, [])
    assert ran.err == (
        f"os-acc: no such event is recorded in {console.bench.state_path}\n"
    )


def test_a_member_has_the_history_of_its_device(console: Console) -> None:
    audio = "0000:17:00.1"
    assert console.json("device", "show", GPU)["Members"] == [GPU, audio]
    ran = console.run("device", "history", audio, "-f", "json")
    assert (ran.status, json.loads(ran.out)) == (0, [])
    assert ran.err == (
        f"os-acc: {audio} is assigned together with {GPU}, "
        f"which has the events: os-acc device history {GPU}\n"
    )


def test_a_state_directory_that_does_not_exist_is_named(console: Console) -> None:
    os.rmdir(console.bench.state_path)
    ran = console.run("device", "history")
    assert ran.status == 1
    assert f"state directory {console.bench.state_path} does not exist" in ran.err
    assert "no such event" not in ran.err
    assert not os.path.exists(console.bench.state_path)


def test_a_host_that_cannot_be_inspected_has_a_history(used: Console) -> None:
    used.configure("{")
    assert used.run("device", "list").status == 1
    assert used.json("device", "history", GPU)
    ran = used.run("device", "history", "0000:17:00.1")
    assert ran.status == 0
    assert "no such event is recorded" in ran.err
