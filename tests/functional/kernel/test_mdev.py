# SPDX-License-Identifier: Apache-2.0

"""Mediated devices of the kernel's own sample parents, from a plug to a guest and back.

samples/vfio-mdev/mtty.c: its driver counts 24 ports, which a type of one and a type of
two share. samples/vfio-mdev/mdpy.c: the core counts four mediated devices of any type.
"""

from __future__ import annotations

import errno
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
from os_acc.inventory import snapshots  # noqa: E402
from os_acc.objects.device import Provider  # noqa: E402
from os_acc.objects.migration import TRAIT  # noqa: E402
from os_acc.testing import request  # noqa: E402
from tests.behaviour.ordinary_user import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.real_host import RealHost  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402
from tests.behaviour.scenarios.common import flavor, instance, unplug  # noqa: E402

from . import samples  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .kernel_modules import MDPY, MTTY  # noqa: E402
from .machine import Machine  # noqa: E402

pytestmark = pytest.mark.family("Mediated device")

PORTS = {"mdev_parent": MTTY, "mdev_types": "mtty-1, mtty-2"}
DISPLAYS = {"mdev_parent": MDPY, "mdev_types": "mdpy-vga, mdpy-xga, mdpy-hd"}
#: The commits and changes of one plug and one unplug: intent, creation, commit;
#: release, removal, deletion.
STEPS = 6
#: The number of them after which the plug holds.
COMMITTED = 3


def types(parent: str) -> str:
    """Return the directory of a parent's types."""
    return f"sys/class/mdev_bus/{parent}/mdev_supported_types"


def provider(kind: str) -> Provider:
    """Return the provider of a type, after a scan."""
    service.get().discover()
    found = (each for each in service.get().providers())
    (one,) = (each for each in found if str(each.device.address) == kind)
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


def of_entry(entry: dict[str, Any]) -> str:
    """Return the UUID of an accelerator's mediated device."""
    assert entry["attach_handle_type"] == "MDEV"
    assert "pci_id" not in entry
    found: str = entry["attach_handle_uuid"]
    return found


def types_of_both_parents_reach_a_guest_and_return(host: RealHost) -> None:
    host.start(PORTS, DISPLAYS)
    guest, kinds = instance(), ("mtty/mtty-1", "mtty/mtty-2", "mdpy/mdpy-vga")
    selected, specs = request(*(provider(kind) for kind in kinds))
    entries = os_acc.plug(guest, selected, specs)
    uuids = {of_entry(entry) for entry in entries}
    assert sorted(existing().values()) == sorted(kinds)
    assert set(existing()) == uuids
    # Three of the 24 ports are in use, and one of the four displays.
    assert [free(kind) for kind in kinds] == [21, 10, 3]

    assert set(host.root_side.hold_as_defined(entries)) == uuids
    assert host.root_side.attached() == uuids

    host.let_go()
    assert unplug(guest) == len(kinds)
    assert existing() == {}
    assert [free(kind) for kind in kinds] == [24, 12, 4]


def the_last_unit_is_leased_once(host: RealHost) -> None:
    host.start(PORTS, DISPLAYS)
    guest = instance()
    assert len(plug(guest, "mtty/mtty-2", 12)) == 12
    plug(instance(), "mdpy/mdpy-xga", 4)
    for kind in ("mtty/mtty-1", "mdpy/mdpy-hd"):
        assert free(kind) == 0
        with pytest.raises(exception.NoDeviceAvailable):
            plug(instance(), kind)
    for parent, kind, expected in (
        # The driver's own probe refuses the one, the core the other.
        (MTTY, "mtty-1", errno.ENOSPC),
        (MDPY, "mdpy-hd", errno.EUSERS),
    ):
        with pytest.raises(OSError, match=os.strerror(expected)):
            host.store(f"{types(parent)}/{kind}/create", str(uuid.uuid4()))
    for consumer in os_acc.attached():
        unplug({"uuid": consumer})
    assert existing() == {}


def a_mediated_device_of_another_tool_stays(host: RealHost) -> None:
    host.start(PORTS)
    stranger = str(uuid.uuid4())
    host.store(f"{types(MTTY)}/mtty-2/create", stranger)
    try:
        assert [free("mtty/mtty-1"), free("mtty/mtty-2")] == [22, 11]
        guest = instance()
        plug(guest, "mtty/mtty-2", 11)
        with pytest.raises(exception.NoDeviceAvailable):
            plug(instance(), "mtty/mtty-2")
        assert unplug(guest) == 11
        assert existing() == {stranger: "mtty/mtty-2"}
    finally:
        host.store(f"sys/bus/mdev/devices/{stranger}/remove", "1")


def it_is_created_again_if_it_vanishes(host: RealHost) -> None:
    host.start(PORTS)
    guest = instance()
    one = provider("mtty/mtty-1")
    selection = ({"uuid": one.uuid}, flavor(one))
    (before,) = os_acc.plug(guest, *selection)
    host.store(f"sys/bus/mdev/devices/{of_entry(before)}/remove", "1")
    assert existing() == {}
    (after,) = os_acc.plug(guest, *selection)
    assert after == before
    assert existing() == {of_entry(before): "mtty/mtty-1"}
    assert unplug(guest) == 1


