# SPDX-License-Identifier: Apache-2.0

"""A provider keeps its name when other devices of the host change."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

from os_acc.testing import FunctionSpec, HostSpec, TestHost, hosts, instance, request

NIC, VFS = "0000:3b:00.0", tuple(f"0000:3b:02.{number}" for number in range(8))
ON_THE_CARD = "node1_accel_8086_1592_0000_3b_00_0"
FAST, SLOW = "CUSTOM_FAST", "CUSTOM_SLOW"


def set_vfs(bench: TestHost, count: int) -> None:
    path = bench.kernel.path(f"sys/bus/pci/devices/{NIC}/sriov_numvfs")
    bench.kernel.write(path, "0")
    bench.kernel.write(path, str(count))


def on_vf(function: int) -> str:
    return f"node1_accel_8086_1889_0000_3b_02_{function}"


def tagged(**classes: int) -> list[str]:
    """Return specs for so many VFs of each class, one class after the other."""
    names = [name for name, count in classes.items() for _ in range(count)]
    return [
        json.dumps({"address": vf, "resource_class": name})
        for vf, name in zip(VFS, names, strict=False)
    ]


def names(bench: TestHost) -> dict[str, str]:
    """Return the name of the only provider of each class."""
    found = bench.manager.providers()
    assert len({each.device.resource_class for each in found}) == len(found)
    return {each.device.resource_class: each.name for each in found}


def take_away(bench: TestHost, *addresses: str) -> None:
    """Bind functions to vfio-pci, as another program does for guests of its own."""
    for address in addresses:
        device = f"{bench.root}/sys/bus/pci/devices/{address}"
        bench.kernel.write(f"{device}/driver_override", "vfio-pci")
        if pathlib.Path(device, "driver").exists():
            bench.kernel.write(f"{device}/driver/unbind", address)
        bench.kernel.write(f"{bench.root}/sys/bus/pci/drivers_probe", address)


@pytest.fixture
def mixed(make_bench) -> TestHost:
    """Build a host with a card of two fast and two slow VFs."""
    bench = make_bench(device_spec=tagged(CUSTOM_FAST=2, CUSTOM_SLOW=2))
    set_vfs(bench, 4)
    return bench


# -- VFs of one card -------------------------------------------------------------


@pytest.mark.parametrize("gone", [VFS[0:1], VFS[2:3], VFS[2:4], VFS[0:2]])
@pytest.mark.parametrize("is_known", [True, False])
def test_vfs_that_nobody_can_have_change_no_name(mixed, tmp_path, gone, is_known):
    before = names(mixed)
    assert before == {FAST: on_vf(0), SLOW: on_vf(2)}
    take_away(mixed, *gone)
    if not is_known:
        # Providers without a recorded place have the same names.
        mixed.restart(state_path=str(tmp_path / "elsewhere"))
    left = names(mixed)
    assert left
    assert left.items() <= before.items()


def test_who_was_allocated_a_vf_gets_one_though_the_others_are_gone(mixed):
    selected, specs = request(mixed.provider(VFS[0]))
    mixed.manager.plug(instance(1), selected, specs)
    take_away(mixed, VFS[2], VFS[3])
    mixed.manager.plug(instance(2), selected, specs)
    assert mixed.plugged(2) == [VFS[1]]


def test_fewer_vfs_change_no_name(mixed):
    """Weakness 26 of Cyborg: the last VF names the provider."""
    before = names(mixed)
    set_vfs(mixed, 2)
    assert names(mixed) == {FAST: before[FAST]}
    set_vfs(mixed, 4)
    assert names(mixed) == before


def test_more_vfs_change_no_name(make_bench):
    bench = make_bench(device_spec=tagged(CUSTOM_FAST=2, CUSTOM_SLOW=2))
    set_vfs(bench, 2)
    assert names(bench) == {FAST: ON_THE_CARD}
    for _ in range(2):
        set_vfs(bench, 4)
        assert names(bench) == {FAST: ON_THE_CARD, SLOW: on_vf(2)}
        bench.restart()


def test_tags_that_become_the_same_leave_one_of_the_names(mixed):
    before = names(mixed)
    mixed.restart(device_spec=tagged(CUSTOM_FAST=4))
    assert names(mixed) == {FAST: before[FAST]}


def test_the_place_of_another_card_that_was_there_before_is_nobodys(make_bench):
    """Another model has taken the slot: no VF of it has a recorded place."""
    bench = make_bench(HostSpec((hosts.nic("0000:3b", name="ens1f0"),)))
    set_vfs(bench, 2)
    bench.manager.discover()
    set_vfs(bench, 0)
    bench.kernel.hot_unplug(NIC)
    other = dataclasses.replace(hosts.nic("0000:3b", name="ens1f0"), product=0x1593)
    bench.kernel.hot_plug(other)
    bench.restart(device_spec=tagged(CUSTOM_FAST=1, CUSTOM_SLOW=1))
    set_vfs(bench, 2)
    assert names(bench) == {FAST: on_vf(0), SLOW: on_vf(1)}


# -- cards of one serial number ----------------------------------------------------


BUSES = ("05", "06", "07")


def card(bus: str, serial: str = "00-00") -> FunctionSpec:
    """Return a card; '': the kernel does not let every user read its number."""
    attributes = (("serial_number", f"{serial}\n"),) if serial else ()
    return dataclasses.replace(hosts.fpga(f"0000:{bus}"), attributes=attributes)


def by_place(bus: str) -> str:
    return f"node1_accel_10ee_5000_0000_{bus}_00_0"


BY_SERIAL = "node1_accel_10ee_5000_00_00"


def cards(bench: TestHost) -> dict[str, str]:
    """Return the name of each card's provider, by the card's bus."""
    return {
        f"{each.device.address.bus:02x}": each.name
        for each in bench.manager.providers()
    }


@pytest.mark.parametrize("others", [("05",), ("07",), ("05", "07")])
def test_a_card_keeps_its_name_when_one_of_its_serial_number_comes(make_bench, others):
    bench = make_bench(HostSpec((card("06"),)))
    assert cards(bench) == {"06": BY_SERIAL}
    for bus in others:
        bench.kernel.hot_plug(card(bus))
    expected = {"06": BY_SERIAL, **{bus: by_place(bus) for bus in others}}
    assert cards(bench) == expected
    bench.restart()
    assert cards(bench) == expected


def test_a_card_keeps_its_name_when_the_other_goes(make_bench):
    bench = make_bench(HostSpec((card("05"), card("06"))))
    before = cards(bench)
    assert before == {bus: by_place(bus) for bus in ("05", "06")}
    other = bench.kernel.hot_unplug("0000:05:00.0")
    for _ in range(2):
        assert cards(bench) == {"06": before["06"]}
        bench.restart()
    bench.kernel.hot_plug(other)
    assert cards(bench) == before


def test_a_card_that_nobody_can_have_counts(make_bench, tmp_path):
    """If the record were lost, this card would rename the other once it is usable."""
    bench = make_bench(HostSpec((card("05"), card("06"))))
    take_away(bench, "0000:05:00.0")
    assert cards(bench) == {"06": by_place("06")}


def test_who_came_later_keeps_its_name_when_the_first_goes(make_bench):
    bench = make_bench(HostSpec((card("05"),)))
    assert cards(bench) == {"05": BY_SERIAL}
    bench.kernel.hot_plug(card("06"))
    assert cards(bench) == {"05": BY_SERIAL, "06": by_place("06")}
    first = bench.kernel.hot_unplug("0000:05:00.0")
    assert cards(bench) == {"06": by_place("06")}
    bench.kernel.hot_plug(first)
    assert cards(bench) == {"05": BY_SERIAL, "06": by_place("06")}


def test_a_card_with_a_serial_number_of_its_own_may_move(make_bench):
    bench = make_bench(HostSpec((card("05", "00-1b"), card("06"))))
    before = cards(bench)
    bench.kernel.hot_unplug("0000:05:00.0")
    bench.kernel.hot_plug(card("07", "00-1b"))
    assert cards(bench) == {"07": before["05"], "06": before["06"]}


def test_a_place_of_one_without_is_not_that_of_one_with(make_bench):
    """A card with a serial number replaces one without in the same slot."""
    bench = make_bench(HostSpec((card("05"), card("06"))))
    assert cards(bench)["05"] == by_place("05")
    bench.kernel.hot_unplug("0000:05:00.0")
    bench.kernel.hot_plug(card("05", "00-1b"))
    assert cards(bench)["05"] == "node1_accel_10ee_5000_00_1b"


def test_a_serial_number_that_can_be_read_from_now_on_changes_no_name(make_bench):
    """Another kernel shows the number, or a rule of udev's lets every user read it."""
    bench = make_bench(HostSpec((card("05", ""), card("06", ""))))
    before = cards(bench)
    for bus, serial in (("05", "00-1b"), ("06", "00-1c")):
        bench.kernel.hot_unplug(f"0000:{bus}:00.0")
        bench.kernel.hot_plug(card(bus, serial))
    for _ in range(2):
        assert cards(bench) == before
        bench.restart()


