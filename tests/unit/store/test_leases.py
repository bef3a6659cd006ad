# SPDX-License-Identifier: Apache-2.0

import dataclasses
import datetime
import os
import pathlib

import pytest

from os_acc import exception
from os_acc.objects.epoch import DAY, LIMIT, AcceptedEpochs
from os_acc.objects.lease import LeaseState
from os_acc.objects.mdev import MdevType
from os_acc.objects.pci import PciAddress
from os_acc.objects.provider_names import ProviderOrigin
from os_acc.store import AlreadyLeased, StaleLease, Store, journal, snapshot
from tests.expected_errors import raises
from tests.unit.store.store_files import set_epoch

INSTANCE = "11111111-1111-4111-8111-111111111111"
MIGRATION = "55555555-5555-4555-8555-555555555555"


class Clock:
    """A clock that tests set; nanoseconds since 1970."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def __call__(self) -> int:
        return self.seconds * 10**9


@pytest.fixture
def clock() -> Clock:
    return Clock(1_800_000_000)


def changed(lease, **changes):
    return dataclasses.replace(lease, **changes)


def at(lease, address, **changes):
    handle = dataclasses.replace(lease.handle, address=address)
    return dataclasses.replace(lease, handle=handle, **changes)


def test_a_new_store_is_private_to_its_owner(store, state_path):
    assert store.leases() == ()
    assert os.stat(state_path).st_mode & 0o777 == 0o750
    assert os.stat(f"{state_path}/os_acc.sqlite").st_mode & 0o777 == 0o640


def test_leases_come_back_in_the_order_in_which_they_were_added(store, make_lease):
    added = store.add([make_lease(3), make_lease(1)])
    added += store.add([make_lease(2, MIGRATION)])
    assert store.leases() == added
    assert store.leases(INSTANCE) == added[:2]
    assert store.leases("nobody") == ()


def test_a_callers_text_may_be_of_a_subclass(store, make_lease):
    class Text(str):
        pass

    lease = dataclasses.replace(make_lease(1), consumer=Text(INSTANCE))
    (added,) = store.add([lease])
    assert store.leases() == (added,)


def test_a_lease_keeps_the_time_of_its_creation(state_path, clock, make_lease):
    store = Store.open(state_path, 10.0, clock)
    created = clock.seconds * 10**6
    (first,) = store.add([make_lease(1)])
    assert first.created_at == created
    clock.seconds += 60
    (held,) = store.replace([changed(first, state=LeaseState.HELD)])
    (parked,) = store.rekey(INSTANCE, MIGRATION)
    (returned,) = store.rekey(MIGRATION, INSTANCE)
    assert {each.created_at for each in (held, parked, returned)} == {created}
    assert Store.open(state_path, 10.0, clock).leases() == (returned,)
    # The lease of a device that replaces another one.
    (spare,) = store.add([changed(make_lease(2), created_at=created, is_spare=True)])
    (new,) = store.add([make_lease(3)])
    assert spare.created_at == created
    assert new.created_at == created + 60 * 10**6


def test_leases_survive_the_process(store, state_path, make_lease):
    added = store.add([make_lease(1)])
    assert Store.open(state_path, busy_timeout=30).leases() == added


def test_every_member_of_the_group_leads_to_the_lease(store, make_lease):
    (lease,) = store.add([make_lease(1, functions=2)])
    assert store.lease_of(PciAddress(0, 0x3B, 1, 0)) == lease
    assert store.lease_of(PciAddress(0, 0x3B, 1, 1)) == lease
    assert store.lease_of(PciAddress(0, 0x3B, 2, 0)) is None


def test_a_function_has_one_lease(store, make_lease):
    store.add([make_lease(1, functions=2)])
    sibling = at(make_lease(9, MIGRATION), PciAddress(0, 0x3B, 1, 1), prior=())
    with pytest.raises(AlreadyLeased, match=r"0000:3b:01\.1"):
        store.add([make_lease(2, MIGRATION), sibling])
    assert store.leases(MIGRATION) == ()
    assert store.lease_of(PciAddress(0, 0x3B, 2, 0)) is None


def test_one_call_cannot_lease_a_function_twice(store, make_lease):
    with pytest.raises(AlreadyLeased):
        store.add([make_lease(1), at(make_lease(2), PciAddress(0, 0x3B, 1, 0))])
    assert store.leases() == ()


def test_a_lease_is_added_once(store, make_lease):
    store.add([make_lease(1)])
    twin = changed(make_lease(2), uuid=make_lease(1).uuid)
    with pytest.raises(AlreadyLeased):
        store.add([twin])


def test_replacing_changes_all_or_none(store, make_lease):
    one, two = store.add([make_lease(1), make_lease(2)])
    held = store.replace(
        [changed(lease, state=LeaseState.HELD) for lease in (one, two)]
    )
    assert store.leases() == held
    stale = [changed(held[0], reason="x"), changed(two, reason="x")]
    with pytest.raises(StaleLease):
        store.replace(stale)
    assert store.leases() == held


def test_leases_may_swap_their_functions(store, make_lease):
    one, two = store.add([make_lease(1), make_lease(2)])
    swapped = store.replace(
        [
            at(one, two.address, prior=two.prior),
            at(two, one.address, prior=one.prior),
        ]
    )
    assert store.lease_of(one.address) == swapped[1]


def test_replace_cannot_take_a_function_of_another_lease(store, make_lease):
    one, two = store.add([make_lease(1), make_lease(2)])
    with pytest.raises(AlreadyLeased):
        store.replace([at(one, two.address)])
    assert store.leases() == (one, two)


@pytest.mark.parametrize("operation", [Store.replace, Store.delete])
def test_who_read_an_older_lease_changes_nothing(store, make_lease, operation):
    (old,) = store.add([make_lease(1)])
    (new,) = store.replace([old])
    with pytest.raises(StaleLease):
        operation(store, [old])
    assert store.leases() == (new,)


@pytest.mark.parametrize("operation", [Store.replace, Store.delete])
def test_a_lease_that_is_gone_cannot_be_changed(store, make_lease, operation):
    (kept, gone) = store.add([make_lease(1), make_lease(2)])
    store.delete([gone])
    with raises(exception.ObjectKind.LEASE):
        operation(store, [kept, gone])
    assert store.leases() == (kept,)


def test_a_deleted_lease_frees_its_functions(store, make_lease):
    store.delete(store.add([make_lease(1, functions=2)]))
    assert store.leases() == ()
    store.add([make_lease(1, MIGRATION, functions=2)])


def test_leases_are_parked_at_a_migration_and_come_back(store, make_lease):
    added = store.add([make_lease(1), make_lease(2)])
    parked = store.rekey(INSTANCE, MIGRATION)
    assert store.leases(INSTANCE) == ()
    assert store.leases(MIGRATION) == parked
    back = store.rekey(MIGRATION, INSTANCE)
    assert [changed(lease, epoch=0) for lease in back] == [
        changed(lease, epoch=0) for lease in added
    ]


def test_rekey_refuses_a_consumer_with_leases(store, make_lease):
    store.add([make_lease(1), make_lease(2, MIGRATION)])
    with raises(exception.ConflictReason.CONSUMER):
        store.rekey(INSTANCE, MIGRATION)
    assert len(store.leases(INSTANCE)) == 1


def test_who_has_no_leases_cannot_give_them_away(store):
    with raises(exception.ObjectKind.LEASE):
        store.rekey(INSTANCE, MIGRATION)


def test_the_epoch_rises_when_the_clock_jumps_back(state_path, clock, make_lease):
    store = Store.open(state_path, 30, clock)
    (lease,) = store.add([make_lease(1)])
    assert lease.epoch == 1_800_000_000_000_000
    clock.seconds = 5
    (later,) = store.replace([lease])
    assert later.epoch == lease.epoch + 1
    store.delete([later])
    (last,) = store.add([make_lease(1)])
    assert last.epoch == later.epoch + 1


def test_the_epoch_rises_even_if_the_store_is_lost(tmp_path, clock, make_lease):
    (before,) = Store.open(str(tmp_path / "lost"), 30, clock).add([make_lease(1)])
    clock.seconds += 1
    (after,) = Store.open(str(tmp_path / "new"), 30, clock).add([make_lease(1)])
    assert after.epoch > before.epoch


def test_the_epoch_rises_above_what_the_helper_has_seen(store, make_lease):
    (lease,) = store.add([make_lease(1)])
    seen = lease.epoch + 5 * 10**9
    (lease,) = store.replace([lease], AcceptedEpochs.at(seen, lease.epoch))
    assert lease.epoch == seen + 1
    assert store.add([make_lease(2)])[0].epoch == seen + 2


def test_the_counter_does_not_follow_a_device_beyond_the_bound(store, make_lease):
    (lease,) = store.add([make_lease(1)])
    seen = lease.epoch + 2 * DAY
    (lease,) = store.replace([lease], AcceptedEpochs.at(seen, lease.epoch))
    assert lease.epoch == seen + 1
    assert store.add([make_lease(2)])[0].epoch < seen
    # Calls with the epoch of the lease may be queued.
    assert store.replace([lease])[0].epoch == seen + 2


def test_a_counter_that_is_far_ahead_comes_back_where_the_helper_refuses_it(
    state_path, clock, make_lease
):
    store = Store.open(state_path, 30, clock)
    (lease,) = store.add([make_lease(1)])
    clock.seconds -= 10**7
    now = clock.seconds * 10**6
    assert store.next_epoch() == lease.epoch + 1
    assert store.next_epoch(AcceptedEpochs.at(0, now)) == now + 1
    assert store.next_epoch() == now + 2
    (back,) = store.replace([lease], AcceptedEpochs.at(0, now))
    assert back.epoch == now + 3


def test_a_counter_that_has_reached_its_end_comes_back(store, file, make_lease):
    (lease,) = store.add([make_lease(1)])
    set_epoch(file, LIMIT)
    assert store.next_epoch() == LIMIT
    again = store.next_epoch(AcceptedEpochs.at(lease.epoch, lease.epoch))
    assert lease.epoch < again <= lease.epoch + 2


def test_a_call_without_a_lease_has_its_place_among_the_epochs(store, make_lease):
    (before,) = store.add([make_lease(1)])
    between = store.next_epoch()
    (after,) = store.add([make_lease(2)])
    assert before.epoch < between < after.epoch


def test_every_change_leaves_an_event(state_path, clock, make_lease):
    store = Store.open(state_path, 30, clock)
    (lease,) = store.add([make_lease(1)])
    (lease,) = store.replace([changed(lease, state=LeaseState.HELD)])
    (lease,) = store.replace(
        [changed(lease, state=LeaseState.QUARANTINED, reason="reset \udcff failed")]
    )
    assert store.leases() == (lease,)
    (lease,) = store.rekey(INSTANCE, MIGRATION)
    store.delete([lease])
    events = store.events(100)
    assert [event.operation for event in events] == [
        "add",
        "replace",
        "quarantine",
        "rekey",
        "delete",
    ]
    assert events[2].detail == "reset ? failed"
    assert events[3].detail == f"from {INSTANCE}"
    assert events[3] == journal.Event(
        when=datetime.datetime(2027, 1, 15, 8, tzinfo=datetime.UTC),
        operation="rekey",
        consumer=MIGRATION,
        address="0000:3b:01.0",
        state="quarantined",
        detail=f"from {INSTANCE}",
    )
    assert store.events(1) == events[-1:]


def test_the_manual_has_the_number_of_kept_events():
    for page in ("user/command.rst", "contributor/architecture.rst"):
        manual = pathlib.Path("doc/source", page).read_text()
        assert f"{journal.KEPT:,} events" in manual


def test_only_the_newest_events_are_kept(store, make_lease, monkeypatch):
    monkeypatch.setattr(journal, "KEPT", 3)
    for slot in range(5):
        store.add([make_lease(slot)])
    assert [event.address for event in store.events(100)] == [
        "0000:3b:02.0",
        "0000:3b:03.0",
        "0000:3b:04.0",
    ]


_HERE, _THERE = (ProviderOrigin(PciAddress(0, bus, 0, 0), "a card") for bus in (1, 2))
_MTTY, _VGPU = MdevType("mtty", "mtty-1"), MdevType("0000:17:00.0", "nvidia-558")


@pytest.mark.parametrize(
    ("field", "first", "second"),
    [
        ("origins", {"one": _HERE, "two": _HERE}, {"two": _THERE}),
        ("plugins", {"one": "acme", "two": "acme"}, {"two": "pci"}),
        ("mdev_totals", {_MTTY: 24, _VGPU: 2}, {_MTTY: 12}),
    ],
)
def test_what_a_provider_offers_is_recorded_as_it_was_last(
    store, state_path, field, first, second
):
    name = field if field == "mdev_totals" else f"provider_{field}"
    store.record_providers({"one": "FPGA"}, **{field: first})
    store.record_providers({"one": "CUSTOM_FPGA", "two": "PGPU"}, **{field: second})
    again = Store.open(state_path, busy_timeout=30)
    for each in (store.recorded_state(), again.recorded_state()):
        assert getattr(each, name) == first | second
    assert getattr(snapshot.read(state_path), name) == first | second
    assert again.providers() == {"one": "CUSTOM_FPGA", "two": "PGPU"}