def a_held_one_is_not_removed_nor_its_parent_unloaded(host: RealHost) -> None:
    host.start(PORTS)
    guest = instance()
    (entry,) = plug(guest, "mtty/mtty-2")
    host.root_side.hold(of_entry(entry))
    with pytest.raises(exception.DevicesUnreleased, match="qemu-system"):
        unplug(guest)
    with pytest.raises(subprocess.CalledProcessError):
        host.root_side.load(MTTY, False)
    assert host.root_side.attached() == set(existing()) == {of_entry(entry)}
    host.let_go()
    assert unplug(guest) == 1
    assert existing() == {}


def vfio_says_whether_the_device_can_be_migrated(host: RealHost) -> None:
    """mtty has migration since Linux 6.7; mdpy has none."""
    host.start(PORTS, DISPLAYS)
    is_new = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 7)
    for kind, flags in (("mtty/mtty-1", 7 if is_new else 0), ("mdpy/mdpy-vga", 0)):
        guest = instance()
        plug(guest, kind)
        unplug(guest)
        one = provider(kind)
        found = service.get().discover().migrations[one.uuid]
        assert found is not None
        assert found.flags == flags
        assert (found.size > 0) is bool(flags)
        assert (TRAIT in one.device.traits) is bool(flags)


def published() -> set[str]:
    """Return the types in the newest snapshot; no scan is requested."""
    return {
        str(each.provider.device.address)
        for each in service.get().catalog.snapshots.newest()
        if each.provider is not None
    }


def a_reloaded_parent_is_noticed_and_serves_its_leases(host: RealHost) -> None:
    # No snapshot expires by its age.
    snapshots.MAX_AGE = 86_400.0
    host.start(PORTS)
    kept, left = instance(), instance()
    (before,) = plug(kept, "mtty/mtty-1")
    plug(left, "mtty/mtty-2")
    assert published() == {"mtty/mtty-1", "mtty/mtty-2"}

    host.root_side.load(MTTY, False)
    try:
        assert existing() == {}
        host.wait_until(lambda: not published())
        assert unplug(left) == 1
    finally:
        host.root_side.load(MTTY, True)
    host.wait_until(lambda: len(published()) == 2)

    (after,) = os_acc.plug(kept, None, None)
    assert after == before
    assert existing() == {of_entry(before): "mtty/mtty-1"}
    host.root_side.hold(of_entry(before))
    assert host.root_side.attached() == {of_entry(before)}
    host.let_go()
    assert unplug(kept) == 1
    assert [free("mtty/mtty-1"), free("mtty/mtty-2")] == [24, 12]


def killed_after(number: int) -> Job:
    """Return the job that kills a service after this many of its steps."""

    def job(host: RealHost) -> None:
        host.start(PORTS)
        guest, one = instance(), provider("mtty/mtty-2")
        victim = host.another_process(
            "plug",
            "unplug",
            instance=guest,
            provider=one.uuid,
            extra_specs=flavor(one),
            dies_at=str(number),
        )
        victim.wait_until_ready()
        victim.wait_until_killed()
        # It was created by the second step, and removed by the fifth.
        assert len(existing()) == (number in (2, 3, 4))
        host.again()
        is_held = number == COMMITTED
        assert [each[0]["state"] for each in os_acc.attached().values()] == (
            ["Bound"] if is_held else []
        )
        assert len(existing()) == is_held
        assert unplug(guest) == is_held
        assert existing() == {}
        assert [free("mtty/mtty-1"), free("mtty/mtty-2")] == [24, 12]

    job.__name__ = f"a_service_killed_after_step_{number}_leaves_no_mediated_device"
    return job


JOBS: tuple[Job, ...] = (
    types_of_both_parents_reach_a_guest_and_return,
    the_last_unit_is_leased_once,
    a_mediated_device_of_another_tool_stays,
    it_is_created_again_if_it_vanishes,
    a_held_one_is_not_removed_nor_its_parent_unloaded,
    vfio_says_whether_the_device_can_be_migrated,
    a_reloaded_parent_is_noticed_and_serves_its_leases,
    *(killed_after(number + 1) for number in range(STEPS)),
)


@pytest.fixture(scope="module")
def process(
    the_machine: Machine, ordinary_user: OrdinaryUser, vm_user: OrdinaryUser
) -> Iterator[OrdinaryProcess]:
    root_side = RootSide(the_machine, vm_user)
    with samples.loaded():
        process = OrdinaryProcess(ordinary_user, root_side, JOBS, spares=STEPS)
        yield process
        process.close()


@pytest.mark.parametrize("job", JOBS, ids=lambda each: each.__name__)
def test_mediated_devices(process: OrdinaryProcess, job: Job) -> None:
    process.run(job)
