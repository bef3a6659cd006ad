# SPDX-License-Identifier: Apache-2.0

"""A plugin returns a device that root's own configuration names no more."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import NoReturn
from unittest import mock

import pytest

from os_acc import exception
from os_acc.attach.lifecycle import Lifecycle
from os_acc.helper.client import Helper
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, pci_functions
from os_acc.testing import HostSpec, TestHost, hosts, instance, request, uuid_of
from os_acc.testing.device_specs import NvmeSpec
from os_acc.testing.mdevs import mtty
from tests.expected_errors import has
from tests.functional.host.operator_commands import adopt, release
from tests.unit import vendor_steps as vendor
from tests.unit.acme import advance
from tests.unit.privsep import root_config
from tests.unit.store.store_files import execute, file_in, lose_store

CARD, OTHER = "0000:5e:00.0", "0000:17:00.0"
DRIVE = "0000:d9:00.0"
DENIED = has(reason=exception.StepReason.DENIED, errno=0)

#: The file stops to name the device, or is invalid.
LIMITS = pytest.mark.parametrize("limit", [OTHER, "{"], ids=["not named", "invalid"])


def limit_to(host: TestHost, *values: str) -> None:
    """Let root's configuration name these devices alone."""
    named = [each if "{" in each else json.dumps({"address": each}) for each in values]
    root_config.limit_to(host.root, *named)


@pytest.fixture
def host(make_bench, install_plugins, monkeypatch) -> TestHost:
    """Return a host whose plugin sets and clears the NUMA node of a card by steps."""
    install_plugins(acme="tests.unit.vendor_steps:Stepping")
    for name in ("results", "leases"):
        monkeypatch.setattr(vendor.Stepping, name, [])
    host: TestHost = make_bench()
    limit_to(host, CARD)
    return host


def records(host: TestHost) -> list[str]:
    """Return what the helper has on record, by the names of its files."""
    return sorted(each.name for each in Path(host.root, "run/os_acc").glob("*.lease"))


DIES = mock.Mock(side_effect=KeyboardInterrupt)


