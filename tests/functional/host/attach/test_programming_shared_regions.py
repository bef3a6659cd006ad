# SPDX-License-Identifier: Apache-2.0

"""A region of two functions holds the function that each of its guests requested."""

from __future__ import annotations

from typing import Any

import pytest

from os_acc import exception
from os_acc.attach import operations
from os_acc.objects.pci import PciAddress
from os_acc.placement.region_traits import PROGRAMMABLE
from os_acc.testing import TestHost, bitstreams, instance, uuid_of
from os_acc.testing.dfl_specs import payload
from tests.expected_errors import has
from tests.unit import acme_card
from tests.unit.acme_card import INTERFACE, PCI_A, PCI_B
from tests.unit.fpga import CRYPTO, GZIP, POWER_ON, traits


def upload_both(bench: TestHost) -> str:
    """Upload one bitstream that has both functions; return its id."""
    metadata = bitstreams.gbs_metadata(INTERFACE, GZIP, CRYPTO)
    content = bitstreams.gbs_of(metadata, payload(GZIP))
    for name in ("gzip", "crypto"):
        (bench.images.path / f"{name}.json").unlink()
    properties = {"accel:function_id": GZIP, "function_uuid": CRYPTO}
    return bench.images.put("both", content, **properties)


def ask_twice(bench: TestHost, **more: str) -> list[Any]:
    """Plug both functions of the region, in a group each."""
    provider = bench.provider(PCI_A)
    resource = provider.device.resource_class
    selected = {
        "allocations": {provider.uuid: {"resources": {resource: 2}}},
        "mappings": {"1": [provider.uuid], "2": [provider.uuid]},
    }
    specs = {f"resources{number}:{resource}": "1" for number in (1, 2)}
    specs |= {"group_policy": "none"} | more
    return bench.manager.plug(instance(1), selected, specs)


# -- the specification's diagram -------------------------------------------------


def test_each_function_of_one_bitstream_goes_to_a_guest_of_its_own(
    two_functions, programmed
):
    upload_both(two_functions)
    for number, (address, function) in enumerate(((PCI_A, GZIP), (PCI_B, CRYPTO))):
        (entry,) = two_functions.plug(number, PCI_A, function_id=function)
        assert entry["pci_id"] == address
    assert len(programmed) == 1


def test_guests_share_a_bitstream_that_both_have_named(two_functions, programmed):
    image = upload_both(two_functions)
    for number in (1, 2):
        two_functions.plug(number, PCI_A, bitstream_id=image)
    assert len(programmed) == 1


def test_the_same_function_in_another_bitstream_is_not_what_was_asked_for(
    two_functions,
    programmed,
):
    """A bitstream with only this function would be taken for the one with both."""
    two_functions.plug(1, PCI_A, function_id=GZIP)
    two_functions.unplug(1)
    upload_both(two_functions)
    two_functions.plug(2, PCI_A, function_id=CRYPTO)
    assert programmed == [GZIP, GZIP]


# -- one request -----------------------------------------------------------------


def test_what_one_group_finds_there_another_does_not_replace(two_functions):
    two_functions.plug(9, PCI_A, function_id=GZIP)
    two_functions.unplug(9)
    with pytest.raises(
        exception.RegionUnusable,
        check=has(reason=exception.RegionReason.IN_USE),
        match="cannot hold",
    ):
        ask_twice(
            two_functions,
            **{"accel1:function_id": GZIP, "accel2:function_id": CRYPTO},
        )
    assert acme_card.held(two_functions) == GZIP


def test_what_one_group_takes_as_it_is_another_does_not_replace(
    two_functions, programmed
):
    with pytest.raises(
        exception.RegionUnusable,
        check=has(reason=exception.RegionReason.IN_USE),
        match="cannot hold",
    ):
        ask_twice(two_functions, **{"accel2:function_id": CRYPTO})
    assert programmed == []


def test_what_is_there_serves_both_groups(two_functions, programmed):
    two_functions.plug(9, PCI_A, function_id=GZIP)
    two_functions.unplug(9)
    assert len(ask_twice(two_functions, **{"accel2:function_id": GZIP})) == 2
    assert programmed == [GZIP]


# -- guests without a lease -------------------------------------------------------


def lose_lease(bench: TestHost) -> None:
    """Delete the lease of a guest that has the first function."""
    bench.plug(1, PCI_A)
    bench.manager.store.delete(bench.manager.store.leases(uuid_of(1)))


def test_a_guest_that_nobody_knows_keeps_the_region(two_functions):
    lose_lease(two_functions)
    with pytest.raises(
        exception.RegionUnusable,
        check=has(reason=exception.RegionReason.IN_USE),
        match=PCI_A,
    ):
        two_functions.plug(2, PCI_B, function_id=GZIP)
    assert acme_card.held(two_functions) == POWER_ON


def test_a_guest_that_was_adopted_keeps_the_region(two_functions):
    lose_lease(two_functions)
    place = PciAddress.parse(PCI_A)
    operations.adopt_device(two_functions.manager, place, uuid_of(1), "")
    assert PROGRAMMABLE not in traits(two_functions, PCI_B)
    with pytest.raises(
        exception.RegionUnusable,
        check=has(reason=exception.RegionReason.IN_USE),
        match=PCI_A,
    ):
        two_functions.plug(2, PCI_B, function_id=GZIP)
    assert acme_card.held(two_functions) == POWER_ON


def test_a_guest_whose_record_is_damaged_keeps_the_region(two_functions):
    two_functions.plug(1, PCI_A)
    store = two_functions.manager.store
    with store._transaction() as connection:
        connection.execute("UPDATE leases SET digest = ''")
    with pytest.raises(
        exception.RegionUnusable,
        check=has(reason=exception.RegionReason.IN_USE),
        match=PCI_A,
    ):
        two_functions.plug(2, PCI_B, function_id=GZIP)
    assert acme_card.held(two_functions) == POWER_ON