def test_nor_does_it_change_those_of_vfs(make_bench):
    """The recorded name of a provider is found again."""
    nic = hosts.nic("0000:3b", name="ens1f0")
    tags = tagged(CUSTOM_FAST=1, CUSTOM_SLOW=1)
    bench = make_bench(HostSpec((nic,)), device_spec=tags)
    set_vfs(bench, 1)
    assert names(bench) == {FAST: ON_THE_CARD}
    set_vfs(bench, 0)
    bench.kernel.hot_unplug(NIC)
    attributes = (("serial_number", "00-1b\n"),)
    bench.kernel.hot_plug(dataclasses.replace(nic, attributes=attributes))
    set_vfs(bench, 2)
    assert names(bench) == {FAST: ON_THE_CARD, SLOW: on_vf(1)}


def test_the_provider_above_regions_keeps_its_name_as_well(make_bench):
    first, second = (
        dataclasses.replace(
            hosts.dfl(f"0000:{bus}"), attributes=(("serial_number", "00-00\n"),)
        )
        for bus in ("06", "05")
    )
    bench = make_bench(HostSpec((first,)))
    (before,) = bench.manager.providers()
    assert before.card is not None
    assert before.card.name == "node1_accel_card_8086_0b2b_00_00"
    bench.kernel.hot_plug(second)
    assert {each.card.name for each in bench.manager.providers() if each.card} == {
        before.card.name,
        "node1_accel_card_8086_0b2b_0000_05_00_0",
    }
    assert before.uuid in {each.uuid for each in bench.manager.providers()}