def die_before_the_release(host: TestHost) -> None:
    """Let an unplug end before the plugin has released the device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os_acc.plugins.loader.Plugins.call", DIES)
        with pytest.raises(KeyboardInterrupt):
            host.unplug(1)


@LIMITS
def test_an_unplug_returns_the_device(host, limit):
    before = host.drivers(CARD)
    host.plug(1, CARD)
    limit_to(host, limit)
    assert host.unplug(1) == 1
    assert vendor.Stepping.results == ["1", "0"]
    assert host.drivers(CARD) == before
    assert records(host) == []


def test_a_plug_is_denied_as_before(host):
    limit_to(host, OTHER)
    with pytest.raises(exception.HostStepFailed, check=DENIED):
        host.plug(1, CARD)
    assert vendor.Stepping.results == []
    assert host.manager.store.leases() == ()
    assert records(host) == []


def test_a_denied_mediated_device_is_not_quarantined(mediated):
    with pytest.raises(exception.HostStepFailed, check=DENIED):
        mediated.plug(1, "mtty/mtty-2")
    assert mediated.manager.store.leases() == ()


def test_a_plug_of_another_leases_device_quarantines_nothing(host):
    """No step of the plug has prepared the device: each one is refused."""
    selected, specs = request(host.provider(CARD))
    card = PciAddress.parse(CARD)
    identity = pci_functions.identity(card)
    target = ((card.parts, identity),)
    group = pci_functions.group(card)
    claims.reserve(group, target, 1, 30_000, uuid_of(9), "host", "")
    with pytest.raises(exception.OsAccError):
        host.manager.plug(instance(1), selected, specs)
    assert vendor.Stepping.results == []
    assert host.manager.store.leases() == ()
    assert f"claimed by lease {uuid_of(9)}" in str(host.rejected(CARD))


def test_a_held_device_is_not_prepared_again(host):
    """The record of the lease is no leave to prepare."""
    host.plug(1, CARD)
    host.bind(CARD, "")
    limit_to(host, OTHER)
    with pytest.raises(exception.HostStepFailed, check=DENIED):
        host.restart().plug(instance(1), None, None)
    assert vendor.Stepping.results == ["1"]
    assert host.unplug(1) == 1


def test_a_crash_before_the_release_is_survived(host):
    host.plug(1, CARD)
    die_before_the_release(host)
    assert records(host) == [f"{CARD}.lease"]
    limit_to(host, OTHER)
    host.restart()
    assert vendor.Stepping.results == ["1", "0"]
    assert host.manager.store.leases() == ()
    assert records(host) == []


def test_a_crash_before_the_helper_takes_the_device_is_survived(host, monkeypatch):
    def fail(*_args: object) -> NoReturn:
        limit_to(host, OTHER)
        raise exception.HelperLost("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Helper, "take", fail)
        with pytest.raises(exception.HelperLost):
            host.plug(1, CARD)
    assert vendor.Stepping.results == ["1", "0"]
    assert host.manager.store.leases() == ()
    assert records(host) == []


def test_a_reboot_does_not_end_the_permission_to_release(host, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Helper, "take", DIES)
        patch.setattr(Lifecycle, "_roll_back", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            host.plug(1, CARD)
    host.kernel.reboot()
    limit_to(host, OTHER)
    host.restart()
    assert host.manager.store.leases() == ()
    assert vendor.Stepping.results == ["1", "0"]


def test_a_lost_store_does_not_lose_the_release(host):
    """The functions are back on the host, and the plugin has not released them."""
    host.plug(1, CARD)
    die_before_the_release(host)
    lose_store(host)
    limit_to(host, OTHER)
    assert "which the store has lost" in str(host.rejected(CARD))
    release(host, CARD)
    assert vendor.Stepping.results == ["1", "0"]
    assert host.manager.store.leases() == ()
    assert records(host) == []


def test_the_release_of_a_lost_guest_s_device_includes_its_plugin(host):
    host.plug(1, CARD)
    lose_store(host)
    release(host, CARD)
    assert vendor.Stepping.results == ["1", "0"]
    assert records(host) == []


@pytest.mark.parametrize("lost", ["store", "record"])
def test_the_plugin_releases_a_device_that_was_adopted_after_a_loss(host, lost):
    host.plug(1, CARD)
    if lost == "store":
        lose_store(host)
    else:
        execute(file_in(host.state_path), "UPDATE leases SET digest = ''")
        host.restart()
        release(host, CARD)
    adopted = adopt(host, CARD)
    assert adopted.needs_release
    assert host.unplug(1) == 1
    assert vendor.Stepping.results == ["1", "0"]


@pytest.fixture
def mediated(make_bench, install_plugins, monkeypatch) -> TestHost:
    install_plugins(acme="tests.unit.vendor_steps:SteppingMdev")
    for name in ("results", "leases"):
        monkeypatch.setattr(vendor.Stepping, name, [])
    spec = HostSpec((), mdev_parents=(mtty(),))
    host: TestHost = make_bench(spec, device_spec=[slots("mtty-1, mtty-2")])
    limit_to(host, slots("mtty-1"))
    return host


def slots(types: str) -> str:
    return json.dumps({"mdev_parent": "mtty", "mdev_types": types})


def test_the_plugin_of_a_mediated_device_returns_it_as_well(mediated):
    mediated.plug(1, "mtty/mtty-1")
    limit_to(mediated, slots("mtty-2"))
    assert mediated.unplug(1) == 1
    assert len(vendor.Stepping.results) == 2
    assert records(mediated) == []


def test_a_forced_release_ends_the_record_of_a_slot(mediated, install_plugins):
    mediated.plug(1, "mtty/mtty-1")
    (lease,) = mediated.manager.store.leases()
    assert len(records(mediated)) == 1
    install_plugins()
    mediated.restart()
    with pytest.raises(exception.DevicesUnreleased, match="acme"):
        mediated.unplug(1)
    release(mediated, lease.slot, force=True)
    assert mediated.manager.store.leases() == ()
    assert records(mediated) == []


def test_a_plugin_that_only_releases_mediated_devices_may(mediated, monkeypatch):
    """No step of ``prepare`` has recorded the slot."""
    monkeypatch.setattr(vendor.SteppingMdev, "prepare", lambda *_: None)
    mediated.plug(1, "mtty/mtty-1")
    limit_to(mediated, slots("mtty-2"))
    assert mediated.unplug(1) == 1
    assert len(vendor.Stepping.results) == 1
    assert records(mediated) == []


def test_a_plugin_that_only_releases_functions_may(host, monkeypatch):
    monkeypatch.setattr(vendor.Stepping, "prepare", lambda *_: None)
    host.plug(1, CARD)
    limit_to(host, OTHER)
    assert host.unplug(1) == 1
    assert vendor.Stepping.results == ["0"]
    assert records(host) == []


@LIMITS
def test_a_drive_is_erased_although_root_names_it_no_more(tmp_path, limit):
    data = b"data of a guest." * 512
    drive = dataclasses.replace(hosts.nvme_disk("0000:d9", 1), nvme=NvmeSpec())
    with TestHost(tmp_path, HostSpec((drive,))) as host:
        limit_to(host, DRIVE)
        host.plug(1, DRIVE)
        host.kernel.write_medium(DRIVE, 1, data)
        limit_to(host, limit)
        host.unplug(1)
        advance(host, 1)
        assert host.manager.store.leases() == ()
        assert data not in host.kernel.read_medium(DRIVE, 1)
        assert records(host) == []
