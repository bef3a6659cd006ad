# SPDX-License-Identifier: Apache-2.0

"""Plugins are loaded from entry points; a faulty one is set aside and reported."""

from __future__ import annotations

import dataclasses
from unittest import mock

import pytest
from oslo_config import cfg

from os_acc import conf, exception
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.plugins import base, loader
from os_acc.testing import hosts, instance, request, uuid_of
from tests.unit import acme

CARDS = ["0000:5e:00.0", "0000:e3:00.0"]
GPU = "0000:17:00.0"


def set_aside(manager) -> dict[str, str]:
    return {each["name"]: each["reason"] for each in manager.host_info()["set_aside"]}


def offered(manager) -> dict[str, str]:
    """Return the plugin that offers each address."""
    return {
        str(handle.address): provider.device.plugin
        for provider in manager.providers()
        for handle in provider.device.handles
    }


def test_a_vendor_chooses_before_the_generic_plugin(make_bench, install_plugins):
    install_plugins(zacme="tests.unit.acme:Acme")
    bench = make_bench()
    info = bench.manager.host_info()
    assert [each["name"] for each in info["plugins"]] == ["zacme", "pci"]
    assert info["set_aside"] == []
    assert info["contract"] == [1, 0]
    found = offered(bench.manager)
    assert {found[card] for card in CARDS} == {"zacme"}
    assert found[GPU] == "pci"


def test_of_two_vendors_the_first_by_name_gets_a_device(make_bench, install_plugins):
    install_plugins(beta="tests.unit.acme:Rival", alpha="tests.unit.acme:Acme")
    bench = make_bench()
    assert {offered(bench.manager)[card] for card in CARDS} == {"alpha"}


def test_a_plugin_has_options_of_its_own(make_bench, install_plugins):
    install_plugins(acme="tests.unit.acme:Acme")
    bench = make_bench()
    config = bench.config()
    loaded = loader.load(config, "/", ())
    (plugin,) = [each for each in loaded.loaded if each.name == "acme"]
    assert plugin.conf.vendor == acme.XILINX
    config.set_override("vendor", 0x10DE, group="os_acc_acme")
    assert plugin.conf.vendor == 0x10DE
    # Loading plugins again, as initialize(reset=True) does, is no conflict.
    assert len(loader.load(config, "/", ()).loaded) == 2


def test_a_wrong_value_of_an_option_sets_its_plugin_aside(install_plugins, tmp_path):
    """Each scan that compares the options would fail, for all plugins."""
    install_plugins(acme="tests.unit.acme:Acme")
    file = tmp_path / "os-acc.conf"
    file.write_text("[os_acc_acme]\nvendor = Xilinx\n")
    config = cfg.ConfigOpts()
    config([], default_config_files=[str(file)])
    loaded = loader.load(config, "/", ())
    assert [each.name for each in loaded.loaded] == ["pci"]
    (aside,) = loaded.set_aside
    assert "option vendor" in aside.reason


def test_a_plugin_may_keep_its_options_in_a_form_of_its_own(
    bench, install_plugins, monkeypatch
):
    install_plugins(acme="tests.unit.acme:Acme")
    loaded = loader.load(bench.config(), "/", ())
    before = loaded.options_of("acme")
    assert "vendor" in before
    monkeypatch.setattr(loaded.get("acme"), "conf", (acme.XILINX,))
    assert loaded.options_of("acme") == before


