# SPDX-License-Identifier: Apache-2.0

"""A plugin without a bug conforms; a plugin with one fails the check for it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from os_acc.testing import HostSpec, TestHost, conformance
from os_acc.testing.conformance import concurrency, discovery, failures, steps
from tests.shares import Share
from tests.unit.plugins import unconforming_plugins as planted

MakeHost = Callable[..., TestHost]
#: The plugins on a card with so many VFs; the others have a whole card.
VFS = {
    "DropsUnits": 2,
    "KnowsOneDevice": 2,
    "LeavesNote": 3,
    "NamesAfterFirstStart": 2,
    "NamesAfterLast": 4,
    "NamesAfterLoss": 2,
    "NamesAfterUsable": 2,
    "OffersWithoutCapacity": 2,
}
#: For each check the bugs that it finds, with the rule that it states.
FOUND = {
    discovery.devices_are_valid: {
        "OffersUnitTwice": "twice|another device",
        "HealthWrites": "the health step writes nothing",
    },
    discovery.discovery_is_stable: {"CountsScans": "two scans find equal devices"},
    discovery.discovery_only_reads: {
        "WritesLog": "writes nothing; not as before: ./var-log-acme",
        "ResetsCard": "writes nothing",
        "NotesFirstScan": "writes nothing; not as before: ./var-note-acme",
        "NotesInRun": "writes nothing; not as before: .*run/acme",
        "MakesDirectory": "writes nothing; not as before: .*var/lib/acme",
        "RemovesItsFile": "writes nothing; not as before: .*sys$",
        "RewritesState": "writes nothing; not as before: .*/acme_state",
    },
    discovery.names_survive_restart: {"NamesAfterFirstStart": "after a restart"},
    discovery.names_ignore_usable_functions: {
        "NamesAfterUsable": "does not depend on 0000:5e:02.0",
        "NamesAfterLast": "does not depend on 0000:5e:02.3",
    },
    discovery.names_survive_vfs: {"NamesAfterLoss": "once VFs are back"},
    steps.unplug_restores_the_host: {
        "LeavesMark": "var/lib/acme/0000:5e:00.0",
        "LeavesNote": "once unplugged; not as before: var/lib/acme-is-full",
    },
    steps.prepare_is_idempotent: {
        "PreparesOnce": "a second prepare.. succeeds, not FileExistsError",
        "CountsPreparations": "a second prepare.. changes nothing",
    },
    steps.release_is_idempotent: {
        "ReleasesOnce": "a second release.. succeeds, not FileNotFoundError"
    },
    steps.release_needs_no_prepare: {"ReleasesOnce": "without prepare.. leaves"},
    steps.release_undoes_a_failed_prepare: {
        "ReleasesWhatItReturned": "undoes a prepare.. of .* that failed"
    },
    functools.partial(steps.steps_end_at_the_deadline, patience=1.0): {
        "IgnoresDeadline": "prepare.. returns once seconds_left.. is 0",
        "IgnoresDeadlineAtRelease": "release.. returns once seconds_left.. is 0",
    },
    functools.partial(steps.nothing_is_left_open, patience=0.1): {
        "OpensAtScan": "close all that they open; left open in .*/acme_state",
        "OpensAtPlug": "close all that they open; left open in 2 rounds: pipe",
        "StartsThread": "is a daemon, or ends with the call, not acme-watcher",
        "StartsThreads": "end all threads that they start, not .*acme-watcher.*acme-w",
    },
    failures.crashes_lose_nothing: {"Remembers": "a kill before .* loses nothing"},
    failures.refused_writes_lose_nothing: {
        "TrustsState": "EBUSY at write 1 of .* loses nothing"
    },
    failures.vanished_functions_lose_nothing: {
        "NeedsCard": "a release of a vanished function ends its lease"
    },
    concurrency.concurrent_plugs_share_no_unit: {
        "KnowsOneDevice": "at once succeed",
        "OffersWithoutCapacity": "2 plugs at once succeed, or the units left are res",
        "DropsUnits": "2 plugs at once succeed, or the units left are res",
    },
}


def _name(check: conformance.Check) -> str:
    return conformance.name_of(getattr(check, "func", check))


CASES = [
    pytest.param(check, plugin, rule, id=f"{plugin}-{_name(check)}")
    for check, bugs in FOUND.items()
    for plugin, rule in bugs.items()
]


@pytest.fixture
def make_host(make_bench, install_plugins) -> Iterator[MakeHost]:
    """Return a function that builds a host with a plugin and its card."""

    def make(plugin: str, vfs: int = 0) -> TestHost:
        install_plugins(bad=f"{planted.HERE}:{plugin}")
        function = planted.card_with_vfs(vfs) if vfs else planted.card()
        return make_bench(HostSpec((function,)), enabled_plugins=["bad"])

    yield make
    planted.IgnoresDeadline.gate.set()
    planted.StartsThread.gate.set()
    while planted.OpensAtScan.files:
        os.close(planted.OpensAtScan.files.pop())


@pytest.fixture(autouse=True)
def _closed_gate() -> None:
    planted.IgnoresDeadline.gate.clear()
    planted.StartsThread.gate.clear()
    planted.KnowsOneDevice.both.clear()
    planted.KnowsOneDevice.current.clear()


@pytest.mark.parametrize("vfs", [0, 2], ids=["card", "VFs"])
@pytest.mark.share(2)
def test_a_sound_plugin_conforms(make_host, vfs):
    host = make_host("Sound", vfs)
    for check in conformance.CHECKS:
        if check in conformance.KILLS:
            select = functools.partial(Share(2).select, divisor=20)
            check = functools.partial(check, select=select)
        check(host, "bad")


def test_a_first_plug_may_make_directories_that_stay(make_host):
    host = make_host("Sound")
    failures.crashes_lose_nothing(host, "bad", select=lambda places: places[-1:])


@pytest.mark.parametrize(("check", "plugin", "rule"), CASES)
@pytest.mark.share(4)
def test_a_bug_fails_the_check_for_it(check, plugin, rule, make_host):
    host = make_host(plugin, VFS.get(plugin, 0))

    with pytest.raises(conformance.RuleBroken, match=rule):
        check(host, "bad")


def test_each_check_has_a_bug_that_it_finds():
    assert set(map(_name, FOUND)) == set(map(conformance.name_of, conformance.CHECKS))


def test_each_check_fails_without_a_device(make_host):
    host = make_host("Sound")
    for check in conformance.CHECKS:
        with pytest.raises(conformance.RuleBroken, match="offers a device"):
            check(host, "absent")


def test_each_check_states_its_rule():
    for check in conformance.CHECKS:
        assert conformance.rule_of(check).endswith(".")


def test_the_manual_has_each_check_with_its_rule():
    manual = Path(__file__).parents[4] / "doc/source/contributor/conformance.rst"
    rows = manual.read_text().split("   * - ")[2:]
    shown = {row.split("``")[1]: row.split("     - ")[1].split("\n")[0] for row in rows}
    assert shown == {
        conformance.name_of(check): conformance.rule_of(check)
        for check in conformance.CHECKS
    }
