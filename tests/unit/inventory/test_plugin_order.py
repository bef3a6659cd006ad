# SPDX-License-Identifier: Apache-2.0

"""Devices do not change hands: while they are leased, or while their plugin fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint

import pytest
from stevedore import ExtensionManager

from os_acc.objects.device import Device, RejectReason
from os_acc.plugins import base
from os_acc.testing import TestHost
from tests.unit import acme
from tests.unit.acme import MarksNoMore
from tests.unit.acme_card import PLUGIN as F2
from tests.unit.cmd.console import Console

LEAVES_NOTHING = "tests.unit.acme:MarksNoMore"
ACME, MARKS = "tests.unit.acme:Acme", "tests.unit.acme:Marks"
CARD, FREE = "0000:5e:00.0", "0000:af:00.0"
Install = Callable[..., None]


class OffersNothing(MarksNoMore):
    """Answers without any device."""

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        return ()


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that lets a distribution declare the ids of a plugin."""

    def put(at: str, *ids: str) -> None:
        points = [EntryPoint(each, at, "os_acc.ids") for each in ids]
        monkeypatch.setitem(ExtensionManager.ENTRY_POINT_CACHE, "os_acc.ids", points)

    return put


class OffersAll(MarksNoMore):
    """Offers every function that is left."""

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        return [acme.device(self, each) for each in candidates.usable]


class Fails(MarksNoMore):
    """Fails when it is asked."""

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        raise RuntimeError


def plugin_of(host: TestHost, address: str) -> str:
    return host.provider(address).device.plugin


# -- leased devices --------------------------------------------------------------


@pytest.mark.parametrize("late", ["aaa", "zzz"])
def test_a_leased_device_stays_with_its_plugin(bench, install_plugins, late):
    install_plugins(mmm=ACME)
    bench.restart()
    offered = {each.uuid for each in bench.manager.providers()}
    assert plugin_of(bench, CARD) == "mmm"
    bench.plug(1, CARD)
    before = bench.provider(CARD)
    install_plugins(mmm=ACME, **{late: MARKS})
    bench.restart()
    after = bench.provider(CARD)
    assert (after.uuid, after.device.plugin) == (before.uuid, "mmm")
    assert {each.uuid for each in bench.manager.providers()} == offered
    # The lease goes on, and its plugin releases it.
    assert bench.plugged(1) == [CARD]
    assert bench.unplug(1) == 1
    assert plugin_of(bench, CARD) == min("mmm", late)


def test_the_generic_plugin_keeps_a_leased_device_of_a_plugin_that_is_new(
    bench, install_plugins, declare, tmp_path, caplog
):
    install_plugins()
    bench.restart()
    bench.plug(1, CARD)
    install_plugins(acme=MARKS)
    declare(MARKS, "10ee:*")
    bench.restart()
    assert plugin_of(bench, CARD) == "pci"
    why = "stays with pci while it is leased; acme serves it"
    bench.manager.refresh()
    assert f"{CARD} {why}" in caplog.text
    row = Console(bench, tmp_path).device(CARD)
    assert (row["State"], row["Reason"]) == ("leased", why)
    assert bench.unplug(1) == 1
    assert plugin_of(bench, CARD) == "acme"


def test_a_card_with_a_leased_vf_stays_with_its_plugin(two_functions, install_plugins):
    """Its other VFs would be another device of the same provider."""
    host = two_functions
    provider = next(iter(host.manager.providers()))
    host.plug(1, str(provider.device.address))
    install_plugins(acme=F2, aaa=F2)
    host.restart()
    (found,) = (each for each in host.manager.providers() if each.uuid == provider.uuid)
    assert found.device.plugin == "acme"
    assert len(found.device.handles) == len(provider.device.handles)


def test_a_leased_device_that_its_plugin_leaves_is_shown(
    bench, install_plugins, declare, tmp_path, caplog
):
    install_plugins(acme=LEAVES_NOTHING, zzz=MARKS)
    declare(MARKS, "10ee:*")
    bench.restart()
    bench.plug(1, CARD)
    install_plugins(acme=f"{__name__}:OffersNothing", zzz=MARKS)
    bench.restart()
    assert plugin_of(bench, CARD) == "zzz"
    why = "is not offered by acme, the plugin of its lease"
    assert f"{CARD} {why}" in caplog.text
    assert Console(bench, tmp_path).device(CARD)["Reason"] == why


def test_without_its_plugin_a_device_that_owes_nothing_is_another_ones(
    bench, install_plugins
):
    install_plugins(acme=ACME.replace("Acme", "MarksNoMore"))
    bench.restart()
    bench.plug(1, CARD)
    install_plugins()
    bench.restart()
    assert plugin_of(bench, CARD) == "pci"


# -- plugins that fail ---------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("tests.unit.acme:FailsToStart", "no licence"),
        ("tests.unit.acme:FailsToDiscover", "firmware is too old"),
        ("tests.unit.acme:Other", "contract_version"),
        ("tests.unit.no_such_module:Acme", "cannot be imported"),
    ],
)
def test_devices_of_a_plugin_that_fails_at_its_first_start_wait_for_it(
    bench, install_plugins, declare, tmp_path, where, why
):
    install_plugins(acme=where)
    declare(where, "10ee:*")
    bench.restart()
    refused = bench.rejected(CARD)
    assert refused.reason is RejectReason.PLUGIN_FAILED
    assert refused.detail.startswith("acme serves it: ")
    assert why in refused.detail
    row = Console(bench, tmp_path).device(CARD)
    assert row["State"] == "refused"
    assert why in row["Reason"]
    # A plugin that is disabled claims nothing.
    bench.restart(enabled_plugins=["pci"])
    assert plugin_of(bench, CARD) == "pci"


def test_a_failing_plugin_takes_no_leased_device_of_another_one(
    bench, install_plugins, declare
):
    install_plugins()
    bench.restart()
    bench.plug(1, CARD)
    install_plugins(acme="tests.unit.acme:FailsToStart")
    declare("tests.unit.acme:FailsToStart", "10ee:*")
    bench.restart()
    assert plugin_of(bench, CARD) == "pci"
    assert bench.unplug(1) == 1
    assert "acme serves it" in bench.rejected(CARD).detail


def test_ids_that_are_none_set_their_plugin_aside(bench, install_plugins, declare):
    install_plugins(acme=ACME)
    declare(ACME, "xilinx")
    bench.restart()
    (aside,) = bench.manager.plugins.set_aside
    assert aside.reason == "its distribution declares the PCI ids 'xilinx'"


def test_a_plugin_is_asked_while_something_is_left_for_it(bench, install_plugins):
    asked = {}
    for name in ("aaa", "zzz"):
        at = {"mmm": f"{__name__}:OffersAll", name: f"{__name__}:Fails"}
        install_plugins(**at)
        bench.restart()
        asked[name] = [each.name for each in bench.manager.discover().set_aside]
    assert asked == {"aaa": ["aaa"], "zzz": []}
