# SPDX-License-Identifier: Apache-2.0

"""Each bug of a plugin is reported with the rule that it breaks, and stops no other.

The card that the plugin describes wrongly is not offered; its other card, the devices
of other plugins, ``initialize()`` and the commands are unaffected.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from os_acc import exception, service
from os_acc.attach.manager import Manager
from os_acc.objects.device import RejectReason
from os_acc.plugins import base
from os_acc.testing import HostSpec, TestHost, hosts
from tests.unit.cmd.console import Console
from tests.unit.fpga import CRYPTO, POWER_ON, VFS
from tests.unit.plugins import planted_bugs
from tests.unit.plugins.planted_bugs import HERE

FIRST, SECOND, GPU = "0000:5e:00.0", "0000:e3:00.0", str(planted_bugs.GPU)
NAMED = [f'{{"address": "{each}"}}' for each in (FIRST, SECOND, GPU[:-1] + "*")]

# The rule that each plugin breaks, as the operator reads it.
RULES = {
    "AddressIsText": f"Device.address is '{FIRST}', not a PciAddress",
    "IdentityIsText": "Device.identity is '10ee:5000', not a PciIdentity",
    "IdentityHasText": "Device.identity is '10ee', not an int",
    "TraitsAreSorted": "Device.traits is ['CUSTOM_ACME'], not a frozenset of str",
    "TraitIsNumber": "a part of Device.traits is 5000, not a str",
    "HandlesAreListed": "not a tuple of AttachHandle",
    "HandleWithoutComma": "not a tuple of AttachHandle",
    "HandleIsFunction": "a part of Device.handles is UsableFunction(",
    "HandlesAreUsedUp": "not a tuple of AttachHandle",
    "NodeIsMinusOne": "Device.numa_node is -1, not a number from 0 on",
    "NodeIsText": r"Device.numa_node is '0\n', not an int",
    "FaultIsMissing": "AttachHandle.fault is None, not a str",
    "RegionIsText": "'region 0' is not a Region",
    "RegionFunctionIsName": "Region.function_id is 'gzip', which is no canonical UUID",
    "RegionFunctionsAreMapped": "not a tuple of tuple",
    "RegionCardIsText": f"Region.card is '{FIRST}', not a PciAddress",
    "ClassOfNova": "Device.resource_class is VCPU, a class of Nova or Neutron",
    "ErasureIsText": "Device.erasure is 'reset', not an Erasure",
    "ErasesNothing": "Device.erasure is PLUGIN, but the plugin has no erase()",
    "RemovesFunction": "Device.erasure is REMOVAL, for a function that a VFIO driver",
    "ReasonIsText": "RejectedDevice.reason is 'it is too hot', not a RejectReason",
    "ReasonOfTheLibrary": "is UNKNOWN_STATE, which is not for plugins",
    "DetailIsError": "RejectedDevice.detail is OSError('no firmware'), not a str",
    "DetailIsNotUnicode": "RejectedDevice.detail is 'model \\udcff\\udcff', which is",
    "VendorReasonIsNumber": "the value of vendor_reason is 12, not a str",
    "VendorReasonIsDerived": "the value of vendor_reason is no plain str",
    "NoHandles": "Device.handles is empty",
    "Altered": f"the handle of {FIRST} was altered",
    "Twice": "Device.handles has one handle twice",
    "Greedy": "AttachHandle.address 0000:04:00.0 is not a usable candidate",
    "NamedAfterStranger": "Device.address 0000:04:00.0 is neither a candidate nor",
    "NamedAfterNothing": "Device.address 0000:ff:1f.7 is not on this host",
    "NamedAfterAnother": f"Device.address {GPU} is a usable function that the plugin",
    "IdentityOfAnother": "Device.identity is 10ee:9999",
    "Masked": "Device.plugin is 'pci', not 'bad'",
    "Nameless": "'an accelerator' is no valid name for Placement",
    "ClassUnknown": "'ACCELERATOR_ACME' is neither a standard name of Placement nor",
    "TraitUnknown": "'ACME_FAST' is neither a standard name of Placement nor",
}
SET_ASIDE = {
    "Nothing": "TypeError(\"'NoneType' object is not iterable\")",
    "Endless": "discover() returned more than",
    "Cancelled": "CancelledError('firmware daemon')",
    "RaisesUnspeakable": "<Unspeakable instance",
    "ContextsFail": "RuntimeError('no sudo here')",
    "ForgetsSuper": "has no attribute 'name'",
    "Renames": "its name is 'Acme Accelerators', not that of its entry point",
    "FallbackIsMissing": "its is_fallback is None, not a bool",
}
COMMANDS = [
    ("device", "show", FIRST),
    ("provider", "list"),
    ("region", "list"),
    ("request", "list"),
    ("device", "history"),
    ("attached",),
    ("topology",),
]


@pytest.fixture
def make_host(make_bench, install_plugins):
    """Return a function that builds a host of two cards of a plugin, and a GPU."""

    def make(plugin: str, **options) -> TestHost:
        install_plugins(bad=f"{HERE}:{plugin}")
        return make_bench(device_spec=NAMED, **options)

    return make


@pytest.fixture
def initialize(monkeypatch):
    """Return a function that initializes os_acc on a host as a compute service does."""
    monkeypatch.setattr(service, "nodes", service.Nodes())

    def call(host: TestHost) -> Manager:
        service.initialize(config=host.config(), root=host.root)
        return service.get()

    return call


def offered(manager) -> dict[str, str]:
    """Return the plugin that offers each function."""
    return {
        str(handle.address): provider.device.plugin
        for provider in manager.providers()
        for handle in provider.device.handles
    }


def logged(caplog, text: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if text in each.getMessage()]


@pytest.mark.parametrize("plugin", RULES)
@pytest.mark.share(5)
def test_a_wrong_device_is_rejected_with_its_rule_and_all_others_are_offered(
    make_host, initialize, caplog, plugin
):
    host = make_host(plugin)
    manager = initialize(host)
    assert offered(manager) == {SECOND: "bad", GPU: "pci"}
    assert manager.host_info()["set_aside"] == []
    for _ in range(3):
        manager.refresh()
    (message,) = logged(caplog, RULES[plugin])
    assert message.startswith(f"{FIRST} is named")
    rejected = host.rejected(FIRST)
    assert rejected.reason is RejectReason.INVALID
    assert rejected.detail.startswith("bad: ")
    assert RULES[plugin] in rejected.detail
    host.plug(1, SECOND, GPU)
    assert host.unplug(1) == 2


@pytest.mark.parametrize("plugin", RULES)
@pytest.mark.share(5)
def test_every_command_works_beside_a_wrong_device_and_shows_the_rule(
    make_host, tmp_path, plugin
):
    console = console_on(make_host(plugin), tmp_path)
    assert_commands_work(console)
    rows = {row["Address"]: row for row in console.json("device", "list")}
    assert rows[FIRST]["State"] == "refused"
    assert RULES[plugin] in rows[FIRST]["Reason"]
    assert rows[SECOND]["State"] == rows[GPU]["State"] == "free"
    found = failure(console)
    assert found.startswith("plugin bad broke a rule of the contract: ")
    assert RULES[plugin] in found
    assert found.endswith(f"; not offered: {FIRST}")


@pytest.mark.parametrize(
    "plugin",
    [
        *("DerivedClass", "DerivedNode", "DerivedTraits", "DerivedAddress"),
        *("DerivedIdentity", "DerivedWhole", "ReadOnce"),
    ],
)
def test_the_librarys_own_types_replace_those_of_a_vendor(
    make_host, initialize, tmp_path, plugin
):
    """A method of theirs may fail at any time, outside of the vendor's calls."""
    host = make_host(plugin)
    manager = initialize(host)
    assert offered(manager) == {FIRST: "bad", SECOND: "bad", GPU: "pci"}
    assert manager.host_info()["set_aside"] == []
    host.plug(1, FIRST, GPU)
    assert host.unplug(1) == 2
    assert_commands_work(console_on(host, tmp_path))


