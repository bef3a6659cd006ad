# SPDX-License-Identifier: Apache-2.0

"""Devices are removed and inserted while the library runs."""

from __future__ import annotations

import pytest

import os_acc
from os_acc import exception

from ..host import VFIO, Binding, HostUnderTest
from .common import (
    UNPLUG_TIMEOUT,
    devices,
    instance,
    offered,
    plug,
    scenario,
    unplug,
)


@scenario
def a_device_that_is_pulled_out_and_put_in_is_seen_at_once(
    host: HostUnderTest,
) -> None:
    slot = host.places.slot
    host.start({"address": slot})
    assert offered() == {slot}
    host.pull_out()
    assert offered() == set()
    host.put_in()
    guest = instance()
    assert devices(plug(guest)) == [slot]
    assert os_acc.unplug(guest) == 1
    assert host.binding(slot) == Binding(None)


@scenario
def a_leased_device_that_is_pulled_out_can_be_unplugged(host: HostUnderTest) -> None:
    slot = host.places.slot
    host.start({"address": slot})
    guest = instance()
    plug(guest)
    assert host.binding(slot) == VFIO
    host.pull_out()
    assert os_acc.attached(guest) != {}
    assert os_acc.unplug(guest) == 1
    assert os_acc.attached() == {}
    host.put_in()
    assert offered() == {slot}


@scenario
def a_device_that_is_pulled_out_while_it_is_held_names_the_holder(
    host: HostUnderTest,
) -> None:
    slot = host.places.slot
    host.start({"address": slot}, unplug_timeout=UNPLUG_TIMEOUT)
    guest = instance()
    plug(guest)
    host.hold(slot)
    host.begin_to_pull_out()
    host.wait_until(lambda: host.driver(slot) is None)
    with pytest.raises(exception.DevicesUnreleased) as left:
        unplug(guest)
    ((address, why),) = left.value.unreleased
    assert address == slot
    assert isinstance(why, exception.DeviceInUse), why
    ((pid, command),) = why.holders
    assert command == "qemu-system-x86"
    assert f"{command} (pid {pid})" in str(left.value)
    assert host.exists(slot)
    host.let_go()
    host.wait_until_pulled_out()
    assert os_acc.unplug(guest) == 1
    assert os_acc.attached() == {}
