# SPDX-License-Identifier: Apache-2.0

"""Devices that a process still holds stay unsettled."""

from __future__ import annotations

import pytest

import os_acc
from os_acc import exception

from ..host import VFIO, HostUnderTest
from .common import UNPLUG_TIMEOUT, devices, instance, plug, scenario, unplug, vfs


@scenario
def unplug_names_who_holds_the_device_and_serves_others(host: HostUnderTest) -> None:
    host.start(vfs(host), unplug_timeout=UNPLUG_TIMEOUT)
    before, guest, other = host.snapshot(), instance(), instance()
    held, free = devices(plug(guest, 2))
    host.hold(held)
    with pytest.raises(exception.DevicesUnreleased) as left:
        unplug(guest)
    assert left.value.released == (free,)
    ((address, reason),) = left.value.unreleased
    assert address == held
    assert isinstance(reason, exception.DeviceInUse)
    assert [name for _pid, name in reason.holders] == ["qemu-system-x86"]
    assert host.binding(held) == VFIO

    assert held not in devices(plug(other, 2))
    assert os_acc.unplug(other) == 2

    host.let_go()
    assert os_acc.unplug(guest) == 1
    assert host.snapshot() == before


@scenario
def a_device_in_use_is_released_when_the_service_starts_again(
    host: HostUnderTest,
) -> None:
    host.start(vfs(host))
    before, guest = host.snapshot(), instance()
    (held,) = devices(plug(guest))
    host.hold(held)
    with pytest.raises(exception.DevicesUnreleased):
        unplug(guest)
    host.again()
    assert host.binding(held) == VFIO
    host.let_go()
    host.again()
    assert os_acc.attached() == {}
    assert host.snapshot() == before


@scenario
def a_restart_leaves_the_devices_of_running_guests_alone(
    host: HostUnderTest,
) -> None:
    host.start(vfs(host))
    guest = instance()
    entries = plug(guest)
    (held,) = devices(entries)
    host.hold(held)
    before = host.snapshot()
    host.again()
    assert host.snapshot() == before
    assert plug(guest) == entries
    host.let_go()
    assert os_acc.unplug(guest) == 1


@scenario
def a_write_that_does_not_return_stops_nobody_else(host: HostUnderTest) -> None:
    """A guest starts after the last usage check, so that the unbind blocks."""
    host.start(
        vfs(host),
        write_timeout=host.short_timeout,
        unplug_timeout=UNPLUG_TIMEOUT,
    )
    before, guest, other = host.snapshot(), instance(), instance()
    (held,) = devices(plug(guest))
    host.hand_over(held)
    with (
        pytest.raises(exception.DevicesUnreleased) as left,
        host.once_found_free(lambda: host.hold(held)),
    ):
        unplug(guest)
    ((address, reason),) = left.value.unreleased
    assert address == held
    assert isinstance(reason, exception.DeviceStuck)

    assert held not in devices(plug(other))
    assert os_acc.unplug(other) == 1
    with pytest.raises(exception.DevicesUnreleased):
        unplug(guest)

    host.let_go()
    assert os_acc.unplug(guest) == 1
    assert host.snapshot() == before
