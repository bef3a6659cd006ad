# SPDX-License-Identifier: Apache-2.0

"""A region of two functions holds the function that each of its guests requested."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.objects.pci import PciAddress
from os_acc.placement.device_traits import PROGRAMMABLE
from os_acc.testing import TestHost, uuid_of
from tests.expected_errors import raises
from tests.unit import acme_card
from tests.unit.acme_card import PCI_A, PCI_B
from tests.unit.fpga import CRYPTO, GZIP, POWER_ON, traits

# -- the specification's diagram -------------------------------------------------


def test_each_function_of_one_bitstream_goes_to_a_guest_of_its_own(
    two_functions, programmed
):
    acme_card.with_one_image(two_functions)
    for number, (address, function) in enumerate(((PCI_A, GZIP), (PCI_B, CRYPTO))):
        (entry,) = two_functions.plug(number, PCI_A, function_id=function)
        assert entry["pci_id"] == address
    assert len(programmed) == 1


def test_guests_share_a_bitstream_that_both_have_named(two_functions, programmed):
    image = acme_card.upload_both(two_functions)
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
    acme_card.with_one_image(two_functions)
    two_functions.plug(2, PCI_A, function_id=CRYPTO)
    assert programmed == [GZIP, GZIP]


# -- one request -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_there", "first"),
    [
        pytest.param(False, GZIP, id="neither is there"),
        pytest.param(True, GZIP, id="the first is there"),
        pytest.param(False, "", id="the first takes what is there"),
    ],
)
def test_groups_that_need_different_contents_are_refused(
    two_functions, programmed, is_there, first
):
    if is_there:
        acme_card.leave(two_functions)
    with raises(exception.RegionReason.IN_USE, match="cannot hold"):
        acme_card.plug_groups(two_functions, first, CRYPTO)
    assert programmed == [GZIP] * is_there
    assert two_functions.manager.store.leases() == ()


def test_what_is_there_serves_both_groups(two_functions, programmed):
    acme_card.leave(two_functions)
    assert len(acme_card.plug_groups(two_functions, "", GZIP)) == 2
    assert programmed == [GZIP]


# -- guests without a lease -------------------------------------------------------


def lose(bench: TestHost) -> None:
    bench.manager.store.delete(bench.manager.store.leases(uuid_of(1)))


def adopt(bench: TestHost) -> None:
    lose(bench)
    place = PciAddress.parse(PCI_A)
    operator_actions.adopt_device(bench.manager, place, uuid_of(1), "")
    assert PROGRAMMABLE not in traits(bench, PCI_B)


def damage(bench: TestHost) -> None:
    with bench.manager.store._database.transaction() as connection:
        connection.execute("UPDATE leases SET digest = ''")


@pytest.mark.parametrize("lease", [lose, adopt, damage])
def test_a_guest_without_its_lease_keeps_the_region(two_functions, lease):
    two_functions.plug(1, PCI_A)
    lease(two_functions)
    with raises(exception.RegionReason.IN_USE, match=PCI_A):
        two_functions.plug(2, PCI_B, function_id=GZIP)
    assert acme_card.held(two_functions) == POWER_ON
