# SPDX-License-Identifier: Apache-2.0

"""A slot that loses power: the kernel lists the device as before, and it is silent."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.behaviour")

import os_acc  # noqa: E402
from os_acc import exception, service  # noqa: E402
from os_acc.host import health  # noqa: E402
from os_acc.testing.nova import request  # noqa: E402
from tests.behaviour.ordinary_user import OrdinaryProcess  # noqa: E402
from tests.behaviour.real_host import RealHost  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402
from tests.expected_errors import has  # noqa: E402

from .accounts import OrdinaryUser  # noqa: E402
from .machine import Machine  # noqa: E402

NO_ANSWER = has(reason=exception.StepReason.NO_ANSWER)
NOT_FREE = has(reason=exception.NoDeviceReason.NOT_FREE)


def plug(guest: dict[str, str]) -> None:
    (provider,) = service.get().providers()
    selected, specs = request(provider)
    os_acc.plug(guest, selected, specs)


def fault() -> str:
    """Return the fault of the slot's device after two further readings."""
    manager = service.get()
    for _ in range(2):
        manager.refresh()
    (provider,) = manager.providers()
    (handle,) = provider.device.handles
    return handle.fault


def vendor(slot: str) -> bytes:
    return Path("/sys/bus/pci/devices", slot, "config").read_bytes()[:2]


def a_slot_without_power_serves_no_guest(host: RealHost) -> None:
    slot = host.places.slot
    guest = {"uuid": str(uuid.uuid4()), "name": "guest"}
    host.start({"address": slot})
    assert fault() == ""
    before, state = host.binding(slot), host.snapshot()
    answer = vendor(slot)
    host.root_side.set_power(False)
    assert vendor(slot) == b"\xff\xff"
    assert host.binding(slot) == before, "sysfs has the device as before"

    with pytest.raises(exception.HostStepFailed, check=NO_ANSWER):
        plug(guest)
    assert host.snapshot() == state
    assert service.get().store.leases() == ()
    assert health.SILENT in fault()
    with pytest.raises(exception.NoDeviceAvailable, check=NOT_FREE):
        plug(guest)

    host.root_side.set_power(True)
    assert vendor(slot) == answer
    assert fault() == ""
    plug(guest)
    # A function that no process holds may sleep, and is not woken.
    host.hold(slot)
    host.root_side.set_power(False)
    assert health.SILENT in fault()
    host.root_side.set_power(True)
    host.let_go()
    assert os_acc.unplug(guest) == 1
    assert host.binding(slot) == before
    # Without power it has lost the addresses of its memory.
    host.pull_out()
    host.put_in()


def test_as_an_ordinary_user(
    the_machine: Machine, ordinary_user: OrdinaryUser, vm_user: OrdinaryUser
) -> None:
    job = a_slot_without_power_serves_no_guest
    process = OrdinaryProcess(ordinary_user, RootSide(the_machine, vm_user), [job])
    try:
        process.run(job)
    finally:
        process.close()
