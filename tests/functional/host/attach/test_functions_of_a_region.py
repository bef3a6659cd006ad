# SPDX-License-Identifier: Apache-2.0

"""One region, two functions, two PCI functions: the diagram of the specification.

"Here is an example diagram for an FPGA with multiple regions, and multiple functions
in a region": PCI A has Fn A and PCI B has Fn B of Region 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from acme_accelerator import hardware, plugin, simulation

from os_acc import exception
from os_acc.attach import planning
from os_acc.host.uevents import ErrorRecovery, Uevent
from os_acc.objects.lease import Lease
from os_acc.objects.pci import PciAddress
from os_acc.placement.device_traits import PROGRAMMABLE
from os_acc.testing import HostSpec, TestHost, instance, request, uuid_of
from tests.expected_errors import raises
from tests.functional.host.attach.test_rebuild import vm_image
from tests.unit import acme_card
from tests.unit.acme_card import (
    INTERFACE,
    PCI_A,
    PCI_B,
    PF,
    by_trait,
    leave,
    plug_groups,
    published,
    trait_of,
    upload_both,
)
from tests.unit.fpga import (
    CRYPTO,
    GZIP,
    POWER_ON,
    is_unknown,
    traits,
    upload,
)

HASH = "5b1f3a9e-3d7c-4b5e-8f19-6a2f0c9d4e77"
NAMES = {GZIP: "gzip", CRYPTO: "crypto"}
PLACES = {GZIP: PCI_A, CRYPTO: PCI_B}
ORDERS = list(itertools.permutations(PLACES))


@pytest.fixture
def region(two_functions: TestHost) -> TestHost:
    """Return a host whose one image has both functions, by their ids and names."""
    return acme_card.with_one_image(two_functions)


def lease_of(host: TestHost, number: int) -> Lease:
    (lease,) = host.manager.store.leases(uuid_of(number))
    return lease


# -- from the image to the traits to the PCI address -----------------------------


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: NAMES[order[0]])
def test_the_specification_s_diagram(region, programmed, order):
    first, second = order
    assert published(region) == {POWER_ON}
    (entry,) = region.plug(1, PF, function_id=first)
    assert acme_card.held_functions(region) == (GZIP, CRYPTO)
    assert entry["pci_id"] == PLACES[first]
    assert published(region) == {second}
    (entry,) = region.plug(2, PF, function_id=second)
    assert (entry["pci_id"], entry["function_id"]) == (PLACES[second], second)
    assert published(region) == set()
    assert len(programmed) == 1
    for number, function in enumerate(order, start=1):
        programming = lease_of(region, number).programming
        assert programming is not None
        assert programming.function_id == function
        assert dict(programming.region.functions) == {
            PciAddress.parse(place): each for each, place in PLACES.items()
        }
    assert region.unplug(1) == region.unplug(2) == 1
    assert published(region) == {GZIP, CRYPTO}
    assert PROGRAMMABLE in traits(region, PF)


# -- a request for CRYPTO never returns GZIP's PCI function ------------------------


def by_id(host: TestHost, number: int, function: str) -> list[Any]:
    return host.plug(number, PF, function_id=function)


def by_name(host: TestHost, number: int, function: str) -> list[Any]:
    return host.plug(number, PF, function_name=NAMES[function])


def by_trait_and_image(host: TestHost, number: int, function: str) -> list[Any]:
    selected, specs = request(host.provider(PF))
    specs[f"trait1:{trait_of(function)}"] = "required"
    specs["accel1:bitstream_name"] = "both"
    return host.manager.plug(instance(number), selected, specs)


def guest(host: TestHost, function: str, number: int = 1) -> dict[str, Any]:
    """Return an instance whose image identifies a function."""
    image = vm_image(host, f"vm-{number}", **{"accel:function_id": function})
    return instance(number) | {"image_id": image}


def by_the_guests_image(host: TestHost, number: int, function: str) -> list[Any]:
    info = guest(host, function, number)
    return host.manager.plug(info, *request(host.provider(PF)))


def by_both_images(host: TestHost, number: int, function: str) -> list[Any]:
    """The flavor requests the bitstream, the guest's image the function."""
    selected, specs = request(host.provider(PF))
    specs["accel1:bitstream_name"] = "both"
    return host.manager.plug(guest(host, function, number), selected, specs)


WAYS = [
    by_id,
    by_name,
    by_trait,
    by_trait_and_image,
    by_the_guests_image,
    by_both_images,
]


@pytest.mark.parametrize("way", WAYS)
def test_a_request_for_one_function_never_returns_the_other_s_pci_function(
    region, programmed, way
):
    leave(region)
    (entry,) = way(region, 1, CRYPTO)
    assert entry["pci_id"] == PCI_B
    before = region.kernel.snapshot(), region.manager.store.leases()
    with raises(exception.NoDeviceReason.NOT_FREE, match=PCI_B):
        way(region, 2, CRYPTO)
    assert (region.kernel.snapshot(), region.manager.store.leases()) == before
    assert len(programmed) == 1


