# SPDX-License-Identifier: Apache-2.0

"""Pre-programmed functions (AFaaS): a function is offered again after a guest.

A guest that has a whole card can program it, so that the function that the card
reports afterwards proves nothing. A verified image, programmed again, does.
"""

from __future__ import annotations

import math

import pytest

from os_acc import exception
from os_acc.objects.pci import PciAddress
from os_acc.testing import HostSpec, TestHost, hosts, instance, request
from tests.expected_errors import raises
from tests.unit.fpga import (
    AT_RELEASE,
    CARD,
    CRYPTO,
    GZIP,
    POWER_ON,
    VF,
    be_a_guest,
    function_trait,
    held,
    in_time,
    is_unknown,
    traits,
    upload,
)

ADDRESS = PciAddress.parse(CARD)
TRAIT = function_trait(GZIP)
TAGGED = '{"address": "*:*:*.*", "trust_guest_contents": true}'


def pre_program(bench: TestHost) -> None:
    """Program the card for a tenant's later flavors, as an orchestrator does."""
    bench.plug(9, function_id=GZIP, attach_target="none")
    bench.unplug(9)
    assert TRAIT in traits(bench)


@pytest.fixture
def fpgas(make_fpgas):
    """Return the host with two cards of one region, one image, and one function."""
    bench = make_fpgas()
    upload(bench)
    pre_program(bench)
    return bench


@pytest.fixture
def restoring(make_fpgas):
    """Return the same host with ``reprogram_at_release``."""
    bench = make_fpgas(groups=AT_RELEASE)
    upload(bench)
    pre_program(bench)
    return bench


# -- by command ---------------------------------------------------------------


def test_a_pre_programmed_function_is_offered_again_after_a_guest(fpgas):
    be_a_guest(fpgas)
    assert TRAIT not in traits(fpgas)
    region = fpgas.manager.regions.program(ADDRESS, in_time())
    assert region.function_id == GZIP
    assert held(fpgas) == GZIP
    assert TRAIT in traits(fpgas)
    assert fpgas.drivers(CARD) == ["dfl-pci"]
    assert fpgas.manager.store.leases() == ()


def test_a_pre_programmed_function_is_offered_again_after_an_unplug_and_a_reboot(fpgas):
    be_a_guest(fpgas)
    fpgas.kernel.reboot()
    fpgas.restart()
    assert TRAIT not in traits(fpgas)
    fpgas.manager.regions.program(ADDRESS, in_time())
    assert TRAIT in traits(fpgas)
    assert held(fpgas) == GZIP


def test_a_guest_s_own_image_is_not_taken_for_the_recorded_one(fpgas):
    """The same id is no proof: the region is programmed, not only read."""
    be_a_guest(fpgas, GZIP)
    before = len(fpgas.programmings())
    fpgas.manager.regions.program(ADDRESS, in_time())
    assert len(fpgas.programmings()) == before + 1


def test_another_image_can_be_named(fpgas):
    upload(fpgas, "crypto", CRYPTO)
    be_a_guest(fpgas)
    fpgas.manager.regions.program(ADDRESS, in_time(), "crypto")
    assert function_trait(CRYPTO) in traits(fpgas)
    # It is the recorded image from now on.
    be_a_guest(fpgas)
    fpgas.manager.regions.program(ADDRESS, in_time())
    assert function_trait(CRYPTO) in traits(fpgas)


def test_without_a_recorded_image_one_has_to_be_named(make_fpgas):
    bench = make_fpgas()
    upload(bench)
    be_a_guest(bench)
    with raises(exception.RegionReason.UNKNOWN) as caught:
        bench.manager.regions.program(ADDRESS, in_time())
    assert "--image" in caught.value.hint
    bench.manager.regions.program(ADDRESS, in_time(), "gzip")
    assert TRAIT in traits(bench)


def test_a_region_in_a_guest_is_not_programmed(fpgas):
    fpgas.plug(1, CARD)
    before = fpgas.programmings()
    with raises(exception.RegionReason.IN_USE):
        fpgas.manager.regions.program(ADDRESS, in_time())
    assert fpgas.programmings() == before
    assert fpgas.plugged(1) == [CARD]


def test_a_region_is_named_by_its_function_if_its_card_has_several(ports):
    upload(ports)
    with pytest.raises(exception.InvalidInput) as caught:
        ports.manager.regions.program(ADDRESS, in_time(), "gzip")
    assert VF in caught.value.hint
    ports.manager.regions.program(PciAddress.parse(VF), in_time(), "gzip")
    assert TRAIT in traits(ports, VF)


def test_a_device_without_a_region_is_not_programmed(bench):
    with raises(exception.ObjectKind.DEVICE):
        bench.manager.regions.program(PciAddress.parse("0000:17:00.0"), in_time(), "x")


def test_a_region_that_cannot_be_programmed_says_so(make_fpgas):
    fixed = make_fpgas(HostSpec((hosts.dfl("0000:3b", reconfigurable=False),)))
    upload(fixed)
    with raises(exception.RegionReason.NOT_PROGRAMMABLE):
        fixed.manager.regions.program(ADDRESS, in_time(), "gzip")


def test_a_failed_programming_leaves_no_lease_and_no_trait(fpgas):
    be_a_guest(fpgas)
    fpgas.kernel.fail_programming(CARD, "reconfig CRC error")
    with raises(exception.ProgrammingReason.CRC):
        fpgas.manager.regions.program(ADDRESS, in_time())
    assert fpgas.manager.store.leases() == ()
    assert fpgas.drivers(CARD) == ["dfl-pci"]
    assert is_unknown(fpgas)
    # The recorded image is known all the same.
    fpgas.manager.regions.program(ADDRESS, in_time())
    assert TRAIT in traits(fpgas)


