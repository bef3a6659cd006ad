# SPDX-License-Identifier: Apache-2.0

"""A region is verified without programming only by hardware that authenticates it."""

import pytest

from os_acc import exception
from os_acc.objects.pci import PciAddress
from tests.expected_errors import raises
from tests.unit import signed_card
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    POWER_ON,
    be_a_guest,
    function_trait,
    in_time,
    is_unknown,
    traits,
    upload,
)

ADDRESS = PciAddress.parse(CARD)


@pytest.fixture
def signed(make_fpgas, install_plugins):
    """Return a host whose cards accept signed bitstreams alone."""
    install_plugins(dfl=signed_card.PLUGIN)
    bench = make_fpgas()
    upload(bench)
    return bench


def test_contents_that_the_hardware_authenticates_are_accepted(signed):
    be_a_guest(signed, CRYPTO)
    assert function_trait(CRYPTO) not in traits(signed)
    region = signed.manager.regions.verify(ADDRESS, in_time())
    assert region.function_id == CRYPTO
    assert function_trait(CRYPTO) in traits(signed)
    assert signed.programmings() == []


def test_authenticated_contents_are_accepted_after_a_guest_and_a_reboot(signed):
    be_a_guest(signed, CRYPTO)
    signed.kernel.reboot()
    signed.restart()
    assert function_trait(POWER_ON) not in traits(signed)
    signed.manager.regions.verify(ADDRESS, in_time())
    signed.restart()
    assert function_trait(POWER_ON) in traits(signed)


def test_contents_that_the_hardware_does_not_authenticate_are_refused(fpgas):
    be_a_guest(fpgas, GZIP)
    with raises(exception.RegionReason.UNKNOWN) as caught:
        fpgas.manager.regions.verify(ADDRESS, in_time())
    assert f"os-acc region program {CARD}" in caught.value.hint
    assert function_trait(GZIP) not in traits(fpgas)


def test_authenticated_contents_are_not_taken_for_an_image(signed):
    """The hardware checks the signature of the bitstream, not its identity."""
    image = upload(signed, "crypto", CRYPTO)
    be_a_guest(signed, CRYPTO)
    signed.manager.regions.verify(ADDRESS, in_time())
    signed.plug(2, CARD, bitstream_id=image)
    assert signed.programmings() == ["done"]


def test_a_half_programmed_region_is_not_verified(signed):
    signed.kernel.fail_programming(CARD, "reconfig CRC error")
    with raises(exception.ProgrammingReason.CRC):
        signed.plug(1, CARD, function_id=GZIP)
    with raises(exception.RegionReason.UNKNOWN):
        signed.manager.regions.verify(ADDRESS, in_time())
    assert is_unknown(signed)


def test_a_region_in_a_guest_is_not_verified(signed):
    signed.plug(1, CARD)
    with raises(exception.RegionReason.IN_USE):
        signed.manager.regions.verify(ADDRESS, in_time())
    signed.kernel.program_as_guest(CARD, CRYPTO)
    signed.unplug(1)
    assert function_trait(CRYPTO) not in traits(signed)


def test_a_region_that_a_process_holds_is_not_verified(signed):
    be_a_guest(signed)
    signed.kernel.open_node("dfl-port.0")
    with pytest.raises(exception.DeviceInUse):
        signed.manager.regions.verify(ADDRESS, in_time())
    assert function_trait(CRYPTO) not in traits(signed)
