# SPDX-License-Identifier: Apache-2.0

"""The names of providers, and the proof that they belong to os_acc."""

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc.objects import provider_names
from os_acc.objects.pci import PciAddress, PciIdentity

PLACE = PciAddress.parse("0000:3b:00.1")
CARD = PciIdentity(0x8086, 0x0B2B, 0, 0, 0, "")
KEY = provider_names.key(CARD, PLACE)


@pytest.mark.parametrize(
    ("serial", "place", "key"),
    [
        ("", "0000:3b:00.0", "8086_1592_0000_3b_00_0"),
        ("", "10000:3b:00.1", "8086_1592_10000_3b_00_1"),
        ("00-1b-21", "0000:3b:00.0", "8086_1592_00_1b_21"),
        ("00-1b-21", "0000:5e:00.0", "8086_1592_00_1b_21"),
        ("00-1b-21", "0000:3b:00.1", "8086_1592_00_1b_21_1"),
    ],
)
def test_a_device_is_named_by_its_serial_number_or_its_place(serial, place, key):
    identity = PciIdentity(0x8086, 0x1592, 0, 0, 0, serial)
    assert provider_names.key(identity, PciAddress.parse(place)) == key


def test_where_the_serial_number_is_not_its_own_the_place_names_it():
    of_all = dataclasses.replace(CARD, serial="0")
    assert provider_names.key_of_place(of_all, PLACE) == KEY


def test_a_card_is_never_called_as_its_only_region_is():
    region, card = (
        provider_names.of_device("node1", KEY),
        provider_names.of_card("node1", KEY),
    )
    assert region == "node1_accel_8086_0b2b_0000_3b_00_1"
    assert card == "node1_accel_card_8086_0b2b_0000_3b_00_1"
    assert provider_names.uuid_of(region) != provider_names.uuid_of(card)


def test_the_uuid_of_a_name_never_changes():
    """Allocations refer to it, and the store may be lost."""
    name = "node1_accel_8086_0b2b_0000_3b_00_1"
    assert provider_names.uuid_of(name) == "19f0dead-f544-5e77-a15d-95599505e131"


@pytest.mark.parametrize("make", [provider_names.of_device, provider_names.of_card])
def test_name_and_uuid_together_prove_a_provider_ours(make):
    name = make("node1", KEY)
    assert provider_names.is_ours("node1", name, provider_names.uuid_of(name))
    assert not provider_names.is_ours("node1", name, provider_names.uuid_of("another"))
    assert not provider_names.is_ours("node2", name, provider_names.uuid_of(name))


def test_a_provider_of_novas_is_not_ours():
    name = "node1_pci_0000_3b_00_1"
    assert not provider_names.is_ours("node1", name, provider_names.uuid_of(name))


# -- names and what is on record ---------------------------------------------------

SLOTS = tuple(PciAddress.parse(f"0000:{bus}:00.0") for bus in ("05", "06", "07"))
CARDS = st.builds(
    lambda product, serial: dataclasses.replace(CARD, product=product, serial=serial),
    st.sampled_from((0x0B2B, 0x0B2B, 0x0B2B, 0x09C4)),
    st.sampled_from(("00-00", "00-00", "00-1b", "")),
)
HOSTS = st.dictionaries(st.sampled_from(SLOTS), CARDS)
SOME = st.frozensets(st.sampled_from(SLOTS))
NONE: frozenset[PciAddress] = frozenset()


def look(
    on_record: dict[str, provider_names.ProviderOrigin],
    host: Mapping[PciAddress, PciIdentity],
    unreadable: frozenset[PciAddress] = NONE,
    unusable: frozenset[PciAddress] = NONE,
) -> dict[tuple[PciAddress, str], str]:
    """Return the names given in one discovery of a host, and record them.

    :param unreadable: slots of cards with an unreadable serial number.
    :param unusable: slots of cards that are present, but not offered.
    """
    seen = {
        address: dataclasses.replace(card, serial="") if address in unreadable else card
        for address, card in host.items()
    }
    there = [provider_names.place(card, address) for address, card in seen.items()]
    names = provider_names.ProviderNames("node1", dict(on_record), there)
    found = {
        (address, of.__name__): names.give(of, card, address)[1]
        for address, card in seen.items()
        for of in (provider_names.of_device, provider_names.of_card)
        if address not in unusable
    }
    on_record |= names.origins
    assert len(set(found.values())) == len(found)
    return found


@given(
    before=st.lists(st.tuples(HOSTS, SOME, SOME), max_size=4),
    host=HOSTS,
    after=st.lists(SOME, min_size=1, max_size=3),
)
def test_a_serial_number_that_cannot_be_read_for_a_time_changes_no_name(
    before, host, after
):
    """The slots' earlier cards make no difference, and the record stays the same."""
    on_record: dict[str, provider_names.ProviderOrigin] = {}
    for earlier, unreadable, unusable in before:
        look(on_record, earlier, unreadable, unusable)
    expected = look(on_record, host)
    recorded = dict(on_record)
    for unreadable in after:
        assert look(on_record, host, unreadable) == expected
        assert on_record == recorded
    assert look(on_record, host) == expected


HIDDEN = ""
FIRST, SECOND, SHARED = (
    f"node1_accel_8086_0b2b_{serial}" for serial in ("00_1b", "00_1c", "00_00")
)
OTHER_MODEL = dataclasses.replace(CARD, product=0x09C4)
BY_PLACE = {bus: f"node1_accel_8086_0b2b_0000_{bus}_00_0" for bus in ("05", "06", "07")}
BOTH_BY_PLACE = {bus: BY_PLACE[bus] for bus in ("05", "06")}