def test_a_vendors_text_is_copied_where_it_says_why(make_host, initialize, tmp_path):
    host = make_host("DerivedFault")
    initialize(host)
    console = console_on(host, tmp_path)
    assert console.device(FIRST)["Reason"] == "is too hot"
    assert_commands_work(console)


def test_a_vendors_detail_is_copied(make_host, initialize, tmp_path):
    host = make_host("DerivedDetail")
    initialize(host)
    console = console_on(host, tmp_path)
    assert console.device(FIRST)["Reason"] == "not supported by its plugin: model 7"


def test_a_class_of_another_service_is_the_operators_choice(
    make_bench, install_plugins
):
    install_plugins(bad=f"{HERE}:ClassOfNova")
    tagged = json.dumps({"address": FIRST, "resource_class": "VCPU"})
    host = make_bench(device_spec=[tagged, *NAMED[1:]])
    assert offered(host.manager) == {FIRST: "bad", SECOND: "bad", GPU: "pci"}


@pytest.mark.parametrize("plugin", SET_ASIDE)
def test_a_plugin_that_fails_as_a_whole_is_set_aside_alone(
    make_host, initialize, tmp_path, caplog, plugin
):
    host = make_host(plugin)
    manager = initialize(host)
    assert offered(manager) == dict.fromkeys((FIRST, SECOND, GPU), "pci")
    (aside,) = manager.host_info()["set_aside"]
    assert aside["name"] == "bad"
    assert SET_ASIDE[plugin] in aside["reason"]
    for _ in range(3):
        manager.refresh()
    assert len(logged(caplog, SET_ASIDE[plugin])) == 1
    console = console_on(host, tmp_path)
    assert_commands_work(console)
    assert SET_ASIDE[plugin] in failure(console)


