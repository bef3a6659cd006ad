# SPDX-License-Identifier: Apache-2.0

"""vGPUs of more than one type on a card of NVIDIA."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from os_acc.plugins.nvidia import NvidiaPlugin
from os_acc.testing import HostSpec, TestHost, hosts, instance
from os_acc.testing.nvidia import CURRENT
from tests.unit.plugins.vgpus import BUS, HALF, VFS, WHOLE, set_type, tagged, type_of
from tests.unit.plugins.vgpus import host as host

#: A type that fits beside a few others of its kind.
SMALL = 1146


def test_the_vgpu_of_another_type_is_not_the_one_of_the_lease(host):
    host.plug(1, VFS[0])
    set_type(host, VFS[0], 0)
    set_type(host, VFS[0], WHOLE)
    host.unplug(1)
    assert type_of(host, VFS[0]) == WHOLE
    assert host.manager.store.leases() == ()


@pytest.mark.parametrize("how", ["deleted and made", "rebooted"])
def test_a_guest_does_not_get_the_vgpu_of_another_type(host, how):
    """Another tool has made it, perhaps before os_acc started in this boot."""
    host.plug(1, VFS[0])
    if how == "rebooted":
        host.kernel.reboot()
    else:
        set_type(host, VFS[0], 0)
    set_type(host, VFS[0], WHOLE)
    host.restart()
    before = host.kernel.snapshot()
    for _ in range(2):
        with pytest.raises(exception.DeviceInUse) as caught:
            host.manager.plug(instance(1), None, None)
        assert caught.value.message == (
            f"{VFS[0]} is a vGPU of type {WHOLE}, and its guest needs one of type "
            f"{HALF}"
        )
        assert "current_vgpu_type" in caught.value.hint
    assert host.kernel.snapshot() == before
    assert host.lease_state() is LeaseState.HELD

    set_type(host, VFS[0], 0)
    host.manager.plug(instance(1), None, None)
    assert type_of(host, VFS[0]) == HALF
    host.unplug(1)
    assert type_of(host, VFS[0]) == 0


def reserved(host: TestHost) -> set[str]:
    """Return the VFs that no guest can get."""
    return {
        str(handle.address)
        for each in host.manager.discover().providers.values()
        for handle in each.device.handles
        if handle.fault
    }


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[TestHost]:
    """Return a host whose guests 1 and 2 have half of the card each.

    Another VF is tagged with a type that needs the whole card.
    """
    named = [*tagged(*VFS[:2]), *tagged(VFS[3], kind=WHOLE)]
    spec = HostSpec((hosts.vgpu_card(BUS),))
    with TestHost(tmp_path, spec, device_spec=named) as host:
        host.plug(1, VFS[0])
        host.plug(2, VFS[1])
        yield host


@pytest.mark.parametrize("how", ["reboot", "deleted"])
def test_vfs_of_other_types_are_reserved_until_held_vgpus_exist(mixed, how):
    """Else a new guest gets the capacity, and the held guests find none."""
    if how == "reboot":
        mixed.kernel.reboot()
    else:
        for each in VFS[:2]:
            set_type(mixed, each, 0)
    mixed.restart()

    for number in (1, 2):
        assert reserved(mixed) == {VFS[3]}
        with pytest.raises(exception.NoDeviceAvailable, match="no capacity left"):
            mixed.plug(3, VFS[3])
        mixed.manager.plug(instance(number), None, None)
    assert [type_of(mixed, each) for each in VFS] == [HALF, HALF, 0, 0]
    for number in (1, 2):
        mixed.unplug(number)
    assert reserved(mixed) == set()
    mixed.plug(3, VFS[3])
    assert type_of(mixed, VFS[3]) == WHOLE


def test_vfs_of_other_types_are_free_once_the_held_guests_are_deleted(mixed):
    mixed.kernel.reboot()
    mixed.restart()
    mixed.unplug(1)
    assert reserved(mixed) == {VFS[3]}
    mixed.unplug(2)
    assert reserved(mixed) == set()
    mixed.plug(3, VFS[3])
    assert type_of(mixed, VFS[3]) == WHOLE


def test_the_vgpu_of_another_type_on_a_leased_vf_frees_no_capacity(host):
    """The guest gets its own once the other tool has deleted that."""
    named = [*tagged(VFS[0]), *tagged(VFS[3], kind=SMALL)]
    host.restart(device_spec=named)
    host.plug(1, VFS[0])
    host.kernel.reboot()
    set_type(host, VFS[0], SMALL)
    host.restart(device_spec=named)
    assert reserved(host) == {VFS[3]}


def test_a_plug_that_has_not_ended_reserves_no_vf_of_another_type(mixed, monkeypatch):
    for number in (1, 2):
        mixed.unplug(number)
    prepare, found = NvidiaPlugin.prepare, []

    def and_look(*arguments: Any) -> None:
        found.append(reserved(mixed))
        prepare(*arguments)

    monkeypatch.setattr(NvidiaPlugin, "prepare", and_look)
    mixed.plug(1, VFS[0])
    assert found == [set()]
    assert reserved(mixed) == {VFS[3]}


def test_a_leased_vf_that_cannot_be_read_fails_no_scan(mixed):
    mixed.kernel.reboot()
    path = Path(mixed.root, "sys/bus/pci/devices", VFS[0], CURRENT)
    path.unlink()
    # O_NOFOLLOW: reading a link is refused.
    path.symlink_to("creatable_vgpu_types")
    mixed.restart()
    assert reserved(mixed) >= {VFS[3]}
    assert mixed.manager.host_info()["set_aside"] == []
