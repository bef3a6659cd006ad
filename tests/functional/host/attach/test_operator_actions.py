# SPDX-License-Identifier: Apache-2.0

"""An operator can release or adopt a single device."""

from __future__ import annotations

import errno
from concurrent import futures

import pytest

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.attach.lifecycle import Lifecycle
from os_acc.objects.lease import LeaseState, Owner
from os_acc.objects.pci import PciAddress
from os_acc.store.errors import AlreadyLeased
from os_acc.testing import instance, uuid_of
from tests.expected_errors import raises

GPU, FPGA = "0000:17:00.0", "0000:5e:00.0"
DISK = "0000:d9:00.0"


def at(text: str) -> PciAddress:
    return PciAddress.parse(text)


@pytest.fixture
def unknown(bench):
    """Return a host with a disk on vfio-pci that no record names."""
    bench.bind(DISK, "vfio-pci")
    return bench


def quarantine(bench, address: str) -> None:
    bench.plug(1, address)
    bench.kernel.fail(address, "unbind", errno.EIO)
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    assert bench.manager.store.lease_of(at(address)).state is LeaseState.QUARANTINED


# -- release -----------------------------------------------------------------


def test_it_stays_in_quarantine_while_the_host_refuses(bench):
    quarantine(bench, GPU)
    bench.kernel.fail(GPU, "unbind", errno.EBUSY)
    with raises(exception.StepReason.REFUSED, match="EBUSY"):
        operator_actions.release_device(bench.manager, at(GPU), None)
    (lease,) = bench.manager.store.leases()
    assert lease.state is LeaseState.QUARANTINED
    assert "EBUSY" in lease.reason


def test_the_operator_may_forget_what_cannot_be_given_back(bench):
    quarantine(bench, GPU)
    bench.kernel.fail(GPU, "unbind", errno.EBUSY)
    operator_actions.release_device(bench.manager, at(GPU), None, force=True)
    assert bench.manager.store.leases() == ()


def test_an_unknown_device_goes_to_the_driver_that_the_operator_names(unknown):
    operator_actions.release_device(unknown.manager, at(DISK), "nvme")
    assert unknown.drivers(DISK) == ["nvme"]
    assert unknown.kernel.state(DISK).driver_override is None
    # A guest may have written to it.
    assert [each.state for each in unknown.manager.store.leases()] == [
        LeaseState.ERASING
    ]
    assert unknown.provider(DISK)


def test_nobody_guesses_where_an_unknown_device_goes(unknown):
    writes = unknown.kernel.writes()
    with pytest.raises(exception.InvalidInput) as caught:
        operator_actions.release_device(unknown.manager, at(DISK), None)
    assert "--driver" in caught.value.hint
    assert unknown.kernel.writes() == writes


def test_an_unknown_device_that_a_guest_has_stays_with_it(unknown):
    unknown.kernel.hold(DISK)
    writes = unknown.kernel.writes()
    with pytest.raises(exception.DeviceInUse, match="4711"):
        operator_actions.release_device(unknown.manager, at(DISK), "nvme")
    assert unknown.kernel.writes() == writes
    assert unknown.manager.store.leases() == ()


@pytest.mark.parametrize("address", [FPGA, "0000:ff:00.0"])
def test_there_has_to_be_something_to_release(bench, address):
    with raises(exception.ObjectKind.DEVICE, match=address):
        operator_actions.release_device(bench.manager, at(address), "nvme")
    assert bench.kernel.writes() == []


def test_what_an_instance_holds_is_not_released_under_it(bench):
    bench.plug(1, GPU)
    writes = bench.kernel.writes()
    with raises(exception.ConflictReason.CONSUMER, match=uuid_of(1)) as caught:
        operator_actions.release_device(bench.manager, at(GPU), None)
    assert "unplug" in caught.value.hint
    assert bench.kernel.writes() == writes
    assert bench.plugged(1) == [GPU]


