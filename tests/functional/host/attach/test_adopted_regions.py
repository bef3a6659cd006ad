# SPDX-License-Identifier: Apache-2.0

"""The region of a device that an operator has adopted for its guest."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.objects.lease import Lease
from os_acc.objects.pci import PciAddress
from os_acc.testing import TestHost, uuid_of
from tests.functional.host.attach.test_lost_store import lose
from tests.functional.host.attach.test_rebuild import (
    images_of,
    leases,
    plug,
    refuse,
    start,
    vm_image,
)
from tests.unit import acme_card
from tests.unit.acme_card import PCI_A, PF
from tests.unit.fpga import CARD, CRYPTO, GZIP, function_trait, held, traits


def adopt(host: TestHost, address: str) -> Lease:
    """Lose the records of the guest's device, and adopt it again."""
    lose(host)
    place = PciAddress.parse(address)
    return operator_actions.adopt_device(host.manager, place, uuid_of(1), None)


@pytest.fixture
def adopted(fpgas) -> dict[str, str]:
    """Adopt a whole card, whose region only its guest can read; return images."""
    images = images_of(fpgas) | {"plain": vm_image(fpgas, "plain")}
    plug(fpgas, images[GZIP])
    adopt(fpgas, CARD)
    return images


def test_a_rebuild_does_not_confirm_an_adopted_card_of_unknown_contents(fpgas, adopted):
    for function in (GZIP, CRYPTO):
        error = refuse(fpgas, exception.RegionReason.UNKNOWN, adopted[function])
        assert "unplug" in error.hint
        fpgas.restart()
    fpgas.unplug(1)
    (entry,) = plug(fpgas, adopted[CRYPTO])
    assert entry["function_id"] == held(fpgas) == CRYPTO


@pytest.mark.parametrize("image", ["plain", ""])
def test_a_guest_without_a_request_keeps_its_adopted_card(fpgas, adopted, image):
    (entry,) = start(fpgas, adopted.get(image, ""))
    assert entry["pci_id"] == CARD
    assert held(fpgas) == GZIP


@pytest.mark.parametrize("restart", [False, True])
def test_no_function_that_the_guest_of_an_adopted_card_left_is_published(
    fpgas, adopted, restart
):
    fpgas.kernel.program_as_guest(CARD, CRYPTO)
    if restart:
        fpgas.restart()
    fpgas.unplug(1)
    assert not [each for each in traits(fpgas) if "_FUNCTION_" in each]
    # A verified image makes the function known again.
    fpgas.plug(2, function_id=GZIP, attach_target="none")
    fpgas.unplug(2)
    assert function_trait(GZIP) in traits(fpgas)


def test_a_rebuild_programs_the_region_of_an_adopted_pci_function(two_functions):
    """The host reads this region while guests use it."""
    images = {
        function: vm_image(two_functions, f"vm-{function}", function_id=function)
        for function in (GZIP, CRYPTO)
    }
    first = plug(two_functions, images[GZIP], PF)
    lease = adopt(two_functions, PCI_A)
    assert lease.programming is not None
    assert lease.guest_writable is None
    assert start(two_functions, images[CRYPTO])[0]["pci_id"] == first[0]["pci_id"]
    assert acme_card.held(two_functions) == CRYPTO
    (lease,) = leases(two_functions)
    assert lease.programming is not None
    assert lease.programming.function_id == CRYPTO
    assert lease.guest.image_id == images[CRYPTO]


def test_a_device_without_a_region_is_adopted_without_one(bench):
    bench.plug(1, "0000:17:00.0")
    adopt(bench, "0000:17:00.0")
    (lease,) = leases(bench)
    assert lease.programming is None
    assert not lease.has_unknown_region
    unseen = "11111111-2222-4333-8444-555555555555"
    assert start(bench, unseen)[0]["pci_id"] == "0000:17:00.0"
    assert not bench.manager.store.recorded_state().unverified_regions.guest_writable