def test_options_are_in_the_sample_configuration(install_plugins):
    install_plugins(acme="tests.unit.acme:Acme")
    groups = {
        group if isinstance(group, str) else group.name: options
        for group, options in conf.list_opts()
    }
    assert [option.name for option in groups["os_acc_acme"]] == ["vendor"]


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("tests.unit.acme:Missing", "cannot be imported"),
        ("tests.unit.no_such_module:Acme", "cannot be imported"),
        ("tests.unit.acme_without_hardware:Acme", "no hardware"),
        ("tests.unit.acme:Other", "its contract_version is (2, 0)"),
        ("tests.unit.acme:Malformed", "its contract_version is '1.0'"),
        ("tests.unit.acme:Undeclared", "its contract_version is None"),
        ("tests.unit.acme:XILINX", "its contract_version is None"),
        ("tests.unit.acme:FailsToStart", "no licence"),
        ("tests.unit.acme:Abstract", "abstract"),
        ("tests.unit.acme:NoPlugin", "PluginBase"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_set_aside(
    make_bench, install_plugins, caplog, where, reason
):
    install_plugins(bad=where)
    bench = make_bench()
    assert reason in set_aside(bench.manager)["bad"]
    assert "plugin bad is set aside" in caplog.text
    # The remaining plugins offer all devices.
    assert {offered(bench.manager)[card] for card in CARDS} == {"pci"}
    bench.plug(1, CARDS[0])


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ((1, 0), "its contract_version is (1, 0); this os_acc supports 2.0 to 2.0"),
        ((1, 1), "its contract_version is (1, 1); this os_acc supports 2.0 to 2.0"),
        ((2, 0), ""),
        ((2, 1), "its contract_version is (2, 1); this os_acc supports 2.0 to 2.0"),
    ],
)
def test_a_plugin_for_the_contract_before_a_major_version_is_never_called(
    bench, install_plugins, monkeypatch, version, reason
):
    monkeypatch.setattr(base, "CONTRACT_VERSION", (2, 0))
    monkeypatch.setattr(acme.Acme, "contract_version", version)
    install_plugins(acme="tests.unit.acme:Acme")
    found = loader.load(bench.config(), "/", ["acme"])
    assert [each.name for each in found.loaded] == ([] if reason else ["acme"])
    assert [each.reason for each in found.set_aside] == ([reason] if reason else [])


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("FailsToDiscover", "firmware is too old"),
        ("Leaves", "no licence server"),
    ],
)
def test_a_plugin_that_cannot_discover_is_set_aside_for_the_others(
    make_bench, install_plugins, where, why
):
    install_plugins(bad=f"tests.unit.acme:{where}")
    bench = make_bench()
    assert {offered(bench.manager)[card] for card in CARDS} == {"pci"}
    assert why in set_aside(bench.manager)["bad"]
    bench.plug(1, *CARDS)
    assert bench.unplug(1) == 2


def test_what_only_a_failed_plugin_knew_is_refused_with_its_reason(
    make_bench, install_plugins
):
    install_plugins(bad="tests.unit.acme:FailsToDiscover")
    bench = make_bench(enabled_plugins=["bad"])
    refused = bench.rejected(CARDS[0])
    assert refused.reason is RejectReason.PLUGIN_FAILED
    assert "firmware is too old" in refused.detail


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("tests.unit.acme:FailsToDiscover", "firmware is too old"),
        ("tests.unit.acme:FailsToStart", "no licence"),
        ("tests.unit.no_such_module:Acme", "cannot be imported"),
    ],
)
def test_what_a_plugin_has_offered_waits_for_it_while_it_fails(
    make_bench, install_plugins, where, why
):
    install_plugins(acme="tests.unit.acme:Acme")
    bench = make_bench()
    bench.plug(1, CARDS[0])
    before = {each.uuid for each in bench.manager.providers()}
    another = bench.provider(CARDS[1])

    install_plugins(acme=where)
    bench.restart()
    for card in CARDS:
        refused = bench.rejected(card)
        assert refused.reason is RejectReason.PLUGIN_FAILED
        assert why in refused.detail
    # Devices that the failing plugin never offered stay available.
    assert offered(bench.manager)[GPU] == "pci"
    with pytest.raises(exception.DeviceGone):
        bench.manager.plug(instance(2), *request(another))

    install_plugins(acme="tests.unit.acme:Acme")
    bench.restart()
    assert {each.uuid for each in bench.manager.providers()} == before
    assert {offered(bench.manager)[card] for card in CARDS} == {"acme"}
    assert bench.unplug(1) == 1


def test_what_a_plugin_has_offered_is_the_others_once_it_is_gone(
    make_bench, install_plugins
):
    install_plugins(acme="tests.unit.acme:Acme")
    bench = make_bench()
    assert {offered(bench.manager)[card] for card in CARDS} == {"acme"}
    install_plugins()
    bench.restart()
    assert {offered(bench.manager)[card] for card in CARDS} == {"pci"}
    # The generic plugin has offered the cards since.
    install_plugins(acme="tests.unit.acme:FailsToDiscover")
    bench.restart()
    assert {offered(bench.manager)[card] for card in CARDS} == {"pci"}


def test_another_card_in_the_place_waits_for_nobody(make_bench, install_plugins):
    install_plugins(acme="tests.unit.acme:Acme")
    bench = make_bench()
    assert offered(bench.manager)[CARDS[0]] == "acme"
    install_plugins(acme="tests.unit.acme:FailsToDiscover")
    bench.kernel.hot_unplug(CARDS[0])
    bench.kernel.hot_plug(dataclasses.replace(hosts.fpga("0000:5e"), product=0x5004))
    bench.restart()
    assert offered(bench.manager)[CARDS[0]] == "pci"
    assert bench.rejected(CARDS[1]).reason is RejectReason.PLUGIN_FAILED


