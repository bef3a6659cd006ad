# SPDX-License-Identifier: Apache-2.0

"""An older os_acc keeps the leases of a newer one, readable to it or not."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from os_acc import exception
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.store import Store, codec, schema, snapshot
from tests.unit.store.store_files import execute, file_in, reopened, rows, unlearn


@pytest.fixture
def newer(
    store: Store, state_path: str, make_lease: Callable[..., Lease]
) -> Callable[[dict[str, Any]], Lease]:
    """Return a function that writes a lease with fields of a newer os_acc.

    The fields of an object, as ``handle``, are added to those that it has.
    """

    def write(fields: dict[str, Any]) -> Lease:
        (lease,) = store.add([make_lease(1, functions=2)])
        recorded = json.loads(codec.encode(lease))
        for name, value in fields.items():
            known = recorded.get(name)
            both = isinstance(known, dict) and isinstance(value, dict)
            recorded[name] = known | value if both else value
        payload = json.dumps(recorded)
        execute(
            file_in(state_path),
            f"UPDATE leases SET payload = '{payload}',"
            f" digest = row_digest('leases', uuid, consumer, epoch, '{payload}')",
        )
        return lease

    return write


def payload_in(state_path: str, table: str = "leases") -> dict[str, Any]:
    """Return the record of the only lease in a table."""
    ((payload,),) = rows(file_in(state_path), f"SELECT payload FROM {table}")
    return dict(json.loads(str(payload)))


#: Fields that this os_acc does not know, in objects that it knows.
OF_OBJECTS: dict[str, dict[str, Any]] = {
    "wanted": {"weight": 2},
    "handle": {"port": {"speed": 100}},
    "guest": {"host_name": "db1"},
    "policies": {"project": "preferred"},
}


def test_fields_of_a_newer_os_acc_survive_an_older_one(newer, state_path, make_lease):
    written = newer({"colour": "red", **OF_OBJECTS})
    older = reopened(state_path)
    (lease,) = older.leases()
    assert lease == written
    (lease,) = older.replace([lease])
    older.rekey(lease.consumer, "99999999-9999-4999-8999-999999999999")
    fields = payload_in(state_path)
    assert fields["colour"] == "red"
    assert all(
        fields[name].items() >= more.items() for name, more in OF_OBJECTS.items()
    )


def test_fields_of_a_newer_os_acc_survive_damage_of_the_store(newer, state_path):
    newer({"colour": "red", **OF_OBJECTS})
    before = payload_in(state_path)
    execute(file_in(state_path), "DROP TABLE events")
    assert reopened(state_path).damaged
    assert payload_in(state_path) == before


def test_a_newer_field_of_each_function_survives_with_the_function(
    newer, state_path, store, make_lease
):
    lease = make_lease(1, functions=2)
    prior = [json.loads(codec.encode(each)) | {"resets": "bus"} for each in lease.prior]
    newer({"prior": prior})
    first, second = lease.prior
    elsewhere = dataclasses.replace(second, address=PciAddress(0, 0x3B, 9, 0))
    (recorded,) = store.leases()
    store.replace([dataclasses.replace(recorded, prior=(first, elsewhere))])
    assert payload_in(state_path)["prior"] == [
        prior[0],
        json.loads(codec.encode(elsewhere)),
    ]


#: Values that this os_acc does not know, in each field whose values may become more.
UNKNOWN = [
    {"state": "resting"},
    {"owner": "ironic"},
    {"affinity": "adjacent"},
    {"outstanding": ["release", "scrub"]},
    {"policies": {"port": "nearest"}},
    {"wanted": {"attach_target": "container"}},
    {"wanted": {"bitstream_request": {"partition": "2"}}},
    {"wanted": {"numa_policy": "nearest"}},
    {"handle": {"address": "auxiliary:mlx5_core.sf.4"}},
    {"handle": {"driver": "a driver of two/kinds"}},
    # Of another form, as that of a field that became an object, or is one no more.
    {"guest": "a name"},
    {"handle": None},
    {"erasure": {"done": 0.5}},
    {"programming": {"partition": "2"}},
    {"prior": {"0000:3b:01.0": "nvme"}},
]


@pytest.mark.parametrize("fields", UNKNOWN, ids=str)
def test_a_lease_with_an_unknown_value_keeps_its_devices(
    newer, state_path, fields, make_lease, caplog
):
    lease = newer(fields)
    written = payload_in(state_path)
    older = reopened(state_path)
    assert older.leases() == ()
    assert payload_in(state_path, "damaged_leases") == written
    assert older.damaged_claims() == lease.members
    assert snapshot.read(state_path).damaged_claims == lease.members
    with pytest.raises(exception.NoDeviceAvailable):
        older.add([make_lease(1)])
    # The file itself is in order: nothing is set aside but this record.
    assert older.damaged == ()
    assert "a newer os_acc wrote it" in caplog.text


def test_the_newer_os_acc_gets_its_lease_back(
    newer, state_path, make_lease, monkeypatch
):
    lease = newer({"colour": "red"})
    expected = rows(file_in(state_path), f"SELECT {schema.LEASES.listed} FROM leases")
    with monkeypatch.context() as old:
        unlearn(old, LeaseState.PREPARING)
        older = reopened(state_path)
        assert older.leases() == ()
        (other,) = older.add([make_lease(2)])
    newer_again = reopened(state_path)
    assert set(newer_again.leases()) == {lease, other}
    assert newer_again.damaged_claims() == ()
    found = rows(file_in(state_path), f"SELECT {schema.LEASES.listed} FROM leases")
    assert expected[0] in found
    assert newer_again.events(1)[-1].operation == "restore"


def test_a_lease_that_an_operator_gave_up_stays_away(
    newer, state_path, make_lease, monkeypatch
):
    lease = newer({})
    with monkeypatch.context() as old:
        unlearn(old, LeaseState.PREPARING)
        older = reopened(state_path)
        older.forget_damaged(lease.address)
    assert reopened(state_path).leases() == ()


def test_a_lease_without_its_claims_stays_set_aside(
    newer, state_path, make_lease, monkeypatch
):
    lease = newer({})
    with monkeypatch.context() as old:
        unlearn(old, LeaseState.PREPARING)
        reopened(state_path)
        file = pathlib.Path(file_in(state_path))
        execute(file, f"DELETE FROM claims WHERE address = '{lease.members[0]}'")
    again = reopened(state_path)
    assert again.leases() == ()
    assert again.damaged_claims() == lease.members[1:]
