# SPDX-License-Identifier: Apache-2.0

"""Mediated devices of the kernel's own sample parent, samples/vfio-mdev/mtty.c."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.behaviour")

import os_acc  # noqa: E402
from os_acc import exception, service  # noqa: E402
from os_acc.host import mdev  # noqa: E402
from os_acc.objects.device import Provider  # noqa: E402
from tests.behaviour.ordinary_user import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.real_host import RealHost  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402
from tests.behaviour.scenarios.common import flavor, instance, unplug  # noqa: E402

from . import kernel_modules  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .machine import Machine  # noqa: E402

#: The sample has 24 ports, and types of one and of two.
SPEC = {"mdev_parent": "mtty", "mdev_types": "mtty-1, mtty-2"}
TYPES = "sys/class/mdev_bus/mtty/mdev_supported_types"


def provider(kind: str) -> Provider:
    """Return the provider of a type, after a scan."""
    service.get().discover()
    found = (each for each in service.get().providers())
    (one,) = (each for each in found if str(each.device.address) == f"mtty/{kind}")
    return one


def free(kind: str) -> int:
    """Return how many units of a type a guest could get."""
    taken = service.get().store.recorded_state().taken
    handles = provider(kind).device.handles
    return sum(not each.fault and each.address not in taken for each in handles)


def plug(guest: dict[str, str], kind: str, amount: int = 1) -> list[dict[str, Any]]:
    """Plug units of a type."""
    one = provider(kind)
    return os_acc.plug(guest, {"uuid": one.uuid}, flavor(one, amount))


def existing() -> dict[str, str]:
    """Return the type of each mediated device of the host, by UUID."""
    return {each.uuid: str(each.type) for each in mdev.read_mdevs("/")}


def a_mediated_device_exists_while_it_is_leased(host: RealHost) -> None:
    host.start(SPEC)
    one, two = instance(), instance()
    (of_one,) = plug(one, "mtty-1")
    (of_two,) = plug(two, "mtty-2")
    assert existing() == {
        of_one["attach_handle_uuid"]: "mtty/mtty-1",
        of_two["attach_handle_uuid"]: "mtty/mtty-2",
    }
    for uuid_of in existing():
        created = mdev.read_mdev("/", uuid_of)
        assert created is not None
        assert os.path.exists(f"/dev/vfio/{created.iommu_group}")
    # Three of the 24 ports are in use.
    assert [free("mtty-1"), free("mtty-2")] == [21, 10]
    assert (unplug(one), unplug(two)) == (1, 1)
    assert existing() == {}
    assert [free("mtty-1"), free("mtty-2")] == [24, 12]


def the_last_port_is_leased_once(host: RealHost) -> None:
    host.start(SPEC)
    guest = instance()
    assert len(plug(guest, "mtty-2", 12)) == 12
    with pytest.raises(exception.NoDeviceAvailable):
        plug(instance(), "mtty-1")
    assert unplug(guest) == 12
    assert existing() == {}


def a_mediated_device_of_another_tool_stays(host: RealHost) -> None:
    host.start(SPEC)
    stranger = str(uuid.uuid4())
    host.store(f"{TYPES}/mtty-2/create", stranger)
    try:
        assert [free("mtty-1"), free("mtty-2")] == [22, 11]
        guest = instance()
        plug(guest, "mtty-2", 11)
        with pytest.raises(exception.NoDeviceAvailable):
            plug(instance(), "mtty-2")
        assert unplug(guest) == 11
        assert existing() == {stranger: "mtty/mtty-2"}
    finally:
        host.store(f"sys/bus/mdev/devices/{stranger}/remove", "1")


def it_is_created_again_if_it_vanishes(host: RealHost) -> None:
    host.start(SPEC)
    guest = instance()
    one = provider("mtty-1")
    request = ({"uuid": one.uuid}, flavor(one))
    (before,) = os_acc.plug(guest, *request)
    host.store(f"sys/bus/mdev/devices/{before['attach_handle_uuid']}/remove", "1")
    assert existing() == {}
    (after,) = os_acc.plug(guest, *request)
    assert after == before
    assert existing() == {before["attach_handle_uuid"]: "mtty/mtty-1"}
    assert unplug(guest) == 1


JOBS: tuple[Job, ...] = (
    a_mediated_device_exists_while_it_is_leased,
    the_last_port_is_leased_once,
    a_mediated_device_of_another_tool_stays,
    it_is_created_again_if_it_vanishes,
)


@contextlib.contextmanager
def _mtty() -> Iterator[None]:
    # vfio is loaded; the sample needs the bus of mediated devices.
    subprocess.run(["modprobe", "--all", "mdev", "vfio_iommu_type1"], check=True)
    module = kernel_modules.module(kernel_modules.MTTY, os.uname().release)
    subprocess.run(["insmod", module], check=True)
    yield
    subprocess.run(["rmmod", kernel_modules.MTTY], check=True)


@pytest.fixture(scope="module")
def process(
    the_machine: Machine, ordinary_user: OrdinaryUser, vm_user: OrdinaryUser
) -> Iterator[OrdinaryProcess]:
    with _mtty():
        process = OrdinaryProcess(ordinary_user, RootSide(the_machine, vm_user), JOBS)
        yield process
        process.close()


@pytest.mark.parametrize("job", JOBS, ids=lambda each: each.__name__)
def test_mediated_devices(process: OrdinaryProcess, job: Job) -> None:
    process.run(job)