def test_an_answer_that_names_no_device_is_reported_and_keeps_none(
    make_host, initialize, tmp_path, caplog
):
    host = make_host("Junk")
    manager = initialize(host)
    assert offered(manager) == {FIRST: "pci", SECOND: "bad", GPU: "pci"}
    manager.refresh()
    rule = "discover() returned 'a device', which is neither a Device nor a Rejected"
    (message,) = logged(caplog, rule)
    assert message.startswith("the plugin bad broke a rule of the contract: ")
    assert rule in failure(console_on(host, tmp_path))


def test_a_card_that_a_plugin_had_offered_waits_for_an_answer_that_names_it(
    make_host, install_plugins
):
    """Else a guest would get it without the preparation by the plugin."""
    host = make_host("Junk")
    install_plugins(bad="tests.unit.acme:Acme")
    host.restart()
    assert offered(host.manager) == {FIRST: "bad", SECOND: "bad", GPU: "pci"}
    install_plugins(bad=f"{HERE}:Junk")
    host.restart()
    assert offered(host.manager) == {SECOND: "bad", GPU: "pci"}
    rejected = host.rejected(FIRST)
    assert rejected.reason is RejectReason.PLUGIN_FAILED
    assert "discover() returned 'a device'" in rejected.detail


def test_a_rejection_of_another_function_costs_no_device(
    make_host, tmp_path, initialize
):
    host = make_host("RejectsStranger")
    assert offered(initialize(host)) == {FIRST: "bad", SECOND: "bad", GPU: "pci"}
    rule = "RejectedDevice.address 0000:04:00.0 is not a usable candidate"
    assert failure(console_on(host, tmp_path)).endswith(rule)


def test_of_two_devices_with_one_name_the_first_is_offered(make_host, initialize):
    host = make_host("SameNameTwice")
    assert offered(initialize(host)) == {FIRST: "bad", GPU: "pci"}
    assert (
        f"Device.address {FIRST} is that of two devices" in host.rejected(SECOND).detail
    )


def test_of_two_devices_with_one_function_the_first_is_offered(make_host, initialize):
    host = make_host("SameHandleTwice")
    assert offered(initialize(host)) == {FIRST: "bad", GPU: "pci"}
    detail = host.rejected(SECOND).detail
    assert f"{FIRST} is offered twice, also by {FIRST}" in detail


@pytest.mark.parametrize("plugin", ["CardIsText", "NoHandlesOfCard"])
def test_all_functions_of_a_card_stay_with_the_plugin_that_describes_it_wrongly(
    make_bench, install_plugins, plugin
):
    """Neither device names a VF."""
    install_plugins(bad=f"{HERE}:{plugin}")
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO), vfs=2)
    host = make_bench(HostSpec((card,)), device_spec=[VFS])
    assert offered(host.manager) == {}
    for vf in ("0000:3b:00.1", "0000:3b:00.2"):
        assert host.rejected(vf).reason is RejectReason.INVALID


