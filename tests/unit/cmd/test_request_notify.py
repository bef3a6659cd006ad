# SPDX-License-Identifier: Apache-2.0

"""``os-acc request notify``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from oslo_utils import uuidutils

from os_acc import exception
from os_acc.attach.requests import Requests
from os_acc.testing import uuid_of
from tests.unit.cmd.console import Console
from tests.unit.cmd.golden_files import expect
from tests.unit.profiles.cloud_double import Cloud, running

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


def test_the_event_of_a_request_is_sent(
    console: Console, book: Requests, cloud: Cloud
) -> None:
    uuid = bound(console, book)
    writes = console.bench.kernel.writes()
    (row,) = console.json("request", "notify", uuid.upper())
    assert (row["UUID"], row["State"], row["Result"]) == (uuid, "Bound", "sent")
    assert cloud.events == book.events([uuid])["events"]
    assert console.bench.kernel.writes() == writes


def test_it_ends_with_1_where_nova_refuses_an_event(
    console: Console, book: Requests, cloud: Cloud
) -> None:
    uuid = bound(console, book)
    (waiting,) = book.create("one")
    cloud.servers.clear()
    ran = console.run("request", "notify", uuid, waiting.uuid, "-f", "json")
    assert ran.status == 1
    results = {row["UUID"]: row["Result"] for row in json.loads(ran.out)}
    assert results[waiting.uuid] == "no event yet"
    assert results[uuid].startswith(f"Nova has no server {uuid_of(1)}")
    assert results[uuid].endswith("(code 404)")


def test_an_accelerator_of_a_plug_has_no_event(
    console: Console, book: Requests, cloud: Cloud
) -> None:
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


def test_a_request_that_does_not_exist_is_an_error(
    console: Console, book: Requests, cloud: Cloud
) -> None:
    uuid = bound(console, book)
    ran = console.run("request", "notify", uuid, uuid_of(9))
    assert (ran.status, ran.out) == (1, "")
    assert f"no accelerator request {uuid_of(9)}" in ran.err
    assert "hint: 'os-acc request list'" in ran.err
    assert cloud.asked == []


def test_the_output_in_the_manual(
    console: Console, book: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count(1)
    monkeypatch.setattr(
        uuidutils, "generate_uuid", lambda: f"{next(numbers):08x}" + uuid_of(0)[8:]
    )
    uuid = bound(console, book)
    ran = console.run("request", "notify", uuid)
    expect("request-notify.txt", ran.out + ran.err)
