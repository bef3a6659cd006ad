# SPDX-License-Identifier: Apache-2.0

"""Types of mediated devices stay with the vendor's plugin that has offered them.

The library's own plugin would offer them under its class, and a guest would get one
without the vendor's preparation.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest import mock

import pytest

from os_acc import exception
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.plugins import base
from os_acc.testing import HostSpec, TestHost
from os_acc.testing.mdevs import mtty
from tests.functional.host.operator_commands import release
from tests.unit.plugins import mdev_vendor
from tests.unit.plugins.mdev_vendor import (
    GENERIC,
    GPU,
    HERE,
    NAMED,
    TYPES,
    gpu,
    host_spec,
    offered,
)


@pytest.fixture
def vendors(make_bench, install_plugins):
    """Return a function that builds a host whose types a vendor has offered."""

    def make(plugin: str = "Vendor", **options) -> TestHost:
        install_plugins(vendor=f"{HERE}:{plugin}", mdev=GENERIC)
        host = make_bench(host_spec(), device_spec=NAMED, **options)
        host.manager.discover()
        return host

    return make


@pytest.fixture
def replace(install_plugins):
    """Return a function that restarts a host with another version of the plugin."""

    def call(host: TestHost, plugin: str, **options) -> None:
        installed = {"vendor": f"{HERE}:{plugin}"} if plugin else {}
        install_plugins(mdev=GENERIC, **installed)
        host.restart(**options)

    return call


def rejected(host: TestHost) -> dict[str, str]:
    found = host.manager.discover().refused
    assert {each.reason for each in found} <= {RejectReason.PLUGIN_FAILED}
    return {str(each.address): each.detail for each in found}


def test_the_vendors_plugin_takes_types_before_the_generic_one(vendors):
    assert offered(vendors()) == dict.fromkeys(TYPES, "vendor")


def test_types_of_a_failing_plugin_wait_for_it(vendors, replace):
    host = vendors()
    replace(host, "FailsToDiscover")

    assert offered(host) == {}
    found = rejected(host)
    assert found.keys() == set(TYPES)
    for detail in found.values():
        assert detail.startswith("vendor has offered it before: ")
        assert "the vendor's daemon is down" in detail

    replace(host, "Vendor")
    assert offered(host) == dict.fromkeys(TYPES, "vendor")


def test_types_that_another_plugin_has_offered_do_not_wait(vendors, replace):
    host = vendors("TakesOne")
    assert offered(host) == {TYPES[0]: "vendor", TYPES[1]: "mdev", TYPES[2]: "mdev"}
    replace(host, "FailsToDiscover")

    assert offered(host) == {TYPES[1]: "mdev", TYPES[2]: "mdev"}
    assert rejected(host).keys() == {TYPES[0]}


@pytest.mark.parametrize("unreadable", ["first", "then"])
def test_a_type_waits_also_if_a_serial_number_was_or_is_unreadable(
    make_bench, install_plugins, replace, unreadable
):
    install_plugins(vendor=f"{HERE}:Vendor", mdev=GENERIC)
    host = make_bench(HostSpec(gpu()), device_spec=NAMED[1:])
    number = Path(host.root, "sys/bus/pci/devices", GPU, "serial_number")
    if unreadable == "then":
        number.write_text("00-1b\n")
    assert offered(host) == {TYPES[2]: "vendor"}

    if unreadable == "first":
        number.write_text("00-1b\n")
    else:
        number.unlink()
    replace(host, "FailsToDiscover")
    assert rejected(host).keys() == {TYPES[2]}


def test_types_of_a_function_that_a_failing_plugin_offered_whole_wait(
    make_bench, install_plugins, replace
):
    install_plugins(vendor=f"{HERE}:TakesFunctions", mdev=GENERIC)
    host = make_bench(HostSpec(gpu()), device_spec=[f'{{"address": "{GPU}"}}'])
    assert offered(host) == {GPU: "vendor"}

    replace(host, "FailsToDiscover", device_spec=NAMED[1:])

    assert rejected(host).keys() == {TYPES[2]}


def test_types_of_an_uninstalled_plugin_are_free_for_another(vendors, replace):
    host = vendors()
    replace(host, "")
    assert offered(host) == dict.fromkeys(TYPES, "mdev")


# -- slots that a plugin has to release ----------------------------------------


def faults(host: TestHost, name: str) -> dict[int, str]:
    """Return the faulty slots of a type."""
    handles = host.provider(name).device.handles
    return {each.address.number: each.fault for each in handles if each.fault}


def test_only_the_owed_slot_of_an_uninstalled_plugin_waits_for_it(vendors, replace):
    host = vendors()
    host.plug(1, TYPES[0])
    replace(host, "")

    assert offered(host) == dict.fromkeys(TYPES, "mdev")
    assert faults(host, TYPES[0]) == {0: "waits for vendor"}
    host.plug(2, TYPES[0])
    leases = {str(each.address): each.plugin for each in host.manager.store.leases()}
    assert leases == {f"{TYPES[0]}/0": "vendor", f"{TYPES[0]}/1": "mdev"}


def test_an_owed_slot_is_in_no_allocation_of_another_guest(vendors, replace):
    host = vendors()
    host.plug(1, TYPES[0])
    replace(host, "")
    with pytest.raises(exception.DevicesUnreleased, match="the plugin vendor"):
        host.unplug(1)

    with pytest.raises(exception.NoDeviceAvailable, match="waits for vendor"):
        host.plug(2, TYPES[0], amount=24)
    host.plug(2, TYPES[0], amount=23)

    replace(host, "Vendor")
    release(host, f"{TYPES[0]}/0")
    assert {each.plugin for each in host.manager.store.leases()} == {"mdev"}


def test_a_type_that_no_plugin_takes_names_the_one_that_it_waits_for(
    make_bench, install_plugins
):
    install_plugins(vendor=f"{HERE}:Vendor")
    host = make_bench(HostSpec((), mdev_parents=(mtty(),)), device_spec=NAMED[:1])
    host.plug(1, TYPES[0])
    install_plugins()
    host.restart()

    found = host.manager.discover().refused
    assert {str(each.address): str(each) for each in found} == {
        TYPES[0]: "supported by no plugin: it waits for vendor",
        TYPES[1]: "supported by no plugin",
    }


def test_a_type_with_an_owed_slot_is_kept_for_its_plugin(
    vendors, replace, install_plugins
):
    """Another vendor's plugin chooses before it, and would take the whole type."""
    host = vendors()
    host.plug(1, TYPES[0])
    install_plugins(another=f"{HERE}:Vendor", vendor=f"{HERE}:Vendor", mdev=GENERIC)
    host.restart()

    assert offered(host) == dict.fromkeys(TYPES, "another") | {TYPES[0]: "vendor"}


