# SPDX-License-Identifier: Apache-2.0

"""A provider keeps its name when other devices of the host change."""

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


@pytest.mark.parametrize(
    ("gone", "is_known"),
    [(VFS[0:1], True), (VFS[2:3], False), (VFS[2:4], True), (VFS[0:2], False)],
)
def test_vfs_that_are_not_offered_change_no_name(mixed, tmp_path, gone, is_known):
    before = names(mixed)
    assert before == {FAST: on_vf(0), SLOW: on_vf(2)}
    take_away(mixed, *gone)
    if not is_known:
        # Providers without a recorded place have the same names.
        mixed.restart(state_path=str(tmp_path / "elsewhere"))
    left = names(mixed)
    assert left
    assert left.items() <= before.items()


def test_an_allocated_vf_is_attached_while_the_others_are_gone(mixed):
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


def test_the_place_of_an_earlier_card_of_another_model_names_no_vf(make_bench):
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


def card(bus: str) -> FunctionSpec:
    attributes = (("serial_number", "00-00\n"),)
    return dataclasses.replace(hosts.fpga(f"0000:{bus}"), attributes=attributes)


def by_place(bus: str) -> str:
    return f"node1_accel_10ee_5000_0000_{bus}_00_0"


def cards(bench: TestHost) -> dict[str, str]:
    """Return the name of each card's provider, by the card's bus."""
    return {
        f"{each.device.address.bus:02x}": each.name
        for each in bench.manager.providers()
    }


def test_a_card_that_is_not_offered_counts(make_bench):
    """If the record were lost, this card would rename the other once it is usable."""
    bench = make_bench(HostSpec((card("05"), card("06"))))
    take_away(bench, "0000:05:00.0")
    assert cards(bench) == {"06": by_place("06")}


# -- serial numbers that cannot be read for a time ---------------------------------


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


def test_a_card_provider_keeps_its_name_when_that_of_its_card_cannot_be_read(
    make_bench,
):
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
