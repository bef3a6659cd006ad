# SPDX-License-Identifier: Apache-2.0

"""Each bug of a plugin is reported with the rule that it breaks, and stops no other.

The card that the plugin describes wrongly is not offered; its other card, the devices
of other plugins, ``initialize()`` and the commands are unaffected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from os_acc import exception, service
from os_acc.attach.manager import Manager
from os_acc.objects.device import RejectReason
from os_acc.plugins import base
from os_acc.testing import HostSpec, TestHost, hosts
from tests.functional.host.plugins import planted_bugs
from tests.functional.host.plugins.planted_bugs import HERE, Planted
from tests.unit.cmd.console import Console
from tests.unit.fpga import CRYPTO, POWER_ON, VFS

FIRST, SECOND, GPU = "0000:5e:00.0", "0000:e3:00.0", "0000:17:00.0"
NAMED = [f'{{"address": "{each}"}}' for each in (FIRST, SECOND, GPU[:-1] + "*")]

STRANGER = base.PciAddress.parse("0000:04:00.0")
Wrong = Callable[[base.Device, base.UsableFunction], Iterable[Any]]


class Code(base.VendorReason):
    OLD_FIRMWARE = 12


class Translated(str):
    """Text as a translation is: of a type derived from str."""

    __slots__ = ()


def with_(**changes: Any) -> Wrong:
    """Return a device with wrong values."""
    return lambda right, usable: [dataclasses.replace(right, **changes)]


def with_handle(**changes: Any) -> Wrong:
    """Return a device with an altered handle."""
    return lambda right, usable: [
        dataclasses.replace(
            right, handles=(dataclasses.replace(usable.handle(), **changes),)
        )
    ]


def with_identity(**changes: Any) -> Wrong:
    """Return a device with an altered identity."""
    return lambda right, usable: [
        dataclasses.replace(
            right, identity=dataclasses.replace(usable.function.identity, **changes)
        )
    ]


def rejected(*values: Any) -> Wrong:
    """Return a rejection of the device."""
    return lambda right, usable: [base.RejectedDevice(right.address, *values)]


UNSUPPORTED = base.RejectReason.UNSUPPORTED
OF_NOVA = with_(resource_class="VCPU")
# Each wrong answer, with the rule that it breaks, as the operator reads it.
RULES: dict[str, tuple[Wrong, str]] = {
    "identity": (with_identity(vendor="10ee"), "Device.identity is '10ee', not a num"),
    "serial": (with_identity(serial="x" * 65), "is longer than 64 characters"),
    "nova": (OF_NOVA, "Device.resource_class is VCPU, a class of Nova or Neutron"),
    "erases": (
        with_(erasure=base.Erasure.PLUGIN),
        "Device.erasure is PLUGIN, but the plugin has no erase()",
    ),
    "removes": (
        with_(erasure=base.Erasure.REMOVAL),
        "Device.erasure is REMOVAL, for a function that a VFIO driver",
    ),
    "stranger": (
        with_(address=STRANGER),
        "Device.address 0000:04:00.0 is no candidate of the card of its handles",
    ),
    "nothing": (
        with_(address=base.PciAddress.parse("0000:ff:1f.7")),
        "Device.address 0000:ff:1f.7 is not on this host",
    ),
    "sibling": (
        with_(address=base.PciAddress.parse(SECOND)),
        f"Device.address {SECOND} is no candidate of the card of its handles",
    ),
    "another": (
        with_(address=base.PciAddress.parse(GPU)),
        f"Device.address {GPU} is a usable function that the plugin",
    ),
    "product": (with_identity(product=0x9999), "Device.identity is 10ee:9999"),
    "plugin": (with_(plugin="pci"), "Device.plugin is 'pci', not 'bad'"),
    "class": (
        with_(resource_class="an accelerator"),
        "'an accelerator' is no valid name for Placement",
    ),
    "unknown class": (
        with_(resource_class="ACCELERATOR_ACME"),
        "'ACCELERATOR_ACME' is neither a standard name of Placement nor",
    ),
    "unknown trait": (
        with_(traits=frozenset({"HW_NIC_SRIOV", "ACME_FAST"})),
        "'ACME_FAST' is neither a standard name of Placement nor",
    ),
    "fault": (with_handle(fault=None), "AttachHandle.fault is None, not a str"),
    "handle": (
        with_handle(address=FIRST, members=None),
        f"AttachHandle.address is '{FIRST}', not a PciAddress",
    ),
    "altered": (with_handle(iommu_group=999), f"the handle of {FIRST} was altered"),
    "greedy": (
        with_handle(address=STRANGER),
        "AttachHandle.address 0000:04:00.0 is not a usable candidate",
    ),
    "no handles": (with_(handles=()), "Device.handles is empty"),
    "twice": (
        lambda right, usable: [dataclasses.replace(right, handles=right.handles * 2)],
        "Device.handles has one handle twice",
    ),
    "candidate": (
        lambda right, usable: [usable],
        "discover() returned UsableFunction(",
    ),
    "reason": (
        rejected(base.RejectReason.UNKNOWN_STATE),
        "is UNKNOWN_STATE, which is not for",
    ),
    "detail": (rejected(UNSUPPORTED, "model \udcff\udcff"), "not plain Unicode text"),
    "code": (
        rejected(UNSUPPORTED, "", Code.OLD_FIRMWARE),
        "the value of vendor_reason is 12",
    ),
}
# What a plugin does, and the reason why nothing of it is used.
SET_ASIDE: dict[str | Wrong, str] = {
    with_(numa_node=-1): "Device.numa_node is -1, not a number from 0 on",
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
def make_host(make_bench, install_plugins, monkeypatch):
    """Return a function that builds a host of two cards of a plugin, and a GPU."""

    def make(plugin: str | Wrong, **options) -> TestHost:
        if not isinstance(plugin, str):
            wrong = plugin
            monkeypatch.setattr(Planted, "wrong", lambda self, *args: wrong(*args))
            plugin = "Planted"
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


@pytest.mark.parametrize(("wrong", "rule"), RULES.values(), ids=RULES)
@pytest.mark.share(5)
def test_a_wrong_device_is_rejected_with_its_rule_and_all_others_are_offered(
    make_host, initialize, caplog, wrong, rule
):
    host = make_host(wrong)
    manager = initialize(host)
    assert offered(manager) == {SECOND: "bad", GPU: "pci"}
    assert manager.host_info()["set_aside"] == []
    for _ in range(3):
        manager.refresh()
    (message,) = logged(caplog, rule)
    assert message.startswith(f"{FIRST} is named")
    found = host.rejected(FIRST)
    assert found.reason is RejectReason.INVALID
    assert found.detail.startswith("bad: ")
    assert rule in found.detail
    host.plug(1, SECOND, GPU)
    assert host.unplug(1) == 2


def test_every_command_works_beside_a_wrong_device_and_shows_the_rule(
    make_host, tmp_path
):
    console = console_on(make_host(OF_NOVA), tmp_path)
    assert_commands_work(console)
    rows = {row["Address"]: row for row in console.json("device", "list")}
    rule = "Device.resource_class is VCPU, a class of Nova or Neutron"
    assert rows[FIRST]["State"] == "refused"
    assert rule in rows[FIRST]["Reason"]
    assert rows[SECOND]["State"] == rows[GPU]["State"] == "free"
    found = failure(console)
    assert found.startswith("a plugin broke a rule of the contract: bad: ")
    assert rule in found
    assert found.endswith(f"; not offered: {FIRST}")


def test_attributes_of_a_plugin_are_read_once(make_host, initialize):
    """A property of the vendor's may fail at any time."""
    host = make_host("ReadOnce")
    manager = initialize(host)
    assert offered(manager) == {FIRST: "bad", SECOND: "bad", GPU: "pci"}
    assert manager.plugins.always_reporting == {"bad"}
    host.plug(1, FIRST, GPU)
    assert host.unplug(1) == 2


