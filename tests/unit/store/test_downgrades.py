# SPDX-License-Identifier: Apache-2.0

"""An older os_acc keeps the leases of a newer one, readable to it or not."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from os_acc import exception
from os_acc.objects.lease import Lease, LeaseState
from os_acc.store import Store, readonly, records, schema
from tests.unit.store.store_files import execute, file_in, reopened, rows, unlearn


@pytest.fixture
def newer(
    store: Store, state_path: str, make_lease: Callable[..., Lease]
) -> Callable[[dict[str, Any]], Lease]:
    """Return a function that writes a lease with fields of a newer os_acc."""

    def write(fields: dict[str, Any]) -> Lease:
        (lease,) = store.add([make_lease(1, functions=2)])
        payload = json.dumps(json.loads(records.encode(lease)) | fields)
        execute(
            file_in(state_path),
            f"UPDATE leases SET payload = '{payload}',"
            f" digest = row_digest('leases', uuid, consumer, epoch, '{payload}')",
        )
        return lease

    return write


def test_fields_of_a_newer_os_acc_survive_an_older_one(
    newer, state_path: str, make_lease
) -> None:
    written = newer({"colour": "red", "erasure": {"done": 0.5}})
    older = reopened(state_path)
    (lease,) = older.leases()
    assert lease == written
    older.replace([lease])
    older.rekey(lease.consumer, "99999999-9999-4999-8999-999999999999")
    ((payload,),) = rows(file_in(state_path), "SELECT payload FROM leases")
    fields = json.loads(str(payload))
    assert fields["colour"] == "red"
    assert fields["erasure"] == {"done": 0.5}


#: Values that this os_acc does not know, in each field whose values may become more.
UNKNOWN = [
    {"state": "resting"},
    {"attach_target": "container"},
    {"owner": "ironic"},
    {"affinity": "adjacent"},
    {"policies": ["nearest", None, None, None]},
    {"address": "auxiliary:mlx5_core.sf.4"},
    {"bitstream_request": {"partition": "2"}},
    {"driver": "a driver of two/kinds"},
]


@pytest.mark.parametrize("fields", UNKNOWN, ids=lambda fields: next(iter(fields)))
def test_a_lease_with_an_unknown_value_keeps_its_devices(
    newer, state_path: str, fields: dict[str, Any], make_lease, caplog
) -> None:
    lease = newer(fields)
    older = reopened(state_path)
    assert older.leases() == ()
    assert older.damaged_claims() == lease.members
    assert readonly.read(state_path).damaged_claims == lease.members
    with pytest.raises(exception.NoDeviceAvailable):
        older.add([make_lease(1)])
    # The file itself is in order: nothing is set aside but this record.
    assert older.damaged == ()
    assert "a newer os_acc wrote it" in caplog.text


def test_the_newer_os_acc_gets_its_lease_back(
    newer, state_path: str, make_lease, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    newer, state_path: str, make_lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = newer({})
    with monkeypatch.context() as old:
        unlearn(old, LeaseState.PREPARING)
        older = reopened(state_path)
        older.forget_damaged(lease.address)
    assert reopened(state_path).leases() == ()


def test_a_lease_without_its_claims_stays_set_aside(
    newer, state_path: str, make_lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = newer({})
    with monkeypatch.context() as old:
        unlearn(old, LeaseState.PREPARING)
        reopened(state_path)
        file = pathlib.Path(file_in(state_path))
        execute(file, f"DELETE FROM claims WHERE address = '{lease.members[0]}'")
    again = reopened(state_path)
    assert again.leases() == ()
    assert again.damaged_claims() == lease.members[1:]
