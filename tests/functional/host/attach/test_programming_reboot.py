# SPDX-License-Identifier: Apache-2.0

"""After a reboot a guest finds the function that it had."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.testing import TestHost, instance, uuid_of
from tests.expected_errors import raises
from tests.unit import acme_card
from tests.unit.acme_card import PCI_A
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    POWER_ON,
    VF,
    function_trait,
    held,
    traits,
    upload,
)


def test_a_reboot_takes_the_function_and_the_lease_brings_it_back(fpgas):
    """The recorded contents of a region are never trusted: item 9."""
    upload(fpgas)
    first = fpgas.plug(1, function_id=GZIP)
    fpgas.kernel.reboot()
    assert held(fpgas) == POWER_ON
    fpgas.restart()
    assert fpgas.manager.plug(instance(1), None, None) == first
    assert held(fpgas) == GZIP
    assert fpgas.programmings()[-1] == "done"


def test_what_another_guest_had_left_is_nothing_that_a_guest_has_to_have(fpgas):
    upload(fpgas)
    fpgas.plug(1, function_id=GZIP)
    fpgas.unplug(1)
    first = fpgas.plug(2)
    fpgas.kernel.reboot()
    fpgas.restart()
    assert fpgas.manager.plug(instance(2), None, None) == first
    assert held(fpgas) == POWER_ON


@pytest.mark.parametrize("who", ["fpgas", "ports"])
def test_what_the_host_has_bound_to_vfio_at_boot_is_read_all_the_same(request, who):
    """vfio-pci's ids or driverctl bind the function before any guest uses it."""
    bench: TestHost = request.getfixturevalue(who)
    place = CARD if who == "fpgas" else VF
    upload(bench)
    first = bench.plug(1, place, function_id=GZIP)
    reboot_to_vfio(bench, place)
    assert bench.manager.plug(instance(1), None, None) == first
    assert bench.kernel.held_by_hardware(CARD)[0] == GZIP


def test_a_service_that_dies_over_that_does_it_again(fpgas):
    upload(fpgas)
    fpgas.plug(1, function_id=GZIP)
    reboot_to_vfio(fpgas, CARD)
    fpgas.kernel.fail_programming(CARD, "reconfig CRC error")
    with pytest.raises(exception.ProgrammingFailed):
        fpgas.manager.plug(instance(1), None, None)
    fpgas.bind(CARD, "vfio-pci")
    fpgas.restart()
    fpgas.manager.plug(instance(1), None, None)
    assert held(fpgas) == GZIP


def test_what_the_host_has_given_to_the_guest_at_boot_is_told(fpgas):
    upload(fpgas)
    fpgas.plug(1, function_id=GZIP)
    reboot_to_vfio(fpgas, CARD)
    fpgas.kernel.hold(CARD)
    with pytest.raises(exception.DeviceInUse):
        fpgas.manager.plug(instance(1), None, None)
    assert held(fpgas) == POWER_ON


def test_after_a_reboot_a_leased_region_is_not_told_of(ports):
    upload(ports)
    ports.plug(1, VF, function_id=GZIP)
    ports.kernel.reboot()
    ports.restart()
    assert function_trait(GZIP) not in traits(ports, VF)
    ports.manager.plug(instance(1), None, None)
    assert function_trait(GZIP) in traits(ports, VF)


def test_a_region_is_not_emptied_under_a_guest_that_has_started(two_functions):
    for number in (1, 2):
        two_functions.plug(number, PCI_A, function_id=GZIP)
    two_functions.kernel.reboot()
    acme_card.hold(two_functions, POWER_ON)
    two_functions.restart()
    two_functions.manager.plug(instance(1), None, None)
    assert acme_card.held(two_functions) == GZIP
    acme_card.hold(two_functions, CRYPTO)
    with raises(exception.RegionReason.IN_USE, match=uuid_of(1)):
        two_functions.manager.plug(instance(2), None, None)


def reboot_to_vfio(bench: TestHost, address: str) -> None:
    bench.kernel.reboot()
    bench.restart()
    bench.manager.providers()
    bench.bind(address, "vfio-pci")


def test_after_a_power_cut_nobody_need_answer_for_what_is_in_the_cache(fpgas):
    image = upload(fpgas)
    fpgas.plug(1, bitstream_id=image)
    fpgas.kernel.reboot()
    for file in fpgas.images.path.iterdir():
        file.unlink()
    fpgas.restart()
    assert len(fpgas.manager.plug(instance(1), None, None)) == 1
    assert held(fpgas) == GZIP


def test_what_is_nowhere_any_more_is_told(fpgas, tmp_path):
    image = upload(fpgas)
    fpgas.plug(1, bitstream_id=image)
    fpgas.kernel.reboot()
    for file in (
        *fpgas.images.path.iterdir(),
        *(tmp_path / "state/bitstreams").iterdir(),
    ):
        file.unlink()
    fpgas.restart()
    with pytest.raises(exception.ImageNotFound, match=image):
        fpgas.manager.plug(instance(1), None, None)
    assert fpgas.plugged(1) == [CARD]


def test_another_file_under_the_same_id_is_another_bitstream(fpgas):
    image = upload(fpgas)
    fpgas.plug(1, bitstream_id=image)
    fpgas.kernel.reboot()
    upload(fpgas, "gzip", CRYPTO, declared=CRYPTO, id=image)
    fpgas.restart()
    with raises(exception.ImageReason.INVALID):
        fpgas.manager.plug(instance(1), None, None)
    assert held(fpgas) == POWER_ON
