# SPDX-License-Identifier: Apache-2.0

"""Root acts as the owner of the state directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.cmd import identity
from os_acc.helper import client
from os_acc.testing import uuid_of
from tests.unit.cmd.console import Console

NOVA = (64055, 64056)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Simulate a process of root; return its changes of identity, in order."""
    done: list[str] = []
    uid = [0]

    def become(*ids: int) -> None:
        done.append(f"user {ids}")
        uid[0] = ids[1]

    monkeypatch.setattr(os, "geteuid", lambda: uid[0])
    monkeypatch.setattr(os, "setgroups", lambda ids: done.append(f"groups {ids}"))
    monkeypatch.setattr(os, "setresgid", lambda *ids: done.append(f"group {ids}"))
    monkeypatch.setattr(os, "setresuid", become)
    return done


@pytest.fixture
def of_nova(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a user without a name own the state directory."""
    monkeypatch.setattr(identity, "owner_of", lambda _path: NOVA)


@pytest.mark.usefixtures("of_nova")
def test_root_becomes_the_owner_for_good(tmp_path: Path, steps: list[str]) -> None:
    identity.become_owner(str(tmp_path))
    identity.become_owner(str(tmp_path))
    assert steps == [
        "groups [64056]",
        "group (64056, 64056, 64056)",
        "user (64055, 64055, 64055)",
    ]


def test_root_gets_the_other_groups_of_the_owner_too(
    tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "owner_of", lambda _path: (1, 1))
    monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid, 107])
    identity.become_owner(str(tmp_path))
    assert steps[0] == "groups [1, 107]"


def test_a_directory_of_roots_keeps_root(
    tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "owner_of", lambda _path: (0, 0))
    identity.become_owner(str(tmp_path))
    assert steps == []


def test_an_ordinary_user_stays_what_it_is(
    tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    identity.become_owner(str(tmp_path))
    assert steps == []


def test_a_missing_directory_is_not_made_by_root(
    tmp_path: Path, steps: list[str]
) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(exception.StateUnavailable) as raised:
        identity.become_owner(str(missing))
    assert f"install -d -o nova -g nova -m 0750 {missing}" in raised.value.hint
    assert not missing.exists()
    assert steps == []


@pytest.mark.usefixtures("of_nova")
def test_the_helpers_start_while_root_and_the_store_opens_after(
    console: Console, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = client.Helper.start

    def note(self: client.Helper, *arguments: object) -> None:
        steps.append(f"helper, with {os.listdir(console.bench.state_path)}")
        start(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(client.Helper, "start", note)
    assert console.run("unplug", uuid_of(1)).status == 0
    assert steps[0] == "helper, with []"
    assert steps[1:4] == [
        "groups [64056]",
        "group (64056, 64056, 64056)",
        "user (64055, 64055, 64055)",
    ]


@pytest.mark.usefixtures("of_nova")
@pytest.mark.parametrize("arguments", [("device", "list"), ("attached",), ("check",)])
def test_who_only_looks_gives_up_root_too(
    console: Console, steps: list[str], arguments: tuple[str, ...]
) -> None:
    console.run(*arguments)
    assert steps[-1] == "user (64055, 64055, 64055)"