@pytest.mark.parametrize("way", [by_id, by_name, by_the_guests_image, by_both_images])
def test_the_second_function_is_found_before_the_region_is_programmed(
    region, programmed, way
):
    (entry,) = way(region, 1, CRYPTO)
    assert entry["pci_id"] == PCI_B
    assert programmed == [GZIP]


def test_a_guest_that_requests_no_function_may_have_each(region):
    leave(region)
    assert [plug_groups(region, "", number=each) for each in (1, 2)] == [
        [PCI_A],
        [PCI_B],
    ]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ((CRYPTO, GZIP), [PCI_B, PCI_A]),
        ((GZIP, CRYPTO), [PCI_A, PCI_B]),
        (("", GZIP), [PCI_B, PCI_A]),
    ],
)
def test_each_group_gets_the_function_that_it_requests(region, requested, expected):
    leave(region)
    assert plug_groups(region, *requested) == expected


@pytest.mark.parametrize(
    "said", [{"accel:function_name": "crypto"}, {"accel:function_id": GZIP}]
)
def test_a_name_that_the_image_gives_to_no_function_is_refused(
    region, programmed, said
):
    """Guessing would return the PCI function of the other function."""
    (region.images.path / "both.json").unlink()
    upload_both(region, **said)
    with raises(exception.ImageReason.INVALID, match="function_name crypto"):
        region.plug(1, PF, function_name="crypto")
    assert programmed == []


def test_a_function_that_the_guest_s_image_identifies_is_not_the_flavor_s(
    region, programmed
):
    """The flavor requests crypto; the bitstream does not state which id that is."""
    (region.images.path / "both.json").unlink()
    upload_both(region, **{"accel:function_name": "crypto"})
    selected, specs = request(region.provider(PF))
    specs["accel1:function_name"] = "crypto"
    with raises(exception.ImageReason.INVALID, match="function_name crypto"):
        region.manager.plug(guest(region, GZIP), selected, specs)
    assert programmed == []


def test_flavor_and_image_that_request_two_functions_for_one_device_are_refused(
    region, programmed
):
    booted = upload(region, "vm", tags=None, **{"accel:function_name": None})
    selected, specs = request(region.provider(PF))
    specs["accel1:function_name"] = "crypto"
    with pytest.raises(exception.InvalidExtraSpec, match="2 functions"):
        region.manager.plug(instance(1) | {"image_id": booted}, selected, specs)
    assert programmed == []


@pytest.mark.parametrize("by_image", [False, True])
def test_a_trait_and_a_request_that_name_two_functions_are_refused(
    region, programmed, by_image
):
    """More VFs would not help: one PCI function reaches one of the functions."""
    leave(region)
    selected, specs = request(region.provider(PF))
    specs[f"trait1:{trait_of(GZIP)}"] = "required"
    info = guest(region, CRYPTO) if by_image else instance(1)
    if not by_image:
        specs["accel1:function_id"] = CRYPTO
    with pytest.raises(exception.InvalidExtraSpec, match=CRYPTO) as caught:
        region.manager.plug(info, selected, specs)
    assert "one function" in caught.value.hint
    assert len(programmed) == 1


def test_traits_of_two_functions_for_one_device_are_refused(region, programmed):
    leave(region)
    selected, specs = request(region.provider(PF))
    specs["accel1:bitstream_name"] = "both"
    for function in (GZIP, CRYPTO):
        specs[f"trait1:{trait_of(function)}"] = "required"
    with pytest.raises(exception.InvalidExtraSpec, match="one function"):
        region.manager.plug(instance(1), selected, specs)


# -- other numbers of functions and PCI functions ----------------------------------


@pytest.mark.usefixtures("_example_plugin")
def test_a_function_is_published_while_one_of_its_pci_functions_is_free(make_fpgas):
    spec = HostSpec((simulation.card(PF, vfs=4),))
    host = make_fpgas(spec, device_spec=['{"address": "*:*:*.*", "num_vfs": 4}'])
    acme_card.hold(host, GZIP, CRYPTO)
    for number, left in enumerate(({GZIP, CRYPTO}, {CRYPTO}), start=1):
        by_trait(host, number, GZIP)
        assert published(host) == left
    with raises(exception.NoDeviceReason.NOT_FREE):
        by_trait(host, 3, GZIP)


def test_a_function_behind_a_faulty_pci_function_is_not_published(region):
    acme_card.hold(region, GZIP, CRYPTO)
    fault = Uevent("change", PciAddress.parse(PCI_A), ErrorRecovery.FAILED)
    region.manager.catalog.health.note(fault)
    assert published(region) == {CRYPTO}
    with raises(exception.NoDeviceReason.NOT_FREE, match=PCI_A):
        by_trait(region, 1, GZIP)