def test_a_function_that_is_offered_and_rejected_is_rejected(
    make_host, tmp_path, initialize
):
    host = make_host("RejectedAndOffered")
    assert offered(initialize(host)) == {SECOND: "bad", GPU: "pci"}
    assert host.rejected(FIRST).reason is RejectReason.MANAGEMENT
    rule = f"{FIRST} is offered, and rejected as well"
    assert failure(console_on(host, tmp_path)).endswith(rule)


def test_two_plugins_name_no_device_alike(make_bench, install_plugins):
    """Both devices would be one provider."""
    install_plugins(bad=f"{HERE}:FirstOfCard")
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO), vfs=2)
    host = make_bench(HostSpec((card,)), device_spec=[VFS])
    assert offered(host.manager) == {"0000:3b:00.1": "bad"}
    rule = "Device.address 0000:3b:00.0 is a device of plugin bad"
    assert rule in host.rejected("0000:3b:00.2").detail


def test_the_log_has_the_traceback_of_a_failing_discovery_once(
    make_host, install_plugins, caplog
):
    host = make_host("Nothing")
    install_plugins(bad="tests.unit.acme:FailsToDiscover")
    host.restart()
    for _ in range(3):
        host.manager.refresh()
    assert len(logged(caplog, "firmware is too old")) == 1
    assert caplog.text.count('raise RuntimeError("firmware is too old")') == 1


def test_the_log_has_the_traceback_of_a_plugin_that_cannot_be_made(
    make_host, install_plugins, tmp_path, caplog
):
    host = make_host("ForgetsSuper")
    host.restart()
    assert caplog.text.count("Traceback (most recent call last):") == 1
    console = console_on(host, tmp_path)
    assert "Traceback" not in console.run("check").err
    assert "Traceback" in console.run("--debug", "check").err


@pytest.mark.parametrize("step", ["prepare", "release"])
def test_the_log_has_the_traceback_of_a_failing_step(
    make_host, install_plugins, caplog, step
):
    host = make_host("Nothing")
    install_plugins(bad=f"tests.unit.acme:FailsTo{step.capitalize()}")
    host.restart()
    with contextlib.suppress(exception.PluginFailed):
        host.plug(1, FIRST)
    with contextlib.suppress(exception.DevicesUnreleased):
        host.unplug(1)
    assert f'raise RuntimeError("cannot {step}")' in caplog.text


def test_a_vendor_rejects_a_device_for_a_reason_of_its_own(make_host, tmp_path):
    host = make_host("OldFirmware")
    rejected = host.rejected(FIRST)
    assert rejected.reason is base.RejectReason.UNSUPPORTED
    assert rejected.vendor_reason is planted_bugs.AcmeReason.OLD_FIRMWARE
    console = console_on(host, tmp_path)
    assert console.device(FIRST)["Reason"] == "its firmware is too old: 12"
    found = {row["What"] for rows in console.checks().values() for row in rows}
    assert f"not offered (its firmware is too old): {FIRST}" in found


def test_a_device_that_nothing_erases_is_offered_by_its_tag_alone(make_host, tmp_path):
    host = make_host("NeverForgets")
    assert host.rejected(FIRST).reason is base.RejectReason.NO_ERASE
    assert offered(host.manager) == {SECOND: "bad", GPU: "pci"}
    console = console_on(host, tmp_path)
    found = {row["What"]: row for rows in console.checks().values() for row in rows}
    row = found[f"not offered (cannot be erased between guests): {FIRST}"]
    assert "allow_no_erase" in row["Hint"]
    tagged = json.dumps({"address": FIRST, "allow_no_erase": True})
    manager = host.restart(device_spec=[tagged, *NAMED[1:]])
    assert offered(manager) == {FIRST: "bad", SECOND: "bad", GPU: "pci"}


def assert_commands_work(console: Console) -> None:
    for command in COMMANDS:
        ran = console.run(*command)
        assert ran.status == 0, ran.err
        assert "Traceback" not in ran.err


def console_on(host: TestHost, place: Path) -> Console:
    console = Console(host, place)
    console.configure(*NAMED)
    return console


def failure(console: Console) -> str:
    """Return the only failed check that is about a plugin."""
    (found,) = (
        row["What"]
        for rows in console.checks().values()
        for row in rows
        if row["Result"] == "failed" and "plugin" in row["What"]
    )
    return str(found)
