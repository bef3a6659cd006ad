# SPDX-License-Identifier: Apache-2.0

"""The source describes its devices, and the target pairs its own with them."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from os_acc import exception
from os_acc.attach import migration
from os_acc.objects.api import MigratingDevice
from os_acc.plugins.mdev import MdevPlugin
from os_acc.testing import TestHost, instance
from tests.functional.host.attach.test_migration_support import MTTY, RELEASE, SLOT
from tests.functional.host.attach.test_migration_support import (
    host_of as host_of,  # a fixture
)
from tests.functional.host.attach.test_variant_drivers import AUTO, MLX5, VF


def described(host: TestHost, number: int = 1) -> list[MigratingDevice]:
    return migration.source(host.manager, instance(number))


def pairs(host: TestHost, devices: list[MigratingDevice]) -> dict[str, str]:
    return migration.pairs(host.manager, instance(2), devices)


@pytest.mark.parametrize("address", [VF, SLOT])
def test_a_device_pairs_with_one_of_its_kind(host_of, address):
    host = host_of()
    host.plug(1, address)
    (device,) = described(host)
    assert device["reason"] == ""
    assert device["state_size"] == 4096
    (entry,) = host.plug(2, address)
    target = entry.get("pci_id") or entry["attach_handle_uuid"]
    assert pairs(host, [device]) == {device["address"]: target}


def test_each_group_pairs_with_itself(host_of):
    host = host_of()
    host.plug(1, VF, SLOT)
    host.plug(2, VF, SLOT)
    devices = described(host)
    assert [each["request_group"] for each in devices] == ["1", "2"]
    found = pairs(host, devices[::-1])
    assert found == {
        before["address"]: after["address"]
        for before, after in zip(devices, described(host, 2), strict=True)
    }


def test_several_devices_need_p2p(host_of):
    """QEMU refuses a guest with several devices if one of them lacks P2P."""
    host = host_of((1, 4096))
    host.plug(1, VF, SLOT)
    assert all("lacks P2P" in each["reason"] for each in described(host))
    host.plug(2, VF)
    (alone,) = described(host, 2)
    assert alone["reason"] == ""


@pytest.mark.parametrize("address", [VF, SLOT])
def test_a_tag_that_is_newer_than_the_lease_holds(host_of, address):
    host = host_of()
    host.plug(1, address)
    off = ', "live_migratable": "false"}'
    host.restart(device_spec=[each.replace("}", off) for each in (AUTO, MTTY)])
    (device,) = described(host)
    assert device["reason"] == "is tagged live_migratable = false in device_spec"


def test_vfio_pci_and_a_device_of_the_host_give_their_reasons(host_of):
    host = host_of((7, 4096), f'{{"address": "{VF[:-1]}*"}}', MTTY)
    host.plug(1, VF)
    (device,) = described(host)
    assert device["reason"] == "is on vfio-pci, which cannot migrate a device"
    host.plug(2, VF, attach_target="host")
    (device,) = described(host, 2)
    assert device["reason"] == "is not attached to the guest"


def test_a_device_without_a_partner_is_named(host_of):
    host = host_of()
    host.plug(1, VF)
    devices = described(host)
    host.plug(2, SLOT)
    with pytest.raises(exception.NoDeviceAvailable, match=devices[0]["address"]):
        pairs(host, devices)


def test_a_device_too_many_is_named(host_of):
    host = host_of()
    host.plug(1, SLOT)
    host.plug(2, SLOT, VF)
    with pytest.raises(exception.NoDeviceAvailable, match="replaces no device"):
        pairs(host, described(host))


def test_a_plugin_states_what_has_to_be_equal(host_of, monkeypatch):
    host = host_of()
    host.plug(1, SLOT)
    monkeypatch.setattr(MdevPlugin, "migration_profile", lambda *_: "firmware 1")
    devices = described(host)
    assert devices[0]["profile"] == "mdev CUSTOM_ACCELERATOR_MDEV firmware 1"
    host.plug(2, SLOT)
    assert len(pairs(host, devices)) == 1
    monkeypatch.setattr(MdevPlugin, "migration_profile", lambda *_: "firmware 2")
    with pytest.raises(exception.NoDeviceAvailable, match="firmware 1"):
        pairs(host, devices)
    monkeypatch.setattr(MdevPlugin, "accepts_migration", lambda *_: True)
    assert len(pairs(host, devices)) == 1


def test_a_plugin_that_fails_states_nothing(host_of, monkeypatch):
    host = host_of()
    host.plug(1, SLOT)
    failing = mock.Mock(side_effect=RuntimeError("no licence"))
    monkeypatch.setattr(MdevPlugin, "migration_profile", failing)
    with pytest.raises(exception.PluginFailed, match="no licence"):
        described(host)


def test_a_description_of_another_release_is_rejected(host_of):
    host = host_of()
    host.plug(2, SLOT)
    with pytest.raises(exception.InvalidInput, match="describes no device"):
        pairs(host, [{"address": "x"}])  # type: ignore[typeddict-item]


def test_a_device_keeps_its_address_where_it_can(host_of):
    """Nova replaces one address after the other."""
    host = host_of()
    host.plug(1, VF)
    (device,) = described(host)
    host.plug(2, VF)
    (other,) = described(host, 2)
    host.unplug(1)
    host.plug(2, VF, amount=1)
    host.unplug(2)
    host.plug(2, VF, amount=2)
    found = pairs(host, [other, device])
    assert found == {each["address"]: each["address"] for each in (device, other)}


def test_another_kernel_with_the_same_driver_is_equal(host_of):
    host = host_of((7, 4096), AUTO.replace("auto", MLX5), MTTY)
    place = Path(host.root, "sys/module/mlx5_vfio_pci")
    os.makedirs(place)
    (place / "version").write_text("1.0\n")
    Path(host.root, "sys/bus/pci/drivers", MLX5, "module").symlink_to(place)
    host.plug(1, VF)
    devices = described(host)
    Path(host.root, RELEASE).write_text("7.0.0\n")
    host.plug(2, VF)
    assert len(pairs(host, devices)) == 1