def test_what_no_plugin_knows_is_refused(make_bench, install_plugins):
    install_plugins(acme="tests.unit.acme:Acme")
    bench = make_bench(enabled_plugins=["acme"])
    assert bench.rejected(GPU).reason is RejectReason.NO_PLUGIN
    assert set(offered(bench.manager)) == set(CARDS)


def test_a_plugin_that_is_not_enabled_is_left_alone(make_bench, install_plugins):
    install_plugins(bad="tests.unit.no_such_module:Acme")
    bench = make_bench(enabled_plugins=["pci"])
    assert set_aside(bench.manager) == {}


def test_a_plugin_that_is_enabled_has_to_be_installed(make_bench):
    bench = make_bench(enabled_plugins=["acmee"])
    with pytest.raises(exception.InvalidConfiguration, match="acmee") as caught:
        bench.restart()
    assert "pci" in caught.value.hint


def test_a_plugin_takes_part_in_plug_and_unplug(make_bench, install_plugins):
    install_plugins(acme="tests.unit.acme:Acme")
    bench = make_bench()
    bench.plug(1, CARDS[0])
    plugin = bench.manager.plugins.get("acme")
    assert isinstance(plugin, acme.Acme)
    ((step, handle),) = plugin.calls
    assert step == "prepare"
    assert str(handle.address) == CARDS[0]
    bench.unplug(1)
    assert plugin.calls == [("prepare", handle), ("release", handle)]


def test_a_plugin_that_fails_to_prepare_costs_nothing(make_bench, install_plugins):
    install_plugins(bad="tests.unit.acme:FailsToPrepare")
    bench = make_bench()
    before, writes = bench.kernel.snapshot(), bench.kernel.writes()
    with pytest.raises(exception.PluginFailed, match="cannot prepare") as caught:
        bench.plug(1, CARDS[0])
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert (bench.kernel.snapshot(), bench.kernel.writes()) == (before, writes)
    assert bench.manager.store.leases() == ()
    plugin = bench.manager.plugins.get("bad")
    assert isinstance(plugin, acme.Acme)
    assert [step for step, _ in plugin.calls] == ["prepare", "release"]
    bench.plug(1, GPU)


def test_a_plugin_that_fails_to_release_costs_one_device(make_bench, install_plugins):
    install_plugins(bad="tests.unit.acme:FailsToRelease")
    bench = make_bench()
    before = bench.kernel.snapshot()
    bench.plug(1, CARDS[0], GPU)
    with pytest.raises(exception.DevicesUnreleased, match="cannot release") as caught:
        bench.unplug(1)
    assert caught.value.released == (GPU,)
    ((address, why),) = caught.value.unreleased
    assert address == CARDS[0]
    assert isinstance(why, exception.PluginFailed)
    (lease,) = bench.manager.store.leases(uuid_of(1))
    assert lease.state is LeaseState.QUARANTINED
    assert "cannot release" in lease.reason
    # The device is back on its host driver nevertheless.
    assert bench.kernel.snapshot() == before


def test_an_error_of_the_contract_reaches_the_caller_as_it_is(
    make_bench, install_plugins, monkeypatch
):
    install_plugins(acme="tests.unit.acme:IsBusy")
    bench = make_bench()
    before = bench.kernel.snapshot()
    with pytest.raises(exception.DeviceInUse, match="acmed uses it"):
        bench.plug(1, CARDS[0])
    assert bench.kernel.snapshot() == before
    # The rollback waits for the plugin; a device in use is not quarantined.
    (lease,) = bench.manager.store.leases(uuid_of(1))
    assert lease.state is not LeaseState.QUARANTINED
    monkeypatch.setattr(acme.IsBusy, "is_busy", False)
    bench.plug(1, CARDS[0])
    assert bench.unplug(1) == 1


def test_a_device_that_its_plugin_calls_unsettled_is_not_selected_again(
    make_bench, install_plugins, monkeypatch
):
    """The library scans again for its own reasons; a plugin's cause would repeat."""
    install_plugins(acme="tests.unit.acme:Acme")
    bench = make_bench()
    resetting = base.DeviceChanged(
        "the card is resetting", reason=base.ChangeReason.UNSETTLED
    )
    prepare = mock.Mock(side_effect=resetting)
    monkeypatch.setattr(acme.Acme, "prepare", prepare)
    with pytest.raises(exception.DeviceChanged, match="resetting"):
        bench.plug(1, CARDS[0])
    assert prepare.call_count == 1
    assert bench.manager.store.leases() == ()
