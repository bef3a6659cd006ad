# SPDX-License-Identifier: Apache-2.0

"""Every store that a released version wrote is opened, listed and released.

The host was rebooted for the upgrade. A host that was not has the helper's record
as well, which has no version: see the manual's page on upgrades.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import operations
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.store import schema
from os_acc.testing import TestHost, instance, uuid_of
from tests.unit.store import recorded_store
from tests.unit.store.store_files import file_in, rows

VERSIONS = sorted(path.stem for path in recorded_store.RECORDED.glob("*.sql"))


@pytest.fixture(params=VERSIONS)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestHost]:
    with TestHost(tmp_path, recorded_store.spec(), **recorded_store.options()) as host:
        recorded_store.load(request.param, host.state_path)
        yield host


def test_there_is_a_store_of_this_schema(host: TestHost) -> None:
    assert VERSIONS
    assert rows(file_in(host.state_path), "PRAGMA user_version") <= [
        (len(schema.STEPS),)
    ]


def test_the_leases_are_listed(host: TestHost) -> None:
    attached = host.manager.attached(None)
    assert {uuid: len(entries) for uuid, entries in attached.items()} == {
        uuid_of(number): 1 for number in (1, 2, 3)
    }
    states = [lease.state for lease in host.manager.store.leases()]
    assert states == [LeaseState.HELD, LeaseState.HELD, LeaseState.QUARANTINED]
    assert host.manager.store.damaged == ()


def test_the_devices_are_offered_to_no_other_guest(host: TestHost) -> None:
    taken = {
        function
        for lease in host.manager.store.leases()
        for function in lease.functions
    }
    assert PciAddress.parse(recorded_store.GPU) in taken
    for device in (recorded_store.GPU, recorded_store.LEFT):
        with pytest.raises(exception.NoDeviceAvailable):
            recorded_store.plug(host, 9, device)


def test_the_devices_are_plugged_again_and_released(host: TestHost) -> None:
    before = host.kernel.snapshot()
    for number, device in recorded_store.HELD.items():
        recorded_store.plug(host, number, device)
    assert host.drivers(recorded_store.GPU) == ["vfio-pci"]
    for number in recorded_store.HELD:
        assert host.manager.unplug(instance(number)) == 1
    left = PciAddress.parse(recorded_store.LEFT)
    operations.release_device(host.manager, left, None)
    assert host.manager.store.leases() == ()
    assert host.kernel.snapshot() == before