def test_a_plugin_that_changes_its_name_costs_its_own_devices_alone(
    make_host, initialize
):
    host = make_host("RenamesLater")
    manager = initialize(host)
    for _ in range(2):
        assert offered(manager) == {GPU: "pci"}
        rule = "Device.plugin is 'Acme E10', not 'bad'"
        assert rule in host.rejected(FIRST).detail
        manager.discover()
    assert [each["name"] for each in manager.host_info()["plugins"]] == ["bad", "pci"]
    host.plug(1, GPU)
    assert host.unplug(1) == 1


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (with_handle(fault=Translated("is too hot")), "is too hot"),
        (
            rejected(UNSUPPORTED, Translated("model 7")),
            "not supported by its plugin: model 7",
        ),
    ],
)
def test_a_translated_text_is_shown(make_host, tmp_path, wrong, reason):
    console = console_on(make_host(wrong), tmp_path)
    assert console.device(FIRST)["Reason"] == reason


def test_a_class_of_another_service_is_the_operators_choice(make_host):
    host = make_host(OF_NOVA)
    tagged = json.dumps({"address": FIRST, "resource_class": "VCPU"})
    host.restart(device_spec=[tagged, *NAMED[1:]])
    assert offered(host.manager) == {FIRST: "bad", SECOND: "bad", GPU: "pci"}


@pytest.mark.parametrize(("plugin", "reason"), SET_ASIDE.items())
def test_a_plugin_that_fails_as_a_whole_is_set_aside_alone(
    make_host, initialize, caplog, plugin, reason
):
    host = make_host(plugin)
    manager = initialize(host)
    assert offered(manager) == dict.fromkeys((FIRST, SECOND, GPU), "pci")
    (aside,) = manager.host_info()["set_aside"]
    assert aside["name"] == "bad"
    assert reason in aside["reason"]
    for _ in range(3):
        manager.refresh()
    assert len(logged(caplog, reason)) == 1