#: The steps of each history: changes of slots, and the names expected after them. A
#: text is the serial number that the card shows.
HISTORIES = {
    "one-of-its-number-comes": [
        ({"06": "00-00"}, {"06": SHARED}),
        ({"05": "00-00"}, {"05": BY_PLACE["05"], "06": SHARED}),
        ({"07": "00-00"}, BY_PLACE | {"06": SHARED}),
    ],
    "one-of-its-number-goes": [
        ({"05": "00-00", "06": "00-00"}, BOTH_BY_PLACE),
        ({"05": None}, {"06": BY_PLACE["06"]}),
        ({"05": "00-00"}, BOTH_BY_PLACE),
    ],
    "the-first-of-its-number-goes": [
        ({"05": "00-00"}, {"05": SHARED}),
        ({"06": "00-00"}, {"05": SHARED, "06": BY_PLACE["06"]}),
        ({"05": None}, {"06": BY_PLACE["06"]}),
        ({"05": "00-00"}, {"05": SHARED, "06": BY_PLACE["06"]}),
    ],
    "it-moves": [
        ({"05": "00-1b", "06": "00-00"}, {"05": FIRST, "06": SHARED}),
        ({"05": None, "07": "00-1b"}, {"07": FIRST, "06": SHARED}),
    ],
    "it-is-readable-from-now-on": [
        ({"05": HIDDEN, "06": HIDDEN}, BOTH_BY_PLACE),
        ({"05": "00-1b", "06": "00-1c"}, BOTH_BY_PLACE),
    ],
    "it-is-readable-again": [
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": HIDDEN}, {"05": FIRST}),
        ({"05": "00-1b"}, {"05": FIRST}),
    ],
    "another-card-has-the-same": [
        ({"05": "00-00"}, {"05": SHARED}),
        ({"06": "00-00"}, {"05": SHARED, "06": BY_PLACE["06"]}),
        ({"05": HIDDEN}, {"05": SHARED, "06": BY_PLACE["06"]}),
        ({"06": HIDDEN}, {"05": SHARED, "06": BY_PLACE["06"]}),
        ({"05": "00-00"}, {"05": SHARED, "06": BY_PLACE["06"]}),
    ],
    "the-last-card-that-showed-one-counts": [
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": "00-1c"}, {"05": SECOND}),
        ({"05": HIDDEN}, {"05": SECOND}),
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": HIDDEN}, {"05": FIRST}),
    ],
    "it-turns-up-elsewhere": [
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": HIDDEN}, {"05": FIRST}),
        ({"06": "00-1b"}, {"05": BY_PLACE["05"], "06": FIRST}),
        ({"05": "00-1c"}, {"05": BY_PLACE["05"], "06": FIRST}),
    ],
    "it-has-moved": [
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": HIDDEN}, {"05": FIRST}),
        ({"05": None, "06": "00-1b"}, {"06": FIRST}),
        ({"05": HIDDEN}, {"05": BY_PLACE["05"], "06": FIRST}),
    ],
    "after-one-that-was-named-by-its-place": [
        ({"05": "00-00", "06": "00-00"}, BOTH_BY_PLACE),
        ({"05": HIDDEN}, BOTH_BY_PLACE),
        ({"05": "00-1b"}, {"05": FIRST, "06": BY_PLACE["06"]}),
        ({"05": HIDDEN}, {"05": FIRST, "06": BY_PLACE["06"]}),
        ({"05": "00-00"}, BOTH_BY_PLACE),
        ({"05": HIDDEN}, BOTH_BY_PLACE),
    ],
    "another-model": [
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": HIDDEN}, {"05": FIRST}),
        ({"05": OTHER_MODEL}, {"05": "node1_accel_8086_09c4_0000_05_00_0"}),
    ],
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_a_provider_keeps_its_name_while_cards_come_and_go(history):
    host: dict[PciAddress, PciIdentity] = {}
    on_record: dict[str, provider_names.ProviderOrigin] = {}
    for changes, expected in history:
        for bus, new in changes.items():
            place = PciAddress.parse(f"0000:{bus}:00.0")
            host.pop(place, None)
            if isinstance(new, str):
                host[place] = dataclasses.replace(CARD, serial=new)
            elif new is not None:
                host[place] = new
        for _ in range(2):
            found = look(on_record, host)
            assert {
                f"{place.bus:02x}": name
                for (place, of), name in found.items()
                if of == "of_device"
            } == expected


def test_a_card_named_by_its_place_keeps_that_name_beside_an_earlier_card():
    """The serial number, once readable, differs from that of the earlier card."""
    slot, other = SLOTS[:2]
    before, card = (dataclasses.replace(CARD, serial=each) for each in ("1b", "1c"))
    on_record: dict[str, provider_names.ProviderOrigin] = {}
    look(on_record, {slot: before})
    # No card gets the first card's name, which is in use elsewhere, if at all.
    moved = {slot: card, other: before}
    expected = look(on_record, moved, frozenset({slot}), frozenset({other}))
    assert expected[slot, "of_device"] == "node1_accel_8086_0b2b_0000_05_00_0"
    for unreadable in (frozenset({slot}), NONE):
        assert look(on_record, {slot: card}, unreadable) == expected
