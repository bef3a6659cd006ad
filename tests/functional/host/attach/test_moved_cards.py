# SPDX-License-Identifier: Apache-2.0

"""Cards of one model that a reboot has moved, with the data of guests.

Only root may read ``serial_number`` of Linux 6.18
(Documentation/ABI/testing/sysfs-bus-pci). Other cards have no number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.helper.errors import DeviceClaimed
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, pci_functions
from os_acc.privsep.kernel import COPIES
from os_acc.testing import FunctionSpec, HostSpec, TestHost, hosts, instance
from tests.unit import acme

IDLE, FIRST, SECOND, FREE = SLOTS = [f"0000:{bus}:00.0" for bus in (40, 41, 42, 43)]


def numbered(address: str, number: int) -> FunctionSpec:
    """Return a card with a Device Serial Number."""
    text = f"00-00-0a-35-00-00-00-{number:02x}\n"
    card = hosts.fpga(address.removesuffix(":00.0"))
    return dataclasses.replace(card, attributes=(("serial_number", text),))


@pytest.fixture
def make_host(
    make_bench: Callable[..., TestHost], install_plugins: Callable[..., None]
) -> Callable[..., TestHost]:
    """Return a maker of a host with three cards that a vendor's plugin erases."""

    def make(*numbers: int) -> TestHost:
        install_plugins(acme="tests.unit.acme:Erases")
        host = make_bench(HostSpec(tuple(map(numbered, SLOTS, numbers))))
        restart(host)
        return host

    return make


def restart(host: TestHost) -> None:
    for path in Path(host.root, "sys/bus/pci/devices").glob("*/serial_number"):
        path.chmod(0o400)
    host.restart()


def move(host: TestHost) -> TestHost:
    """Let a reboot move the cards by one bus, two of them with data of guests."""
    for number, address in enumerate((FIRST, SECOND), 1):
        host.plug(number, address)
    acme.write_medium(host.root, SECOND, FREE)
    host.kernel.reboot({IDLE: FIRST, FIRST: SECOND, SECOND: FREE})
    restart(host)
    return host


@pytest.fixture
def moved(make_host: Callable[..., TestHost]) -> TestHost:
    return move(make_host(1, 2, 3))


@pytest.fixture
def unnumbered(make_host: Callable[..., TestHost]) -> TestHost:
    """A host whose cards have one number, which therefore is none."""
    return move(make_host(7, 7, 7))


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ((1, 2, 3), "00-00-0a-35-00-00-00-01"),
        ((7, 7, 3), ""),
    ],
)
def test_root_reads_a_number_that_one_card_has(make_host, numbers, found):
    with make_host(*numbers).kernel.installed():
        assert pci_functions.serial(PciAddress.parse(IDLE)) == found


def test_no_guest_gets_the_card_of_another(moved):
    with pytest.raises(DeviceClaimed):
        moved.manager.plug(instance(2), None, None)
    with pytest.raises(LookupError, match="is not offered"):
        moved.plug(3, FREE)
    assert acme.has_data(moved.root, SECOND)


def test_no_guest_gets_the_card_of_another_by_its_lease_alone(moved):
    """The helper has lost its files."""
    for copy in Path(moved.kernel.path(COPIES)).iterdir():
        copy.unlink()
    with pytest.raises(exception.DeviceChanged, match=r"serial is now .*00-02"):
        moved.manager.plug(instance(2), None, None)
    assert acme.has_data(moved.root, SECOND)


def test_the_erasures_follow_the_cards(moved):
    for number in (1, 2):
        moved.unplug(number)
    acme.advance(moved)
    assert not acme.has_data(moved.root, SECOND)
    assert not acme.has_data(moved.root, FREE)
    assert not moved.manager.store.leases()
    assert not claims.claimed()


def test_no_guest_gets_a_card_that_cannot_be_told_apart(unnumbered):
    for number in (1, 2):
        with pytest.raises(
            exception.DeviceChanged, match=r"were at .* before the reboot"
        ):
            unnumbered.manager.plug(instance(number), None, None)
    with pytest.raises(exception.DeviceInUse, match=f"{FREE} may have the data of"):
        unnumbered.plug(3, FREE)


def test_a_card_that_cannot_be_told_apart_is_not_erased(unnumbered):
    for number in (1, 2):
        unnumbered.unplug(number)
    acme.advance(unnumbered)
    assert acme.has_data(unnumbered.root, SECOND)
    assert acme.has_data(unnumbered.root, FREE)
    for lease in unnumbered.manager.store.leases():
        assert f"were at {IDLE}, {FIRST}, {SECOND} before the reboot" in lease.reason


def test_cards_that_are_put_back_are_those_of_their_guests(unnumbered):
    for moves in ({FIRST: IDLE, SECOND: FIRST, FREE: SECOND}, {}):
        unnumbered.kernel.reboot(moves)
        restart(unnumbered)
        for number in (1, 2):
            unnumbered.manager.plug(instance(number), None, None)


def test_another_model_with_the_number_of_a_leased_card_is_served(make_host):
    """Vendors' IP cores have one default number, whatever the card."""
    host = make_host(7)
    host.plug(1, IDLE)
    card = host.kernel.hot_unplug(IDLE)
    host.kernel.hot_plug(dataclasses.replace(card, address=FREE, product=0x5001))
    restart(host)
    host.plug(2, FREE)


def test_a_card_whose_number_becomes_readable_is_told_apart_by_it(make_host):
    host = make_host(7, 7, 7)
    host.plug(1, FIRST)
    host.kernel.reboot()
    for address, number in ((IDLE, 1), (SECOND, 3)):
        path = Path(host.root, "sys/bus/pci/devices", address, "serial_number")
        # Equal attributes of the fake kernel are one file.
        path.unlink()
        path.write_text(f"00-00-0a-35-00-00-00-{number:02x}\n")
    restart(host)
    host.manager.plug(instance(1), None, None)
    (lease,) = host.manager.store.leases()
    (prior,) = lease.prior
    assert (lease.peers, prior.identity.drive) == ((), "00-00-0a-35-00-00-00-07")


def test_a_plug_that_fails_after_a_reboot_leaves_nothing_to_its_unplug(make_host):
    host = make_host(1, 2, 3)
    before = host.kernel.state(FIRST)
    host.plug(1, FIRST)
    host.kernel.reboot()
    restart(host)
    host.kernel.fail(FIRST, "drivers_probe", times=None)
    with pytest.raises(exception.HostStepFailed):
        host.manager.plug(instance(1), None, None)
    assert host.kernel.state(FIRST) != before
    host.kernel.lift()
    host.unplug(1)
    assert host.kernel.state(FIRST) == before
