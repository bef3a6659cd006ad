# SPDX-License-Identifier: Apache-2.0

"""The commands show a device that is being erased, and the instance it was given by."""

from __future__ import annotations

import pytest

from os_acc.testing import uuid_of
from tests.functional.host.attach.test_erasure import CARD, advance, use
from tests.functional.host.attach.test_erasure import host as host  # a fixture
from tests.unit import acme
from tests.unit.cmd.console import Console


@pytest.fixture
def console(host, tmp_path) -> Console:
    found = Console(host, tmp_path)
    found.configure(f'{{"address": "{CARD}"}}')
    return found


def test_a_command_leaves_the_erasure_to_the_service(host, console):
    host.plug(1, CARD)
    acme.write_medium(host.root, CARD)
    ran = console.run("unplug", uuid_of(1))
    assert ran.status == 0, ran.err
    assert "| Released | 1 " in ran.out
    advance(host, 1)
    row = console.device(CARD)
    assert (row["State"], row["Consumer"]) == ("erasing", None)
    assert row["Reason"].startswith("25% erased after instance")
    shown = console.json("device", "show", CARD)
    assert shown["Former Consumer"] == uuid_of(1)
    assert shown["Erased"] == 1 / acme.BLOCKS


def test_only_the_device_is_listed_and_no_instance(host, console):
    use(host)
    assert console.json("attached") == []
    assert console.json("request", "list") == []
    (provider,) = console.json("provider", "list")
    assert provider["Used"] == 0


def test_monitoring_sees_the_progress_and_the_reserved_unit(host, console):
    use(host)
    advance(host, 2)
    lines = console.run("metrics").out.splitlines()
    assert f'os_acc_erased_ratio{{address="{CARD}"}} 0.5' in lines
    assert 'os_acc_leases{state="erasing"} 1' in lines
    (reserved,) = (each for each in lines if each.startswith("os_acc_reserved_units{"))
    assert reserved.endswith(" 1")


def test_the_operator_starts_a_failed_erasure_again(host, console, monkeypatch):
    use(host)
    with monkeypatch.context() as patch:
        patch.setattr(acme.Erases, "fault", RuntimeError("worn out"))
        advance(host, 1)
    row = console.device(CARD)
    assert row["State"] == "quarantined"
    assert "worn out" in row["Reason"]
    ran = console.run("device", "release", CARD)
    assert ran.status == 0, ran.err
    assert console.device(CARD)["State"] == "erasing"
    ran = console.run("device", "release", CARD, "--force")
    assert ran.status != 0
    assert "is being erased" in ran.err
