# SPDX-License-Identifier: Apache-2.0

"""No damage to the file loses a lease silently."""

import contextlib
import os
import pathlib
import sqlite3

import pytest

from os_acc import exception
from os_acc.objects.accelerator_request import AcceleratorRequest
from os_acc.objects.epoch import DAY, LIMIT, AcceptedEpochs
from os_acc.objects.mdev import MdevType
from os_acc.objects.pci import PciAddress
from os_acc.objects.provider_names import ProviderOrigin
from os_acc.store import AlreadyLeased, Store, StoreDamaged, schema, snapshot
from tests.expected_errors import raises
from tests.unit.store.store_files import execute, reopened, set_version

INSTANCE = "11111111-1111-4111-8111-111111111111"


@pytest.mark.parametrize("content", [b"", b"no database", b"\xa5" * 8192])
def test_what_is_no_database_is_set_aside(store, state_path, file, content):
    file.write_bytes(content)
    store = reopened(state_path)
    (aside,) = store.damaged
    assert pathlib.Path(aside).read_bytes() == content
    assert store.leases() == ()


@pytest.mark.parametrize("modes", [b"\x02\x02", b"\x81\x03"])
def test_a_header_that_names_a_log_costs_nothing(
    store, state_path, file, make_lease, modes
):
    """SQLite refuses an image in memory whose header names a write-ahead log."""
    added = store.add([make_lease(1)])
    content = file.read_bytes()
    file.write_bytes(content[:18] + modes + content[20:])
    assert snapshot.read(state_path).leases == added
    again = reopened(state_path)
    assert again.leases() == added
    assert again.damaged == ()
    # The next commit mends it.
    again.add([make_lease(2)])
    assert file.read_bytes()[18:20] == b"\x01\x01"


def test_a_foreign_database_is_set_aside(store, state_path, file):
    file.unlink()
    execute(file, "CREATE TABLE leases (song TEXT)")
    store = reopened(state_path)
    assert len(store.damaged) == 1
    assert store.leases() == ()


def test_a_truncated_store_is_set_aside_and_the_loss_reported(
    store, state_path, file, make_lease, caplog
):
    store.add([make_lease(1)])
    os.truncate(file, 4096)
    store = reopened(state_path)
    assert len(store.damaged) == 1
    assert [store.damaged[0] in record.getMessage() for record in caplog.records] == [
        True
    ]
    assert not reopened(state_path).leases()
    assert len(caplog.records) == 1


def test_what_can_be_read_of_a_damaged_store_is_kept(
    store, state_path, file, make_lease
):
    added = store.add([make_lease(slot) for slot in range(32)])
    ahead = store.next_epoch(AcceptedEpochs(added[0].epoch + DAY // 2, LIMIT))
    place = ProviderOrigin(PciAddress(0, 0x3B, 0, 0), "a card")
    totals = {MdevType("mtty", "mtty-1"): 24}
    store.record_providers(
        {"provider": "CUSTOM_ACCELERATOR_NIC"},
        {"card": place},
        {"provider": "acme"},
        totals,
    )
    # A page in the middle of the table; the pages around it are intact.
    content = bytearray(file.read_bytes())
    page = content.find(f'"uuid":"{added[16].uuid}"'.encode()) // 4096 * 4096
    content[page : page + 4096] = bytes(4096)
    file.write_bytes(content)
    store = reopened(state_path)
    assert len(store.damaged) == 1
    kept = store.leases()
    assert added[0] in kept
    assert added[16] not in kept
    assert added[31] in kept
    assert {lease.address for lease in kept} | set(store.damaged_claims()) == {
        lease.address for lease in added
    }
    assert store.providers() == {"provider": "CUSTOM_ACCELERATOR_NIC"}
    assert store.recorded_state().provider_origins == {"card": place}
    assert store.recorded_state().provider_plugins == {"provider": "acme"}
    assert store.recorded_state().mdev_totals == totals
    store.delete(kept)
    assert store.add([make_lease(0)])[0].epoch > ahead


def test_what_can_be_read_of_damaged_requests_stays_in_order(store, state_path, file):
    made = [
        AcceleratorRequest(f"33333333-3333-4333-8333-{number:012d}", "p" * 255, 0)
        for number in range(64)
    ]
    store.add_requests(made)
    content = bytearray(file.read_bytes())
    page = content.find(f'"uuid":"{made[32].uuid}"'.encode()) // 4096 * 4096
    content[page : page + 4096] = bytes(4096)
    file.write_bytes(content)
    kept = [each.uuid for each in reopened(state_path).requests()]
    assert made[0].uuid in kept
    assert made[32].uuid not in kept
    assert made[63].uuid in kept
    assert kept == [each.uuid for each in made if each.uuid in kept]


def test_a_place_that_is_none_costs_no_other(store, file):
    place = ProviderOrigin(PciAddress(0, 0x3B, 0, 0), "a card")
    store.record_providers({}, {"one": place, "two": place})
    execute(
        file, "UPDATE provider_origins SET address = 'nowhere' WHERE provider = 'one'"
    )
    with pytest.raises(StoreDamaged):
        store.recorded_state()
    assert store.recorded_state().provider_origins == {"two": place}


def test_a_damaged_index_costs_no_lease(store, state_path, file, make_lease):
    added = store.add([make_lease(1), make_lease(2)])
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = 'CREATE INDEX'"
            " WHERE name = 'claims_by_lease'"
        )
    store = reopened(state_path)
    assert len(store.damaged) == 1
    assert store.leases() == added


def test_damage_while_in_use_is_an_error_once(store, file, make_lease):
    store.add([make_lease(1)])
    file.write_bytes(b"no database")
    with pytest.raises(StoreDamaged) as caught:
        store.leases(INSTANCE)
    assert store.damaged == (caught.value.path,)
    assert store.leases(INSTANCE) == ()


@pytest.mark.parametrize("name", ["consumer", "events"])
def test_a_damaged_name_while_in_use_is_damage(store, file, make_lease, name):
    """SQLite reports a missing table or column as an error in the statement."""
    store.add([make_lease(1)])
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, ?1, 'e' || ?1),"
            " name = replace(name, ?1, 'e' || ?1),"
            " tbl_name = replace(tbl_name, ?1, 'e' || ?1) WHERE name = 'events'",
            (name,),
        )
    with pytest.raises(StoreDamaged):
        store.add([make_lease(2)])
    assert len(store.leases()) == 1
    assert len(store.add([make_lease(2)])) == 1