def test_a_plugin_that_takes_a_type_no_more_keeps_its_slot_alone(vendors, replace):
    host = vendors()
    host.plug(1, TYPES[0])
    replace(host, "TakesNone")

    assert offered(host) == dict.fromkeys(TYPES, "mdev")
    assert faults(host, TYPES[0]) == {0: "waits for vendor"}
    assert host.unplug(1) == 1
    assert faults(host, TYPES[0]) == {}


# -- privileged steps ------------------------------------------------------------


@pytest.fixture
def stepping(make_bench, install_plugins) -> TestHost:
    """Return a host whose plugin prepares and releases the units by steps."""
    install_plugins(vendor=f"{HERE}:Stepping", mdev=GENERIC)
    host: TestHost = make_bench(host_spec(), device_spec=NAMED)
    return host


def test_the_release_ends_once_the_parent_is_gone(stepping):
    stepping.plug(1, TYPES[2])
    stepping.kernel.hot_unplug(GPU)

    assert stepping.unplug(1) == 1
    assert stepping.manager.store.leases() == ()
    assert list(Path(stepping.root, "run/os_acc").glob("*.lease")) == []


def test_the_release_ends_once_another_card_is_in_the_place_of_the_parent(stepping):
    stepping.plug(1, TYPES[2])
    card = stepping.kernel.hot_unplug(GPU)
    stepping.kernel.hot_plug(dataclasses.replace(card, subsystem_product=0x1234))

    assert stepping.unplug(1) == 1
    assert stepping.manager.store.leases() == ()


