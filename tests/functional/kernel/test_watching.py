# SPDX-License-Identifier: Apache-2.0

"""The monitor publishes the changes that the kernel reports of its devices.

The tests never request a scan: without the monitor no inventory would change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

pytest.register_assert_rewrite("tests.behaviour")

import os_acc  # noqa: E402
from os_acc import service  # noqa: E402
from os_acc.host import pci  # noqa: E402
from os_acc.host.uevents import Uevent  # noqa: E402
from os_acc.inventory import snapshots  # noqa: E402
from os_acc.objects.pci import PciAddress  # noqa: E402
from os_acc.testing.nova import FakeProviderTree  # noqa: E402
from tests.behaviour.ordinary_user import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.real_host import RealHost  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402
from tests.behaviour.scenarios.common import pf  # noqa: E402

from .accounts import OrdinaryUser  # noqa: E402
from .machine import Machine  # noqa: E402

NODE, NODE_UUID = "node1", "10000000-9999-4999-8999-999999999999"


def published_units() -> dict[str, tuple[int, int]]:
    """Return (total, reserved) of each of our providers, as published to Nova."""
    tree = FakeProviderTree()
    tree.new_root(NODE, NODE_UUID)
    os_acc.update_provider_tree(tree, NODE)
    found = {}
    for uuid in tree.get_provider_uuids():
        for record in tree.data(uuid).inventory.values():
            found[tree.data(uuid).name] = (record["total"], record["reserved"])
    return found


def start(host: RealHost, *claims: dict[str, object]) -> None:
    # No snapshot expires by its age.
    snapshots.MAX_AGE = 86_400.0
    host.start(*claims)


def a_device_that_is_pulled_out_and_put_in_is_told(host: RealHost) -> None:
    start(host, {"address": host.places.slot})
    ((name, before),) = published_units().items()
    assert before == (1, 0)
    host.pull_out()
    host.wait_until(lambda: not published_units())
    host.put_in()
    host.wait_until(lambda: published_units() == {name: (1, 0)})


def a_number_of_vfs_that_changes_is_told(host: RealHost) -> None:
    card = host.places.pf.rsplit(".", 1)[0] + ".*"
    start(host, {**pf(host), "address": card})
    ((name, before),) = published_units().items()
    assert before == (1, 0), "the PF itself, while it has no VFs"
    host.make_vfs(4)
    host.wait_until(lambda: (4, 0) in published_units().values())
    host.make_vfs(0)
    host.wait_until(lambda: published_units() == {name: (1, 0)})


def a_driver_that_changes_is_told(host: RealHost) -> None:
    single = host.places.single
    start(host, {"address": single})
    assert published_units()
    # Bound to VFIO and not leased: it may be in use.
    host.bind(single, "vfio-pci")
    host.wait_until(lambda: not published_units())
    host.bind(single, None)
    host.wait_until(lambda: (1, 0) in published_units().values())


def a_pcie_error_and_its_recovery_are_heard(host: RealHost) -> None:
    start(host, pf(host))
    heard: list[tuple[str, str]] = []
    watcher = service.nodes.default().monitor
    assert watcher is not None
    note = watcher._health.note

    def listen(event: Uevent) -> None:
        if event.recovery is not None:
            heard.append((str(event.address), event.recovery.value))
        note(event)

    watcher._health.note = listen
    host.root_side.pcie_error()
    host.wait_until(lambda: (host.places.pf, "SUCCESSFUL_RECOVERY") in heard)
    assert (host.places.pf, "BEGIN_RECOVERY") in heard
    host.wait_until(lambda: (1, 0) in published_units().values())


def types_of_mediated_devices_that_come_and_go_are_told(host: RealHost) -> None:
    # The kernel reports them as a change of their parent function
    # (mdev_register_parent()), and here it is made to send this event. No driver in
    # this
    # machine offers any; a stand-in replaces the driver's offer.
    single, offered = host.places.single, set[str]()
    read = pci.mdev_types

    def types(root: str, address: PciAddress) -> frozenset[str]:
        return frozenset(offered) if str(address) == single else read(root, address)

    def send_event() -> None:
        host.store(f"sys/bus/pci/devices/{single}/uevent", "change")

    start(host, {"address": single})
    # As with Nova's option [devices] enabled_mdev_types.
    catalog = service.get().catalog
    catalog._rules = dataclasses.replace(
        catalog._rules, nova_mdev_types=frozenset({"t-1"})
    )
    ((name, before),) = published_units().items()
    assert before == (1, 0)
    pci.mdev_types = types
    try:
        offered.add("t-1")
        send_event()
        host.wait_until(lambda: not published_units())
        offered.clear()
        send_event()
        host.wait_until(lambda: published_units() == {name: (1, 0)})
    finally:
        pci.mdev_types = read


JOBS: tuple[Job, ...] = (
    a_device_that_is_pulled_out_and_put_in_is_told,
    a_number_of_vfs_that_changes_is_told,
    a_driver_that_changes_is_told,
    a_pcie_error_and_its_recovery_are_heard,
    types_of_mediated_devices_that_come_and_go_are_told,
)


@pytest.fixture(scope="module")
def process(
    the_machine: Machine, ordinary_user: OrdinaryUser, vm_user: OrdinaryUser
) -> Iterator[OrdinaryProcess]:
    process = OrdinaryProcess(ordinary_user, RootSide(the_machine, vm_user), JOBS)
    yield process
    process.close()


@pytest.mark.parametrize("job", JOBS, ids=lambda each: each.__name__)
def test_what_the_kernel_says(
    process: OrdinaryProcess, job: Callable[[RealHost], None]
) -> None:
    process.run(job)
