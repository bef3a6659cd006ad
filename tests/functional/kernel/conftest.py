# SPDX-License-Identifier: Apache-2.0

"""Fixtures of the tests on the real kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from . import dfl, inside, kernels, lane, machine, nvme, nvme_media, sysfs
from .accounts import OrdinaryUser
from .dfl_card import Card
from .guest import InnerGuest
from .machine import Machine

_OPTION = "--of-kernel"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the machine's kernel."""
    parser.addoption(_OPTION, help="select the tests of this kernel; see kernels.py")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks."""
    config.addinivalue_line(
        "markers", "kernel(name): only the machine of this kernel has the device"
    )
    config.addinivalue_line(
        "markers", "family(name): shows this family of the manual on the real kernel"
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselect the tests that another kernel runs."""
    name = config.getoption(_OPTION)
    if name is None:
        return
    others = [item for item in items if not kernels.runs(item, name)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def the_machine() -> Machine:
    """Return the inventory of the test devices."""
    return machine.find()


@pytest.fixture(scope="session")
def ordinary_user() -> OrdinaryUser:
    """Return the unprivileged account of Nova, which may use sudo."""
    return OrdinaryUser.named(inside.COMPUTE[0])


@pytest.fixture(scope="session")
def vm_user() -> OrdinaryUser:
    """Return the unprivileged account of QEMU, which may not use sudo."""
    return OrdinaryUser.named(inside.VM[0])


@pytest.fixture
def inner_guest(vm_user: OrdinaryUser) -> Iterator[Callable[..., InnerGuest]]:
    """Yield ``inner_guest(bdf, ...)``, which starts a guest with these functions."""
    with ExitStack() as guests:

        def start(*bdfs: str) -> InnerGuest:
            guest = InnerGuest(vm_user, bdfs)
            guests.callback(guest.close)
            return guest

        yield start


@pytest.fixture
def idle_vfs(the_machine: Machine) -> Iterator[tuple[str, ...]]:
    """Yield four VFs of :attr:`.Machine.pf_node1`, bound to no driver."""
    pf = the_machine.pf_node1
    # With autoprobe, nvme binds each offline VF and releases it half a second later.
    sysfs.write(pf, "sriov_drivers_autoprobe", "0")
    sysfs.write(pf, "sriov_numvfs", "4")
    yield sysfs.virtual_functions(pf)
    sysfs.write(pf, "sriov_numvfs", "0")
    sysfs.write(pf, "sriov_drivers_autoprobe", "1")


@pytest.fixture(scope="session")
def vf_drive() -> Iterator[tuple[str, ...]]:
    """Yield a PF and its two VFs, online, each with a namespace of its own."""
    pf = machine.behind(lane.PORT_VF_DRIVE)
    sysfs.write(pf, "sriov_drivers_autoprobe", "0")
    sysfs.write(pf, "sriov_numvfs", "2")
    nvme.bring_online(pf)
    vfs = sysfs.virtual_functions(pf)
    # The secondary controllers of this emulated controller follow its own number.
    nvme.attach(pf, 2, 1)
    nvme.attach(pf, 3, 2)
    nvme_media.write_data(nvme_media.node_of(pf, 1))
    for vf, nsid in zip(vfs, (2, 3), strict=True):
        nvme_media.fill(vf, nsid)
    yield pf, *vfs
    sysfs.write(pf, "sriov_numvfs", "0")
    sysfs.write(pf, "sriov_drivers_autoprobe", "1")


@pytest.fixture(scope="session")
def fpga_cards(the_machine: Machine) -> Iterator[tuple[Card, Card]]:
    """Yield a card with one port and one with two, both on the kernel's DFL driver."""
    cards = (
        Card(the_machine.fpga, dfl.INTERFACE),
        Card(the_machine.plain_fpga, dfl.OTHER_INTERFACE, ports=2),
    )
    dfl.load()
    yield cards
    for card in cards:
        card.close()


@pytest.fixture
def fpga(fpga_cards: tuple[Card, Card]) -> Card:
    """Return the card with one port, just powered on and bound to the driver."""
    dfl.power_on(fpga_cards[0])
    return fpga_cards[0]


@pytest.fixture
def fpga_of_two(fpga_cards: tuple[Card, Card]) -> Card:
    """Return the card with two ports, just powered on and bound to the driver."""
    dfl.power_on(fpga_cards[1])
    return fpga_cards[1]
