# SPDX-License-Identifier: Apache-2.0

"""The store of this version and of each released one is opened, listed and released.

The host was rebooted for the upgrade. For a host that was not, with guests that hold
their devices, see ``test_upgrades_while_held.py``.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.testing import TestHost, instance, uuid_of
from tests.unit import acme
from tests.unit.store import recorded_store

DATA = b"data of a guest."


@pytest.fixture(params=recorded_store.versions())
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestHost]:
    text = recorded_store.text_of(request.param)
    with TestHost(tmp_path, recorded_store.spec(), **recorded_store.options()) as host:
        recorded_store.load(text, host.state_path)
        yield host


def test_the_leases_are_listed(host):
    attached = host.manager.attached(None)
    holders = (*recorded_store.HELD, recorded_store.QUARANTINED)
    assert {uuid: len(entries) for uuid, entries in attached.items()} == {
        uuid_of(number): 1 for number in holders
    }
    states = Counter(lease.state for lease in host.manager.store.leases())
    assert states == {
        LeaseState.HELD: len(recorded_store.HELD),
        LeaseState.QUARANTINED: 1,
        LeaseState.ERASING: 1,
    }
    assert host.manager.store.damaged == ()


def test_the_devices_are_offered_to_no_other_guest(host):
    taken = {
        function
        for lease in host.manager.store.leases()
        for function in lease.functions
    }
    assert PciAddress.parse(recorded_store.GPU) in taken
    for device in (recorded_store.GPU, recorded_store.LEFT, recorded_store.ERASED):
        with pytest.raises(exception.NoDeviceAvailable):
            recorded_store.plug(host, 9, device)


def test_the_devices_are_plugged_again_and_released(host):
    before = host.kernel.snapshot()
    for drive in (recorded_store.DRIVE, recorded_store.ERASED):
        host.kernel.write_medium(drive, 1, DATA)
    for number, device in recorded_store.HELD.items():
        recorded_store.plug(host, number, device)
    assert host.drivers(recorded_store.GPU) == ["vfio-pci"]
    for number in recorded_store.HELD:
        assert host.manager.unplug(instance(number)) == 1
    left = PciAddress.parse(recorded_store.LEFT)
    operator_actions.release_device(host.manager, left, None)
    acme.advance(host)
    for drive in (recorded_store.DRIVE, recorded_store.ERASED):
        assert DATA not in host.kernel.read_medium(drive, 1)
    assert host.manager.store.leases() == ()
    assert host.kernel.snapshot() == before