@pytest.mark.parametrize(
    ("junk", "rule"),
    [
        (
            base.RejectedDevice(STRANGER, UNSUPPORTED),
            "RejectedDevice.address 0000:04:00.0 is not a usable candidate",
        ),
        (
            "a device",
            "discover() returned 'a device', which is neither a Device nor a "
            "RejectedDevice",
        ),
    ],
)
def test_an_answer_about_no_candidate_is_reported_and_costs_no_device(
    make_host, initialize, tmp_path, caplog, junk, rule
):
    host = make_host(lambda right, usable: [junk, right])
    manager = initialize(host)
    assert offered(manager) == {FIRST: "bad", SECOND: "bad", GPU: "pci"}
    manager.refresh()
    text = f"a plugin broke a rule of the contract: bad: {rule}"
    assert logged(caplog, rule) == [text]
    assert failure(console_on(host, tmp_path)) == text


def test_a_card_that_a_plugin_had_offered_waits_for_an_answer_that_names_it(
    make_host,
):
    """Else a guest would get it without the preparation by the plugin."""
    host = make_host(lambda right, usable: [right])
    assert offered(host.manager) == {FIRST: "bad", SECOND: "bad", GPU: "pci"}
    make_host(lambda right, usable: ["a device"])
    host.restart()
    assert offered(host.manager) == {SECOND: "bad", GPU: "pci"}
    found = host.rejected(FIRST)
    assert found.reason is RejectReason.PLUGIN_FAILED
    assert "discover() returned 'a device'" in found.detail


@pytest.mark.parametrize(
    ("plugin", "rule"),
    [
        ("SameNameTwice", f"Device.address {FIRST} is that of two devices"),
        ("SameHandleTwice", f"{FIRST} is offered twice"),
    ],
)
def test_of_two_devices_with_one_name_or_function_the_first_is_offered(
    make_host, initialize, plugin, rule
):
    host = make_host(plugin)
    assert offered(initialize(host)) == {FIRST: "bad", GPU: "pci"}
    assert rule in host.rejected(SECOND).detail


def test_a_function_that_is_offered_and_rejected_is_rejected(
    make_host, tmp_path, initialize
):
    host = make_host(
        lambda right, usable: [right, base.RejectedDevice(right.address, UNSUPPORTED)]
    )
    assert offered(initialize(host)) == {SECOND: "bad", GPU: "pci"}
    assert host.rejected(FIRST).reason is UNSUPPORTED
    rule = f"{FIRST} is offered, and rejected as well"
    assert failure(console_on(host, tmp_path)).endswith(rule)


def test_all_functions_of_a_card_stay_with_the_plugin_that_describes_it_wrongly(
    make_bench, install_plugins
):
    """The device names no VF."""
    install_plugins(bad=f"{HERE}:NoHandlesOfCard")
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO), vfs=2)
    host = make_bench(HostSpec((card,)), device_spec=[VFS])
    assert offered(host.manager) == {}
    for vf in ("0000:3b:00.1", "0000:3b:00.2"):
        assert host.rejected(vf).reason is RejectReason.INVALID


def test_two_plugins_name_no_device_alike(make_bench, install_plugins):
    """Both devices would be one provider."""
    install_plugins(bad=f"{HERE}:FirstOfCard")
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO), vfs=2)
    host = make_bench(HostSpec((card,)), device_spec=[VFS])
    assert offered(host.manager) == {"0000:3b:00.1": "bad"}
    rule = "Device.address 0000:3b:00.0 is a device of plugin bad"
    assert rule in host.rejected("0000:3b:00.2").detail


def test_no_device_is_named_after_the_card_of_another_vendor(
    make_bench, install_plugins
):
    """A guest with an allocation of that card would get this device."""
    install_plugins(bad=f"{HERE}:NamedAfterAnother")
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO), vfs=2)
    named = [VFS.replace("*:*:*", "0000:3b:*"), NAMED[0]]
    spec = HostSpec((card, hosts.fpga("0000:5e")))
    host = make_bench(spec, device_spec=named)
    # The provider of the PF is recorded from now on.
    for _ in range(2):
        assert "bad" not in offered(host.manager).values()
        rule = "Device.address 0000:3b:00.0 is no candidate of the card of its handles"
        assert rule in host.rejected(FIRST).detail
        host.restart()


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
    old = planted_bugs.AcmeReason.OLD_FIRMWARE
    host = make_host(rejected(UNSUPPORTED, "12", old))
    found = host.rejected(FIRST)
    assert (found.reason, found.vendor_reason) == (UNSUPPORTED, old)
    console = console_on(host, tmp_path)
    assert console.device(FIRST)["Reason"] == "its firmware is too old: 12"
    found = {row["What"] for rows in console.checks().values() for row in rows}
    assert f"not offered (its firmware is too old): {FIRST}" in found


def test_a_device_that_nothing_erases_is_offered_by_its_tag_alone(make_host, tmp_path):
    host = make_host(with_(erasure=base.Erasure.NONE))
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
