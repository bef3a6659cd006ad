# SPDX-License-Identifier: Apache-2.0

"""Total and reserved follow from the states of devices and leases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc.objects.lease import LeaseState
from os_acc.objects.records import RecordedState
from os_acc.placement.capacity import Units, capacities
from os_acc.testing import uuid_of
from tests.unit.placement.capacity_examples import (
    CLASS,
    OTHER_CLASS,
    handle,
    lease,
    place,
    provider,
)

FOUR = tuple(handle(number) for number in range(4))
NIC = provider(1, *FOUR)


def counted(*leases, providers=(NIC,), unreadable=()):
    """Return (total, reserved) by uuid and class."""
    found = capacities(providers, RecordedState(leases, tuple(unreadable)))
    return {
        each.uuid: {
            name: (units.total, units.reserved) for name, units in each.units.items()
        }
        for each in found
    }


def on(number=2, state=LeaseState.HELD, of=NIC.uuid, **more):
    return lease(of, handle(number), state, **more)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        # Placement has the allocation; reserving the unit would count it twice.
        pytest.param(on(2), (4, 0), id="held"),
        pytest.param(on(2, LeaseState.PREPARING), (4, 0), id="prepared"),
        pytest.param(on(2, LeaseState.RELEASING), (4, 0), id="released"),
        # The allocation was deleted with its guest.
        pytest.param(on(2, LeaseState.RELEASING, reason="in use"), (4, 1), id="failed"),
        pytest.param(on(2, LeaseState.QUARANTINED), (4, 1), id="quarantined"),
        # The allocation counts the unit that serves the request.
        pytest.param(on(2, LeaseState.PREPARING, is_spare=True), (4, 1), id="new"),
        pytest.param(on(2, LeaseState.RELEASING, is_spare=True), (4, 1), id="old"),
        pytest.param(on(9), (5, 0), id="vanished"),
        pytest.param(on(9, LeaseState.QUARANTINED), (5, 1), id="vanished-quarantined"),
        pytest.param(on(2, of=""), (4, 0), id="adopted"),
        pytest.param(on(2, LeaseState.QUARANTINED, of=""), (4, 1), id="adopted-failed"),
        # It belongs to no provider.
        pytest.param(on(9, of=""), (4, 0), id="adopted-vanished"),
    ],
)
def test_a_unit_is_counted_once_and_reserved_without_an_allocation(made, expected):
    assert counted(made, on(1)) == {NIC.uuid: {CLASS: expected}}


def test_a_unit_that_a_damaged_record_claims_is_reserved():
    assert counted(unreadable=[place(3)]) == {NIC.uuid: {CLASS: (4, 1)}}


def test_a_lease_stays_in_the_class_in_which_it_was_allocated():
    before = on(0, resource_class=OTHER_CLASS)
    assert counted(before) == {NIC.uuid: {CLASS: (3, 0), OTHER_CLASS: (1, 0)}}


def test_of_a_device_that_has_vanished_what_is_leased_is_left():
    leases = [lease(NIC.uuid, each) for each in FOUR[:2]]
    (left,) = capacities((), RecordedState(tuple(leases)))
    assert (left.uuid, left.provider) == (NIC.uuid, None)
    assert dict(left.units) == {CLASS: Units(2, 0)}


def test_a_unit_that_another_provider_has_leased_is_reserved_here():
    """A changed node_name, for example, gives the same device another provider."""
    other = uuid_of(2)
    assert counted(lease(other, FOUR[0])) == {
        NIC.uuid: {CLASS: (4, 1)},
        other: {CLASS: (1, 0)},
    }


def test_a_class_of_which_nothing_is_left_is_not_there():
    """Placement accepts no total of 0."""
    card = provider(2, FOUR[0])
    before = lease(card.uuid, FOUR[0], resource_class=OTHER_CLASS)
    assert counted(before, providers=[card]) == {card.uuid: {OTHER_CLASS: (1, 0)}}


def test_a_group_of_functions_is_one_unit():
    group = handle(7, functions=3)
    card = provider(2, group)
    assert counted(providers=[card]) == {card.uuid: {CLASS: (1, 0)}}
    assert counted(lease(card.uuid, group), providers=[card]) == {
        card.uuid: {CLASS: (1, 0)}
    }
    assert counted(providers=[card], unreadable=[place(7, 2)]) == {
        card.uuid: {CLASS: (1, 1)}
    }


HANDLES = [handle(number) for number in range(8)]
LEASES = st.lists(
    st.tuples(
        st.sampled_from(HANDLES),
        st.sampled_from(["", uuid_of(1), uuid_of(2), uuid_of(3)]),
        st.sampled_from(LeaseState),
        st.sampled_from(["", "in use"]),
    ),
    unique_by=lambda each: each[0].address,
)


@given(
    split=st.integers(0, 5),
    leases=LEASES,
    damaged=st.sets(st.integers(0, 7)),
)
def test_placement_offers_exactly_what_is_free(split, leases, damaged):
    """A leased unit is allocated, unless its release failed."""
    # The last two of eight addresses are empty; the others are two cards' units.
    cards = [provider(1, *HANDLES[:split]), provider(2, *HANDLES[split:6])]
    made = [lease(of, each, state, reason=why) for each, of, state, why in leases]
    unreadable = tuple(place(number) for number in sorted(damaged))
    taken = {each.address for each in made} | set(unreadable)
    found = {
        each.uuid: each.units
        for each in capacities(cards, RecordedState(tuple(made), unreadable))
    }
    for card in cards:
        there = {each.address for each in card.device.handles}
        units = found.get(card.uuid, {}).get(CLASS, Units(0))
        allocated = [
            each
            for each in made
            if not each.has_failed_release
            and (
                each.provider == card.uuid
                or (not each.provider and each.address in there)
            )
        ]
        assert 0 <= units.reserved <= units.total
        assert units.total - units.reserved - len(allocated) == len(there - taken)