def test_a_release_that_fails_while_the_parent_is_there_is_owed(stepping, monkeypatch):
    gone = exception.DeviceGone("the firmware has no such unit")
    monkeypatch.setattr(mdev_vendor.Stepping, "release", mock.Mock(side_effect=gone))
    stepping.plug(1, TYPES[2])

    with pytest.raises(exception.DevicesUnreleased, match="no such unit"):
        stepping.unplug(1)
    (lease,) = stepping.manager.store.leases()
    assert lease.state is LeaseState.QUARANTINED


# -- planted bugs --------------------------------------------------------------


def with_(**changes):
    """Return a device with wrong values."""
    return lambda right, candidates: [dataclasses.replace(right, **changes)]


CARD, IDENTITY = (
    base.PciAddress.parse(GPU),
    base.PciIdentity(0x10DE, 0x2235, 0, 0, 0),
)
#: Each rule for types alone, with an answer that breaks it; functions have the others.
RULES = {
    "Device.address mdpy/mtty-1 is not among mdev_types": with_(
        address=base.MdevType("mdpy", "mtty-1")
    ),
    f"Device.address {GPU} is not a type of its handles": with_(address=CARD),
    "but that of mtty is None": with_(identity=IDENTITY),
    "Device.erasure is PLUGIN, for mediated devices": with_(
        erasure=base.Erasure.PLUGIN
    ),
    "Device.erasure is RESET, for mediated devices": with_(erasure=base.Erasure.RESET),
    "Device.region is not for mediated devices": with_(
        region=base.Region(CARD, IDENTITY, 0, None, None)
    ),
    f"Device.handles has {TYPES[1]}/0, not of {TYPES[0]}": lambda right, candidates: [
        dataclasses.replace(right, handles=candidates.mdev_types[-1].handles)
    ],
}


@pytest.fixture
def planted(vendors, monkeypatch):
    """Return a function that builds a host with a wrong answer for the first type."""

    def make(wrong) -> TestHost:
        monkeypatch.setattr(
            mdev_vendor.Planted, "wrong", lambda self, *args: wrong(*args)
        )
        return vendors("Planted")

    return make


@pytest.mark.parametrize("rule", RULES)
def test_a_type_that_breaks_a_rule_is_rejected_alone(planted, rule):
    host = planted(RULES[rule])

    assert offered(host) == dict.fromkeys(TYPES[1:], "vendor")
    found = host.manager.discover()
    (refused,) = found.refused
    assert (str(refused.address), refused.reason) == (TYPES[0], RejectReason.INVALID)
    assert refused.detail.startswith("vendor: ")
    assert rule in refused.detail
    assert found.set_aside == ()
    host.plug(1, TYPES[1])
    assert host.unplug(1) == 1


def test_a_type_that_is_offered_and_rejected_is_rejected(planted):
    host = planted(
        lambda right, candidates: (
            right,
            base.RejectedDevice(right.address, base.RejectReason.UNSUPPORTED),
        )
    )

    assert offered(host) == dict.fromkeys(TYPES[1:], "vendor")
    found = host.manager.discover()
    assert [each.reason for each in found.refused] == [RejectReason.UNSUPPORTED]
    (rule,) = found.broken_rules
    assert rule == f"vendor: {TYPES[0]} is offered, and rejected as well"