def test_a_function_that_no_pci_function_reaches_is_refused(region, programmed):
    declared = f"{GZIP},{CRYPTO},{HASH}"
    upload(region, "three", declared=declared, interface=INTERFACE)
    with raises(exception.ImageReason.MISMATCH, match=HASH):
        region.plug(1, PF, function_id=HASH)
    assert programmed == []
    assert region.plugged(1) == []


def test_a_bitstream_with_one_function_is_reached_through_each(region, programmed):
    upload(region, "hash", HASH, interface=INTERFACE)
    for number in (1, 2):
        region.plug(number, PF, function_id=HASH)
    assert programmed == [HASH]
    assert published(region) == set()


def test_a_pci_function_that_reaches_none_is_for_guests_that_request_none(
    region, monkeypatch
):
    found = ((PciAddress.parse(PCI_B), GZIP),)
    monkeypatch.setattr(plugin, "_reached", lambda *_: found)
    (entry,) = region.plug(1, PF)
    assert entry["pci_id"] == PCI_A
    region.unplug(1)
    image = upload_both(region)
    (entry,) = region.plug(1, PF, bitstream_id=image)
    assert entry["pci_id"] == PCI_B
    with raises(exception.NoDeviceReason.NOT_FREE):
        region.plug(2, PF, bitstream_id=image)


# -- the hardware decides ---------------------------------------------------------


def test_a_card_that_swaps_its_functions_is_found_out(region, monkeypatch):
    write = hardware.write_functions

    def swapped(node, functions, data, seconds_left):
        write(node, functions[::-1], data, seconds_left)

    with monkeypatch.context() as patch:
        patch.setattr(hardware, "write_functions", swapped)
        with raises(
            exception.ProgrammingReason.WRONG_FUNCTION,
            match=f"{PCI_B} of .* reaches {GZIP}.*{CRYPTO}",
        ):
            region.plug(1, PF, function_id=CRYPTO)
    assert region.plugged(1) == []
    assert is_unknown(region)
    assert published(region) == set()
    (entry,) = region.plug(1, PF, function_id=CRYPTO)
    assert entry["pci_id"] == PCI_B
    assert not is_unknown(region)


def test_a_selection_follows_contents_that_change_meanwhile(
    region, programmed, monkeypatch
):
    """The functions are read under the lock of the card, in each round."""
    acme_card.hold(region, GZIP, CRYPTO)
    again, rounds = planning.LeasePlanner.among, []

    def swap(planner, reaching):
        rounds.append(reaching)
        acme_card.hold(region, CRYPTO, GZIP)
        return again(planner, reaching)

    monkeypatch.setattr(planning.LeasePlanner, "among", swap)
    (entry,) = by_trait(region, 1, CRYPTO)
    assert entry["pci_id"] == PCI_A
    places = [str(*each) for found in rounds for each in found.values()]
    assert places == [PCI_B, PCI_A]
    assert programmed == []


# -- plugins ------------------------------------------------------------------------


def test_a_plugin_that_does_not_know_the_functions_works_as_before(
    region, monkeypatch, programmed
):
    monkeypatch.setattr(plugin, "_reached", lambda *_: ())
    for number, function in enumerate(reversed(PLACES)):
        region.plug(number, PF, function_id=function)
    assert len(programmed) == 1
    assert published(region) == {GZIP}


@pytest.mark.parametrize(
    "pairs",
    [
        [(PCI_A, "gzip")],
        [(PCI_A, GZIP), (PCI_A, CRYPTO)],
        [("0000:5e:01.0", GZIP)],
    ],
)
def test_functions_that_contradict_the_region_are_an_error_of_the_plugin(
    region, monkeypatch, pairs
):
    found = tuple((PciAddress.parse(place), each) for place, each in pairs)
    region.provider(PF)
    with monkeypatch.context() as patch:
        patch.setattr(plugin.AcmePlugin, "functions_of", lambda *_: found)
        with pytest.raises(exception.PluginFailed, match="acme"):
            region.plug(1, PF, function_id=GZIP)
    monkeypatch.setattr(plugin, "_reached", lambda *_: found)
    (aside,) = region.manager.discover().set_aside
    assert aside.name == "acme"


@pytest.mark.parametrize("fault", [None, OSError("no map of the card")])
def test_a_generator_of_functions_is_the_plugins_code(region, monkeypatch, fault):
    """It may fail, or never end, while the library reads it."""

    def functions_of(*_: object) -> Iterator[tuple[PciAddress, str]]:
        while True:
            yield PciAddress.parse(PCI_A), GZIP
            if fault is not None:
                raise fault

    region.provider(PF)
    monkeypatch.setattr(plugin.AcmePlugin, "functions_of", functions_of)
    with pytest.raises(exception.PluginFailed, match="acme") as caught:
        region.plug(1, PF, function_id=GZIP)
    assert isinstance(caught.value.__cause__, OSError if fault else ValueError)
    assert not region.manager.store.leases()