def test_another_process_learns_that_the_store_was_replaced(
    store, state_path, file, make_lease
):
    store.add([make_lease(1)])
    file.write_bytes(b"no database")
    (aside,) = reopened(state_path).damaged
    with pytest.raises(StoreDamaged) as caught:
        store.leases(INSTANCE)
    assert caught.value.path == aside
    assert store.leases(INSTANCE) == ()


def test_a_store_that_was_removed_in_use_is_an_error(store, file, make_lease):
    store.add([make_lease(1)])
    file.unlink()
    with pytest.raises(StoreDamaged):
        store.leases()


def test_remains_of_an_unfinished_store_are_replaced(state_path, make_lease):
    os.makedirs(state_path)
    pathlib.Path(state_path, "os_acc.sqlite.new").write_bytes(b"half")
    store = reopened(state_path)
    store.add([make_lease(1)])
    assert store.damaged == ()


def test_a_damaged_record_blocks_its_devices_and_nothing_else(
    store, state_path, file, make_lease, caplog
):
    bad, good = store.add([make_lease(1, functions=2, name="hydrogen"), make_lease(2)])
    file.write_bytes(file.read_bytes().replace(b"hydrogen", b"hydrogem"))
    store = reopened(state_path)
    assert store.damaged == ()
    assert store.leases() == (good,)
    assert store.lease_of(bad.address) is None
    assert store.damaged_claims() == bad.members
    with pytest.raises(AlreadyLeased):
        store.add([make_lease(1)])
    (event,) = [event for event in store.events(9) if event.operation == "damaged"]
    assert bad.uuid in event.detail
    assert event.consumer == INSTANCE
    assert len([r for r in caplog.records if bad.uuid in r.getMessage()]) == 1


def test_a_damaged_record_cannot_be_changed(store, file, make_lease):
    added = store.add([make_lease(1, name="hydrogen")])
    file.write_bytes(file.read_bytes().replace(b"hydrogen", b"hydrogem"))
    with raises(exception.ObjectKind.LEASE, match="damaged"):
        store.replace(added)


def test_an_operator_lets_go_of_a_damaged_record(store, state_path, file, make_lease):
    bad, good = store.add([make_lease(1, functions=2, name="hydrogen"), make_lease(2)])
    file.write_bytes(file.read_bytes().replace(b"hydrogen", b"hydrogem"))
    with raises(exception.ObjectKind.LEASE):
        store.forget_damaged(good.address)
    store.forget_damaged(bad.members[1])
    assert store.damaged_claims() == ()
    assert store.leases() == (good,)
    assert store.events(1)[0].operation == "forget"
    store.add([make_lease(1, functions=2)])


def test_a_lost_claim_is_made_again(store, state_path, file, make_lease):
    (lease,) = store.add([make_lease(1)])
    execute(file, "DELETE FROM claims")
    assert reopened(state_path).lease_of(lease.address) == lease


def test_a_claim_that_cannot_be_read_hides_no_other(store, file):
    execute(
        file,
        "INSERT INTO claims VALUES"
        " ('nowhere', 'x', ''), (x'ff', 'x', ''), ('0000:3b:01.0', 'x', '')",
    )
    with pytest.raises(StoreDamaged, match="a row of claims"):
        store.damaged_claims()
    assert store.damaged_claims() == (PciAddress(0, 0x3B, 1, 0),)


def test_a_damaged_event_hides_no_other(store, state_path, file, make_lease, caplog):
    store.add([make_lease(1)])
    values = f"{2**40}, 0, 'add', '', '', '', '', ''"
    execute(file, f"INSERT INTO events VALUES ({values})")
    assert len(store.events(9)) == 1
    store = reopened(state_path)
    assert "damaged records of 1 events" in caplog.text
    store.add([make_lease(2)])
    assert len(store.events(9)) == 2
    assert store.damaged == ()


def test_an_event_may_be_of_any_time(state_path, make_lease):
    store = Store.open(state_path, 30, clock=lambda: 2**62 * 1000)
    store.add([make_lease(1)])
    assert len(store.events(9)) == 1


def test_a_newer_store_is_left_alone(store, state_path, file, make_lease):
    added = store.add([make_lease(1)])
    set_version(file, len(schema.STEPS) + 1)
    before = file.read_bytes()
    for attempt in (store.leases, lambda: reopened(state_path)):
        with raises(exception.StateReason.TOO_NEW):
            attempt()
    assert file.read_bytes() == before
    set_version(file, len(schema.STEPS))
    assert store.leases() == added


@pytest.mark.parametrize("version", [-1, 0, len(schema.STEPS) + 1, 2**31 - 1])
def test_a_version_that_the_store_itself_contradicts_is_damage(
    store, state_path, file, make_lease, version
):
    added = store.add([make_lease(1)])
    execute(file, f"PRAGMA user_version = {version}")
    with pytest.raises(StoreDamaged):
        snapshot.read(state_path)
    store = reopened(state_path)
    assert len(store.damaged) == 1
    assert store.leases() == added
