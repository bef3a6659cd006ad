# SPDX-License-Identifier: Apache-2.0

"""Every store that a released version wrote is opened, listed and released.

The host was rebooted for the upgrade. For a host that was not, with guests that hold
their devices, see ``test_upgrades_while_held.py``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import operations
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.store import records, schema
from os_acc.testing import TestHost, instance, uuid_of
from tests.unit import acme
from tests.unit.store import recorded_store
from tests.unit.store.store_files import file_in, rows

DATA = b"data of a guest."
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


def test_the_newest_store_has_each_field_of_a_lease(
    tmp_path: Path, make_lease: Callable[..., Lease]
) -> None:
    recorded_store.load(VERSIONS[-1], str(tmp_path))
    payloads = rows(file_in(str(tmp_path)), "SELECT payload FROM leases")
    expected = json.loads(records.encode(make_lease(1))).keys()
    assert [json.loads(str(text)).keys() for (text,) in payloads] == (
        [expected] * len(payloads)
    ), "record the store of this version: python -m tests.unit.store.recorded_store"


def test_the_leases_are_listed(host: TestHost) -> None:
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


def test_the_devices_are_offered_to_no_other_guest(host: TestHost) -> None:
    taken = {
        function
        for lease in host.manager.store.leases()
        for function in lease.functions
    }
    assert PciAddress.parse(recorded_store.GPU) in taken
    for device in (recorded_store.GPU, recorded_store.LEFT, recorded_store.ERASED):
        with pytest.raises(exception.NoDeviceAvailable):
            recorded_store.plug(host, 9, device)


def test_the_devices_are_plugged_again_and_released(host: TestHost) -> None:
    before = host.kernel.snapshot()
    for drive in (recorded_store.DRIVE, recorded_store.ERASED):
        host.kernel.write_medium(drive, 1, DATA)
    for number, device in recorded_store.HELD.items():
        recorded_store.plug(host, number, device)
    assert host.drivers(recorded_store.GPU) == ["vfio-pci"]
    for number in recorded_store.HELD:
        assert host.manager.unplug(instance(number)) == 1
    left = PciAddress.parse(recorded_store.LEFT)
    operations.release_device(host.manager, left, None)
    acme.advance(host)
    for drive in (recorded_store.DRIVE, recorded_store.ERASED):
        assert DATA not in host.kernel.read_medium(drive, 1)
    assert host.manager.store.leases() == ()
    assert host.kernel.snapshot() == before
