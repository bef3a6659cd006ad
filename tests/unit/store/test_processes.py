# SPDX-License-Identifier: Apache-2.0

"""Several processes use one store, and some are killed."""

import threading

from os_acc import exception
from os_acc.store import Store
from os_acc.store.database import Database
from tests.expected_errors import raises

INSTANCE = "11111111-1111-4111-8111-111111111111"
MIGRATION = "55555555-5555-4555-8555-555555555555"


def test_one_of_two_processes_gets_the_device(store, make_lease, in_child):
    outcomes = []

    def race(consumer, slot):
        rival = make_lease(1, consumer)
        outcomes.append(in_child(lambda: store.add([rival])[0].consumer))

    rivals = [
        threading.Thread(target=race, args=(consumer, slot))
        for slot, consumer in enumerate((INSTANCE, MIGRATION))
    ]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    (lease,) = store.leases()
    assert sorted(outcomes) == sorted([lease.consumer, "AlreadyLeased"])


def test_a_child_uses_the_store_that_it_inherited(store, make_lease, in_child):
    store.add([make_lease(1)])
    in_child(lambda: store.add([make_lease(2)]))
    store.add([make_lease(3)])
    assert [lease.address.slot for lease in store.leases()] == [1, 2, 3]


def test_a_fork_during_the_work_of_other_threads_is_harmless(
    store, make_lease, in_child
):
    ended = threading.Event()

    def work():
        while not ended.is_set():
            store.delete(store.add([make_lease(1)]))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        outcomes = [
            in_child(lambda slot=slot: len(store.add([make_lease(slot)])))
            for slot in range(2, 8)
        ]
    finally:
        ended.set()
        worker.join()
    assert outcomes == ["1"] * 6
    assert [lease.address.slot for lease in store.leases()] == list(range(2, 8))


def test_what_a_killed_process_had_committed_stays(
    store, state_path, make_lease, paused_child
):
    def add_and_stop(pause):
        store.add([make_lease(1)])
        pause()

    with paused_child(add_and_stop) as child:
        child.is_killed()
    assert len(store.leases()) == 1


def test_what_a_killed_process_had_not_committed_is_gone(
    store, state_path, make_lease, paused_child
):
    added = store.add([make_lease(1)])

    def write_and_stop(pause):
        with Database(state_path, 30).transaction() as connection:
            connection.execute("DELETE FROM leases")
            pause()

    with paused_child(write_and_stop) as child:
        child.is_killed()
    assert store.leases() == added
    assert [event.operation for event in store.events(9)] == ["add"]
    assert store.damaged == ()


def test_waiting_for_another_process_ends(store, state_path, paused_child):
    def stop_amid(pause):
        with Database(state_path, 30).transaction():
            pause()

    with paused_child(stop_amid) as child:
        with raises(exception.StateReason.BUSY):
            Store.open(state_path, busy_timeout=0.05)
        child.goes_on()
    assert store.leases() == ()