# -- at the release -------------------------------------------------------------


def test_a_release_programs_the_recorded_image_again(restoring):
    be_a_guest(restoring)
    # Nova's tree has the trait without another scan.
    newest = restoring.manager.catalog.snapshots.newest()
    assert any(TRAIT in each.provider.device.traits for each in newest)
    assert held(restoring) == GZIP
    assert TRAIT in traits(restoring)
    assert restoring.manager.store.leases() == ()


def test_a_release_after_a_reboot_programs_it_as_well(restoring):
    restoring.plug(1, CARD)
    restoring.kernel.program_as_guest(CARD, CRYPTO)
    restoring.kernel.reboot()
    restoring.restart()
    restoring.unplug(1)
    assert TRAIT in traits(restoring)


def test_a_release_leaves_a_card_without_a_recorded_image_alone(make_fpgas):
    bench = make_fpgas(groups=AT_RELEASE)
    upload(bench)
    be_a_guest(bench)
    assert bench.programmings() == []


def test_a_release_leaves_a_port_alone_that_its_guest_could_not_program(make_fpgas):
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO), vfs=2)
    bench = make_fpgas(
        HostSpec((card,)),
        device_spec=['{"address": "*:*:*.*", "num_vfs": 2}'],
        groups=AT_RELEASE,
    )
    upload(bench)
    bench.plug(1, VF, function_id=GZIP)
    bench.unplug(1)
    assert bench.programmings() == ["done"]
    assert TRAIT in traits(bench, VF)


def test_a_release_does_not_fail_because_the_image_is_gone(restoring, caplog):
    for file in [*restoring.images.path.iterdir(), *cached(restoring)]:
        file.unlink()
    be_a_guest(restoring)
    assert TRAIT not in traits(restoring)
    assert f"os-acc region program {CARD}" in caplog.text
    # The failure is not repeated.
    assert restoring.manager.regions.due(math.inf) == []


def test_a_release_reprograms_from_the_cache_while_the_source_is_down(restoring):
    for file in restoring.images.path.iterdir():
        file.unlink()
    be_a_guest(restoring)
    assert TRAIT in traits(restoring)


def test_a_release_does_not_fail_because_the_hardware_refuses(restoring, caplog):
    restoring.kernel.fail_programming(CARD, "reconfig CRC error")
    be_a_guest(restoring)
    assert TRAIT not in traits(restoring)
    assert "CRC" in caplog.text
    assert restoring.manager.store.leases() == ()
    # The next guest makes it due again.
    restoring.plug(2, CARD, function_id=GZIP)
    restoring.unplug(2)
    assert TRAIT in traits(restoring)


def test_a_release_that_has_no_time_left_leaves_it_to_the_service(restoring):
    restoring.restart(unplug_timeout=1.0)
    be_a_guest(restoring)
    assert TRAIT not in traits(restoring)
    for attempt in restoring.manager.retrier.retry():
        attempt.result(60)
    assert TRAIT in traits(restoring)
    assert restoring.manager.retrier.retry() == []


def test_without_the_option_nothing_is_programmed(fpgas):
    before = fpgas.programmings()
    be_a_guest(fpgas)
    assert fpgas.manager.regions.due(math.inf) == []
    assert fpgas.manager.retrier.retry() == []
    assert fpgas.programmings() == before


def cached(bench: TestHost) -> list:
    """Return the images in the cache of the host."""
    place = bench.directory / "state" / "bitstreams"
    return [each for each in place.iterdir() if each.is_file()]


# -- the tag, and the error -----------------------------------------------------


def test_a_tag_accepts_what_a_guest_left(make_fpgas):
    bench = make_fpgas(device_spec=[TAGGED])
    be_a_guest(bench, GZIP)
    assert TRAIT in traits(bench)
    plug_required(bench, 2)
    assert bench.plugged(2) == [CARD]
    assert bench.programmings() == []


def test_a_tag_does_not_spare_a_bitstream_request_the_programming(make_fpgas):
    bench = make_fpgas(device_spec=[TAGGED])
    upload(bench)
    be_a_guest(bench, GZIP)
    bench.plug(2, CARD, function_id=GZIP)
    assert bench.programmings() == ["done"]


def test_a_tag_does_not_accept_a_half_programmed_region(make_fpgas):
    bench = make_fpgas(device_spec=[TAGGED])
    upload(bench)
    bench.kernel.fail_programming(CARD, "reconfig CRC error")
    with pytest.raises(exception.ProgrammingFailed):
        bench.plug(1, CARD, function_id=GZIP)
    assert not any("_FUNCTION_" in each for each in traits(bench))


def test_the_error_names_the_ways(fpgas):
    """Placement may still have the trait when the flavor is scheduled."""
    be_a_guest(fpgas, GZIP)
    with raises(exception.RegionReason.MISMATCH) as caught:
        plug_required(fpgas, 2)
    for way in (
        f"os-acc region program {CARD}",
        "reprogram_at_release",
        "trust_guest_contents",
    ):
        assert way in caught.value.hint


def plug_required(bench: TestHost, number: int) -> None:
    """Plug the card with a flavor that requires the function by its trait."""
    selected, specs = request(bench.provider(CARD))
    specs[f"trait1:{TRAIT}"] = "required"
    bench.manager.plug(instance(number), selected, specs)
