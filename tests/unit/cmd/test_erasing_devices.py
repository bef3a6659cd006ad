# SPDX-License-Identifier: Apache-2.0

"""The commands show a device that is being erased, and the instance it was given by."""

import io

import pytest
from oslo_config import cfg

from os_acc.attach.erasure import Eraser
from os_acc.cmd import device
from os_acc.cmd.checks import state
from os_acc.cmd.main import OsAcc
from os_acc.testing import uuid_of
from tests.functional.host.attach.test_erasure import CARD, advance, erasing, use
from tests.functional.host.attach.test_erasure import host as host  # a fixture
from tests.unit import acme
from tests.unit.cmd.console import Console, Terminal


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
    assert f"os-acc device erase {CARD} --wait" in ran.err
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


def test_without_a_service_the_operator_erases_in_the_foreground(host, console):
    use(host)
    ran = console.run("device", "erase", CARD, "--wait", "-f", "value")
    assert (ran.status, ran.out) == (0, f"{CARD} 100% None\n")
    steps = [f"{number / acme.BLOCKS:.0%} erased" for number in range(1, acme.BLOCKS)]
    assert all(each in ran.err for each in steps)
    assert not acme.has_data(host.root, CARD)
    assert console.device(CARD)["State"] == "free"
    assert "no device is being erased" in console.run("device", "erase").err


def test_a_terminal_shows_a_bar_of_the_erasure(host, console):
    use(host)
    errors = Terminal()
    app = OsAcc(
        root=host.root, config=cfg.ConfigOpts(), stdout=io.StringIO(), stderr=errors
    )
    app.run(["--config-file", str(console.config_file), "device", "erase", "--wait"])
    bars = errors.getvalue().split("\r\033[K")[1:]
    assert bars[0] == f"{CARD} [#######{'.' * 23}]  25 %"
    assert bars[-1] == f"{CARD} [{'#' * 30}] 100 %\n"
    assert len(bars) == acme.BLOCKS


def test_one_step_is_made_without_wait(host, console):
    use(host)
    assert console.run("device", "erase", "-f", "value").out == f"{CARD} 25% None\n"
    assert console.device(CARD)["State"] == "erasing"


def test_an_erasure_that_fails_ends_the_command_with_its_reason(
    host, console, monkeypatch
):
    use(host)
    monkeypatch.setattr(acme.Erases, "fault", RuntimeError("worn out"))
    ran = console.run("device", "erase", "--wait", "-f", "value")
    assert ran.status == 1
    assert "worn out" in ran.out


def test_check_names_an_erasure_that_no_service_continues(host, console, monkeypatch):
    use(host)
    hints = {row["Hint"] for row in console.json("check")}
    command = f"os-acc device erase {CARD} --wait"
    assert not any(command in (each or "") for each in hints)
    monkeypatch.setattr(state, "_IDLE_SECONDS", -1.0)
    hints = {row["Hint"] for row in console.json("check")}
    assert any(command in (each or "") for each in hints)
    assert console.run(*command.split()[1:]).status == 0
    hints = {row["Hint"] for row in console.json("check")}
    assert not any(command in (each or "") for each in hints)


def test_an_erasure_that_another_process_makes_is_not_taken_for_done(
    host, console, monkeypatch
):
    use(host)
    monkeypatch.setattr(Eraser, "advance", lambda *_arguments: None)
    monkeypatch.setattr(device, "_ERASE_PATIENCE", 0.0)
    ran = console.run("device", "erase", CARD, "--wait", "-f", "value")
    assert (ran.status, ran.out) == (1, f"{CARD} 0% None\n")


def test_a_quarantined_device_is_not_erased(host, console, monkeypatch):
    use(host)
    with monkeypatch.context() as patch:
        patch.setattr(acme.Erases, "fault", RuntimeError("worn out"))
        advance(host, 1)
    ran = console.run("device", "erase", CARD, "--wait", "-f", "value")
    assert ran.status == 1
    assert "worn out" in ran.out


def test_an_erasure_that_was_killed_at_its_end_is_ended(host, console):
    """The whole device is erased, and its lease is still there."""
    use(host)
    (lease,) = erasing(host)
    host.manager.store.replace([lease.with_erased(1.0)])
    ran = console.run("device", "erase", CARD, "--wait", "-f", "value")
    assert (ran.status, ran.out) == (0, f"{CARD} 100% None\n")
    assert console.device(CARD)["State"] == "free"