# -- serial numbers that cannot be read for a time ---------------------------------


HIDDEN = ""
FIRST, SECOND = "node1_accel_10ee_5000_00_1b", "node1_accel_10ee_5000_00_1c"
BOTH_BY_PLACE = {bus: by_place(bus) for bus in ("05", "06")}
OTHER_MODEL = dataclasses.replace(card("05", HIDDEN), product=0x5004)
OTHER_NAME = "node1_accel_10ee_5004_0000_05_00_0"


def put(bench: TestHost, bus: str, new: str | FunctionSpec | None) -> None:
    """Set the content of a slot; a text: a card that shows this serial number."""
    address = f"0000:{bus}:00.0"
    if pathlib.Path(bench.kernel.path("sys/bus/pci/devices", address)).exists():
        bench.kernel.hot_unplug(address)
    if new is not None:
        bench.kernel.hot_plug(card(bus, new) if isinstance(new, str) else new)


#: The steps of each history: changes of slots, and the names expected after them.
HISTORIES = {
    "it-is-readable-again": [
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": HIDDEN}, {"05": FIRST}),
        ({"05": "00-1b"}, {"05": FIRST}),
    ],
    "another-card-has-the-same": [
        ({"05": "00-00"}, {"05": BY_SERIAL}),
        ({"06": "00-00"}, {"05": BY_SERIAL, "06": by_place("06")}),
        ({"05": HIDDEN}, {"05": BY_SERIAL, "06": by_place("06")}),
        ({"06": HIDDEN}, {"05": BY_SERIAL, "06": by_place("06")}),
        ({"05": "00-00"}, {"05": BY_SERIAL, "06": by_place("06")}),
    ],
    "the-last-card-that-showed-one-counts": [
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": "00-1c"}, {"05": SECOND}),
        ({"05": HIDDEN}, {"05": SECOND}),
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": HIDDEN}, {"05": FIRST}),
    ],
    "it-was-another-card": [
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": HIDDEN}, {"05": FIRST}),
        ({"05": "00-1c"}, {"05": SECOND}),
    ],
    "it-turns-up-elsewhere": [
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": HIDDEN}, {"05": FIRST}),
        ({"06": "00-1b"}, {"05": by_place("05"), "06": FIRST}),
        ({"05": "00-1c"}, {"05": by_place("05"), "06": FIRST}),
    ],
    "it-has-moved": [
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": HIDDEN}, {"05": FIRST}),
        ({"05": None, "06": "00-1b"}, {"06": FIRST}),
        ({"05": HIDDEN}, {"05": by_place("05"), "06": FIRST}),
    ],
    "after-one-that-was-named-by-its-place": [
        ({"05": "00-00", "06": "00-00"}, BOTH_BY_PLACE),
        ({"05": HIDDEN}, BOTH_BY_PLACE),
        ({"05": "00-1b"}, {"05": FIRST, "06": by_place("06")}),
        ({"05": HIDDEN}, {"05": FIRST, "06": by_place("06")}),
        ({"05": "00-00"}, BOTH_BY_PLACE),
        ({"05": HIDDEN}, BOTH_BY_PLACE),
    ],
    "another-model": [
        ({"05": "00-1b"}, {"05": FIRST}),
        ({"05": HIDDEN}, {"05": FIRST}),
        ({"05": OTHER_MODEL}, {"05": OTHER_NAME}),
    ],
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_a_serial_number_that_cannot_be_read_is_the_last_one(make_bench, history):
    """It was read before: an older kernel does not show it, or the card is in reset."""
    bench = make_bench(HostSpec(()))
    for changes, expected in history:
        for bus, new in changes.items():
            put(bench, bus, new)
        for _ in range(2):
            assert cards(bench) == expected
            bench.restart()


def test_vfs_keep_their_names_when_that_of_their_card_cannot_be_read(make_bench):
    nic = hosts.nic("0000:3b", name="ens1f0")
    shown = dataclasses.replace(nic, attributes=(("serial_number", "00-1b\n"),))
    bench = make_bench(
        HostSpec((shown,)), device_spec=tagged(CUSTOM_FAST=2, CUSTOM_SLOW=2)
    )
    set_vfs(bench, 2)
    before = names(bench)
    assert before == {FAST: "node1_accel_8086_1592_00_1b"}
    for now in (nic, shown):
        set_vfs(bench, 0)
        bench.kernel.hot_unplug(NIC)
        bench.kernel.hot_plug(now)
        set_vfs(bench, 4)
        assert names(bench) == before | {SLOW: on_vf(2)}


def test_so_does_the_provider_above_regions(make_bench):
    hidden = hosts.dfl("0000:06")
    shown = dataclasses.replace(hidden, attributes=(("serial_number", "00-1b\n"),))
    bench = make_bench(HostSpec((shown,)))
    (before,) = bench.manager.providers()
    assert before.card is not None
    assert before.card.name == "node1_accel_card_8086_0b2b_00_1b"
    for now in (hidden, shown):
        bench.kernel.hot_unplug("0000:06:00.0")
        bench.kernel.hot_plug(now)
        (found,) = bench.manager.providers()
        assert (found.name, found.card) == (before.name, before.card)
