# SPDX-License-Identifier: Apache-2.0

"""A guest moves with a mediated device of mtty, between two nodes of this host.

Each node has a state directory of its own. mtty has migration since Linux 6.7, and
QEMU 10 moves its guests: the mark ``kernel`` names the kernel of that machine.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

pytest.register_assert_rewrite("tests.behaviour")

import os_acc  # noqa: E402
from os_acc import service  # noqa: E402
from os_acc.host import mdev  # noqa: E402
from os_acc.testing import request as request_groups  # noqa: E402
from tests import run_figures  # noqa: E402
from tests.behaviour import library  # noqa: E402
from tests.behaviour.ordinary_user import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.real_host import RealHost  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402
from tests.behaviour.scenarios.common import instance, vfs  # noqa: E402

from . import samples  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .kernel_modules import MTTY  # noqa: E402
from .machine import Machine  # noqa: E402

_T = TypeVar("_T")

pytestmark = pytest.mark.kernel("iommufd", "backports")

ONE, TWO = "mtty/mtty-1", "mtty/mtty-2"
PORTS = {"mdev_parent": MTTY, "mdev_types": "mtty-1, mtty-2"}


def two_nodes(host: RealHost, spec: dict[str, Any]) -> tuple[os_acc.Node, os_acc.Node]:
    """Return the nodes at both ends of a move; both offer the same devices."""
    host.start(spec)
    state = f"{host.options.state_path}-target"
    target = dataclasses.replace(host.options, state_path=state)
    return os_acc.initialize(), library.another_node(target, "target")


def groups(node: os_acc.Node, *devices: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the selection and the extra specs for devices, a request group each.

    :param devices: how the addresses of the devices begin.
    """
    providers = service.nodes.service(node.name).current().providers()
    return request_groups(
        *(
            one
            for each in devices
            for one in providers
            if str(one.device.handles[0].address).startswith(each)
        )
    )


def mediated() -> set[str]:
    """Return the UUIDs of the mediated devices of the host."""
    return {each.uuid for each in mdev.read_mdevs("/")}


class Timeline:
    """What has happened, with the times in seconds since 1970."""

    def __init__(self) -> None:
        self.events: list[tuple[float, float, str]] = []

    def call(self, name: str, function: Callable[..., _T], *args: Any) -> _T:
        """Make a call of os_acc, and record its begin and its end."""
        begin = time.time()
        value = function(*args)
        self.events.append((begin, time.time(), name))
        return value

    def order(self) -> list[str]:
        return [name for _, _, name in sorted(self.events)]

    def within(self, begin: float, end: float) -> float:
        """Return how many of these seconds calls have taken."""
        return sum(max(0.0, min(to, end) - max(at, begin)) for at, to, _ in self.events)


def a_guest_moves_with_its_registers(host: RealHost) -> dict[str, int]:
    """The steps are those of :mod:`os_acc.nova.live_migration`, in its order.

    os_acc does nothing from the end of the guest at the source to its start at the
    target: the order of the events shows it.

    mtty predicts exactly the bytes of its state, and QEMU sends no other ones.
    """
    source, target = two_nodes(host, PORTS)
    guest, line = instance(), Timeline()
    plug = guest, *groups(source, ONE)
    (entry,) = line.call("plug at the source", source.plug, *plug)
    host.root_side.hold_movable(entry["attach_handle_uuid"])

    devices = line.call("check of the source", source.migration_source, guest)
    assert [each["reason"] for each in devices] == [""]
    plug = guest, *groups(target, ONE)
    (arrived,) = line.call("plug at the target", target.plug, *plug)
    pairs = line.call("pairs", target.migration_pairs, guest, devices)
    assert pairs == {entry["attach_handle_uuid"]: arrived["attach_handle_uuid"]}
    assert line.call("preparation", target.plug, guest) == [arrived]
    assert mediated() == {*pairs, *pairs.values()}

    moved = host.root_side.move_to(arrived["attach_handle_uuid"])
    assert line.call("release", source.unplug, guest) == 1
    assert source.attached() == {}
    assert target.attached() == {guest["uuid"]: [arrived]}
    assert mediated() == {*pairs.values()}

    share = line.within(moved.stopped, moved.resumed)
    line.events.append((moved.stopped, moved.resumed, "downtime"))
    assert line.order() == [
        *("plug at the source", "check of the source", "plug at the target"),
        *("pairs", "preparation", "downtime", "release"),
    ]
    assert share == 0
    assert devices[0]["state_size"] == moved.transferred
    figures = {
        "us of downtime of a guest that moves": moved.resumed - moved.stopped,
        "us of it in calls of os_acc": share,
    }
    record = {name: round(1e6 * each) for name, each in figures.items()}
    record["bytes of state predicted"] = devices[0]["state_size"]
    record["bytes of state sent by QEMU"] = moved.transferred

    host.let_go()
    assert target.unplug(guest) == 1
    assert mediated() == set()
    return record


def libvirt_moves_a_guest_with_its_registers(host: RealHost) -> None:
    """libvirt accepts the devices as a guest of Nova has them, and their pairs."""
    source, target = two_nodes(host, PORTS)
    guest = instance()
    host.root_side.hold_by_libvirt(source.plug(guest, *groups(source, ONE)))
    devices = source.migration_source(guest)
    target.plug(guest, *groups(target, ONE))
    host.root_side.migrate_by_libvirt(target.migration_pairs(guest, devices))
    assert source.unplug(guest) == 1
    host.let_go()
    assert target.unplug(guest) == 1


def the_predicted_size_is_that_of_the_state(host: RealHost) -> None:
    """mtty estimates the size of its whole state, which is larger for two ports."""
    node, _ = two_nodes(host, PORTS)
    guest = instance()
    node.plug(guest, *groups(node, ONE, TWO))
    devices = node.migration_source(guest)
    sizes = []
    for each in devices:
        predicted, state = host.root_side.save(each["address"])
        assert each["state_size"] == predicted == len(state)
        sizes.append(predicted)
    assert 0 < sizes[0] < sizes[1]
    node.unplug(guest)


def a_function_on_vfio_pci_is_refused(host: RealHost) -> None:
    """The kernel itself has no migration for it, and nothing changes at either end."""
    source, target = two_nodes(host, vfs(host))
    guest = instance()
    (entry,) = source.plug(guest, *groups(source, host.vfs()[0]))
    before = host.snapshot(), source.attached(), target.attached()
    (device,) = source.migration_source(guest)
    assert device["address"] == entry["pci_id"]
    assert device["reason"] == "is on vfio-pci, which cannot migrate a device"
    assert (host.snapshot(), source.attached(), target.attached()) == before
    assert host.root_side.save(entry["pci_id"]) == (0, b"")
    assert source.unplug(guest) == 1


JOBS: tuple[Job, ...] = (
    a_guest_moves_with_its_registers,
    libvirt_moves_a_guest_with_its_registers,
    the_predicted_size_is_that_of_the_state,
    a_function_on_vfio_pci_is_refused,
)


@pytest.fixture(scope="module")
def process(
    the_machine: Machine, ordinary_user: OrdinaryUser, vm_user: OrdinaryUser
) -> Iterator[OrdinaryProcess]:
    root_side = RootSide(the_machine, vm_user)
    with samples.loaded():
        process = OrdinaryProcess(ordinary_user, root_side, JOBS)
        yield process
        process.close()


@pytest.mark.parametrize("job", JOBS, ids=lambda each: each.__name__)
def test_the_move(
    process: OrdinaryProcess, job: Job, request: pytest.FixtureRequest
) -> None:
    for name, number in process.run(job).items():
        run_figures.note(request.node, name, number)
