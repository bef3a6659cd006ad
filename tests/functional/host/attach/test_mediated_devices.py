# SPDX-License-Identifier: Apache-2.0

"""Mediated devices, from their parents to the entries that libvirt gets.

The fake parents behave as Linux' samples/vfio-mdev/mtty.c: types of one and two ports
share the 24 ports of a parent.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from os_acc import exception
from os_acc.cmd import arguments
from os_acc.helper import client
from os_acc.host import mdev
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.placement.capacity import Units
from os_acc.privsep.outcome import CallResult
from os_acc.testing import HostSpec, TestHost, hosts, instance, request
from os_acc.testing.mdevs import mdpy, mtty
from os_acc.testing.specs import MdevParentSpec, MdevTypeSpec
from tests.functional.host.attach.test_refused_units import units
from tests.functional.host.operator_commands import release
from tests.unit.store.store_files import execute, file_in

GPU = "0000:17:00.0"
VIRTUAL = '{"mdev_parent": "mtty", "mdev_types": "mtty-1, mtty-2"}'
OF_GPU = f'{{"address": "{GPU}", "mdev_types": "nvidia-558"}}'
STRANGER = "6f0c9b52-2d21-4a2e-9d3c-000000000001"


def _gpu() -> MdevParentSpec:
    kind = MdevTypeSpec("nvidia-558", title="NVIDIA A40-8Q")
    return MdevParentSpec(GPU, 2, (kind,))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    display, audio = hosts.gpu("0000:17")
    display = dataclasses.replace(display, mdevs=_gpu())
    spec = HostSpec((display, audio), mdev_parents=(mtty(),))
    with TestHost(tmp_path, spec, device_spec=[VIRTUAL, OF_GPU]) as host:
        yield host


def test_a_guest_gets_a_mediated_device_of_the_requested_type(host):
    (entry,) = host.plug(1, f"{GPU}/nvidia-558")

    uuid = entry["attach_handle_uuid"]
    assert entry["attach_handle_type"] == "MDEV"
    assert entry["attach_handle_info"] == {
        "domain": "0000",
        "bus": "17",
        "device": "00",
        "function": "0",
        "asked_type": "nvidia-558",
        "parent": GPU,
    }
    assert "pci_id" not in entry
    (made,) = mdev.read_mdevs(host.root)
    assert (made.uuid, str(made.type)) == (uuid, f"{GPU}/nvidia-558")


def test_two_types_share_the_capacity_of_their_parent(host):
    assert units(host, "mtty/mtty-1") == Units(24)
    assert units(host, "mtty/mtty-2") == Units(12)

    host.plug(1, "mtty/mtty-2", "mtty/mtty-1")
    host.manager.discover()

    # 3 of 24 ports are in use; a unit of mtty-2 that cannot be had is reserved.
    free = [_free(host, f"mtty/mtty-{ports}") for ports in (1, 2)]
    assert free == [21, 10]


def _free(host: TestHost, name: str) -> int:
    taken = host.manager.store.recorded_state().taken
    handles = host.provider(name).device.handles
    return sum(not each.fault and each.address not in taken for each in handles)


def test_a_mediated_device_of_another_tool_is_reserved_and_stays(host):
    """Weakness 24 of Cyborg: other users of a card change its total."""
    types = f"{host.root}/sys/class/mdev_bus/{GPU}/mdev_supported_types"
    host.kernel.write(f"{types}/nvidia-558/create", STRANGER)
    name = f"{GPU}/nvidia-558"

    assert _free(host, name) == 1
    assert units(host, name) == Units(2, 1)
    host.plug(1, name)
    with pytest.raises(exception.NoDeviceAvailable):
        host.plug(2, name)
    host.unplug(1)

    assert [each.uuid for each in mdev.read_mdevs(host.root)] == [STRANGER]


@pytest.mark.parametrize("left", [0, 1])
def test_one_that_another_tool_makes_after_the_scan_costs_a_retry(
    host, monkeypatch, left
):
    """Another refusal is none for want of capacity."""
    types = f"{host.root}/sys/class/mdev_bus/{GPU}/mdev_supported_types"
    strangers = [STRANGER, STRANGER.replace("1", "2")][left:]
    create = client.Helper.create_mdev

    def create_later(*arguments: Any, **asking: bool) -> CallResult:
        for each in strangers:
            host.kernel.write(f"{types}/nvidia-558/create", each)
        if left:
            host.kernel.fail(attribute="create", error=errno.EINVAL)
        return create(*arguments, **asking)

    monkeypatch.setattr(client.Helper, "create_mdev", create_later)
    with pytest.raises(exception.HostStepFailed) as caught:
        host.plug(1, f"{GPU}/nvidia-558")
    reason = exception.StepReason
    assert caught.value.reason is (reason.REFUSED if left else reason.NO_CAPACITY)
    assert caught.value.retryable is not bool(left)
    assert caught.value.elsewhere
    assert host.manager.store.leases() == ()
    assert [each.uuid for each in mdev.read_mdevs(host.root)] == sorted(strangers)


def test_a_mediated_device_in_use_is_not_removed(host):
    (entry,) = host.plug(1, f"{GPU}/nvidia-558")
    host.kernel.hold(entry["attach_handle_uuid"])

    with pytest.raises(exception.DevicesUnreleased, match="qemu-system-x86"):
        host.unplug(1)
    assert len(mdev.read_mdevs(host.root)) == 1
    assert host.lease_state(1) is LeaseState.RELEASING

    host.kernel.let_go(entry["attach_handle_uuid"])
    assert host.unplug(1) == 1
    assert mdev.read_mdevs(host.root) == ()


def test_an_operator_releases_one_from_quarantine(host):
    host.plug(1, f"{GPU}/nvidia-558")
    host.kernel.fail(attribute="remove", error=errno.EINVAL)
    with pytest.raises(exception.DevicesUnreleased, match="os-acc device release"):
        host.unplug(1)
    assert host.lease_state(1) is LeaseState.QUARANTINED

    release(host, f"{GPU}/nvidia-558/0")

    assert mdev.read_mdevs(host.root) == ()
    assert host.manager.store.leases() == ()


def test_a_damaged_record_keeps_its_unit_until_an_operator_forgets_it(host):
    name = f"{GPU}/nvidia-558"
    host.plug(1, name)
    execute(file_in(host.state_path), "UPDATE leases SET payload = payload || ' '")
    slot = arguments.device_address(f"{name}/0")

    assert host.manager.store.damaged_claims() == (slot,)
    assert _free(host, name) == 1
    release(host, slot)

    # The mediated device itself is no longer known as ours, and stays.
    assert host.manager.store.damaged_claims() == ()
    assert (_free(host, name), len(mdev.read_mdevs(host.root))) == (1, 1)


def test_a_reboot_ends_it_and_a_plug_makes_it_again_with_its_uuid(host):
    selected, specs = request(host.provider(f"{GPU}/nvidia-558"))
    (before,) = host.manager.plug(instance(1), selected, specs)
    host.kernel.reboot()
    assert mdev.read_mdevs(host.root) == ()
    host.restart()

    (after,) = host.manager.plug(instance(1), selected, specs)

    assert after == before
    assert [each.uuid for each in mdev.read_mdevs(host.root)] == [
        before["attach_handle_uuid"]
    ]


def test_an_unplug_after_a_reboot_frees_the_unit(host):
    host.plug(1, f"{GPU}/nvidia-558")
    host.kernel.reboot()
    host.restart()

    assert host.unplug(1) == 1
    assert _free(host, f"{GPU}/nvidia-558") == 2


def test_a_type_that_the_driver_does_not_offer_is_rejected(tmp_path):
    spec = HostSpec(mdev_parents=(mtty(),))
    named = '{"mdev_parent": "mtty", "mdev_types": "mtty-9"}'
    with TestHost(tmp_path, spec, device_spec=[named]) as host:
        (refused,) = host.manager.discover().refused

        assert refused.reason is RejectReason.NO_MDEV_TYPE
        assert "it offers mtty-1, mtty-2" in refused.detail


def test_no_driver_of_the_host_gets_a_mediated_device(host):
    with pytest.raises(exception.NoDeviceAvailable, match="mediated"):
        host.plug(1, "mtty/mtty-1", attach_target="host")

    assert host.manager.store.leases() == ()


@pytest.mark.parametrize(
    ("parent", "kind", "units", "refusal"),
    [(mtty(), "mtty-2", 12, errno.ENOSPC), (mdpy(), "mdpy-hd", 4, errno.EUSERS)],
    ids=["mtty", "mdpy"],
)
def test_a_parent_without_capacity_refuses_every_type(
    tmp_path, parent, kind, units, refusal
):
    """The errors are those that tests/functional/kernel/test_mdev.py sees."""
    names = ", ".join(each.name for each in parent.types)
    named = f'{{"mdev_parent": "{parent.name}", "mdev_types": "{names}"}}'
    spec = HostSpec(mdev_parents=(parent,))
    with TestHost(tmp_path, spec, device_spec=[named]) as host:
        host.plug(1, f"{parent.name}/{kind}", amount=units)
        for each in parent.types:
            assert _free(host, f"{parent.name}/{each.name}") == 0
            path = f"{host.root}/{mdev.PARENTS}/{parent.name}/mdev_supported_types"
            with pytest.raises(OSError, match=os.strerror(refusal)):
                host.kernel.write(f"{path}/{each.name}/create", STRANGER)