def test_a_device_that_two_commands_release_goes_back_once(bench, monkeypatch):
    bench.bind(FPGA, "vfio-pci")
    give_back = Lifecycle.release
    pool = futures.ThreadPoolExecutor(2)

    def release():
        operator_actions.release_device(bench.manager, at(FPGA), "")

    def slow(*args):
        monkeypatch.setattr(Lifecycle, "release", give_back)
        second = pool.submit(release)
        assert futures.wait([second], timeout=0.2).not_done
        found = give_back(*args)
        seconds.append(second)
        return found

    seconds = []
    monkeypatch.setattr(Lifecycle, "release", slow)
    release()
    seconds[0].result(30)
    assert bench.drivers(FPGA) == [None]
    assert bench.manager.store.leases() == ()


def test_what_is_not_named_is_not_touched(make_bench):
    bench = make_bench(device_spec=['{"address": "0000:17:00.*"}'])
    bench.bind(FPGA, "vfio-pci")
    writes = bench.kernel.writes()
    for action in (
        lambda: operator_actions.release_device(bench.manager, at(FPGA), ""),
        lambda: operator_actions.adopt_device(bench.manager, at(FPGA), uuid_of(1), ""),
    ):
        with raises(exception.ObjectKind.DEVICE, match="device_spec"):
            action()
    assert bench.kernel.writes() == writes


# -- adopt -------------------------------------------------------------------


def test_an_adopted_device_is_the_consumers_until_it_is_unplugged(unknown):
    unknown.kernel.hold(DISK)
    lease = operator_actions.adopt_device(unknown.manager, at(DISK), uuid_of(1), "nvme")
    assert lease.state is LeaseState.HELD
    assert lease.owner is Owner.COMMAND
    assert list(unknown.manager.attached(instance(1))) == [uuid_of(1)]
    with pytest.raises(exception.DevicesUnreleased):
        unknown.unplug(1)
    unknown.kernel.let_go(DISK)
    assert unknown.unplug(1) == 1
    assert unknown.drivers(DISK) == ["nvme"]


def test_a_device_is_adopted_once(unknown):
    operator_actions.adopt_device(unknown.manager, at(DISK), uuid_of(1), "nvme")
    with pytest.raises(AlreadyLeased, match=DISK):
        operator_actions.adopt_device(unknown.manager, at(DISK), uuid_of(2), "nvme")


def test_a_device_that_the_host_has_cannot_be_adopted(bench):
    with raises(exception.ObjectKind.DEVICE, match="nouveau"):
        operator_actions.adopt_device(bench.manager, at(GPU), uuid_of(1), "nouveau")
    assert bench.manager.store.leases() == ()


def test_a_consumer_with_something_unfinished_adopts_nothing(unknown):
    quarantine(unknown, FPGA)
    with raises(exception.ConflictReason.CONSUMER, match=uuid_of(1)):
        operator_actions.adopt_device(unknown.manager, at(DISK), uuid_of(1), "nvme")


@pytest.mark.parametrize("consumer", [None, "../evil", uuid_of(1)[:-1]])
def test_a_consumer_is_a_uuid(unknown, consumer):
    with pytest.raises(exception.InvalidInput, match="UUID"):
        operator_actions.adopt_device(unknown.manager, at(DISK), consumer, "nvme")
    assert unknown.manager.store.leases() == ()


def test_the_form_of_the_uuid_does_not_matter(unknown):
    wanted = uuid_of(1).upper()
    lease = operator_actions.adopt_device(unknown.manager, at(DISK), wanted, "nvme")
    assert lease.consumer == uuid_of(1)
    assert unknown.unplug(1) == 1


@pytest.mark.parametrize("driver", ["../evil", "x" * 65, 7])
def test_a_driver_is_a_name(unknown, driver):
    for action in (
        lambda: operator_actions.release_device(unknown.manager, at(DISK), driver),
        lambda: operator_actions.adopt_device(
            unknown.manager, at(DISK), uuid_of(1), driver
        ),
    ):
        with pytest.raises(exception.InvalidInput, match="driver"):
            action()


@pytest.mark.parametrize("address", [None, DISK])
def test_an_address_is_an_address(unknown, address):
    for action in (
        lambda: operator_actions.release_device(unknown.manager, address, "nvme"),
        lambda: operator_actions.adopt_device(
            unknown.manager, address, uuid_of(1), "nvme"
        ),
    ):
        with pytest.raises(exception.InvalidInput):
            action()
