# SPDX-License-Identifier: Apache-2.0

"""No other guest gets a region while a rebuild of its guest is not complete."""

from __future__ import annotations

from typing import Any

import pytest

from os_acc import exception
from os_acc.attach.lifecycle import Lifecycle
from os_acc.objects.lease import LeaseState
from os_acc.testing import TestHost, uuid_of
from tests.expected_errors import raises
from tests.functional.host.attach.test_rebuild import kill, plug, start, vm_images
from tests.unit import acme_card
from tests.unit.acme_card import PCI_A, PCI_B, PF, by_trait, published
from tests.unit.fpga import CRYPTO, GZIP


@pytest.fixture
def images(two_functions) -> dict[str, str]:
    """Let a guest have one function of the region; return images that request it."""
    found = vm_images(two_functions)
    plug(two_functions, found[GZIP], PF)
    assert published(two_functions) == {GZIP}
    return found


def as_it_is(host: TestHost, number: int, _function: str) -> list[Any]:
    return host.plug(number, PF)


def by_id(host: TestHost, number: int, function: str) -> list[Any]:
    return host.plug(number, PF, function_id=function)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("way", [as_it_is, by_id, by_trait])
@pytest.mark.parametrize("function", [GZIP, CRYPTO])
def test_a_region_of_a_rebuild_that_was_killed_is_not_given_to_another_guest(
    two_functions, images, restart, way, function
):
    kill(two_functions, images[CRYPTO])
    if restart:
        two_functions.restart()
    assert published(two_functions) == set()
    state = two_functions.kernel.snapshot(), two_functions.manager.store.leases()
    with raises(exception.RegionReason.IN_USE, match=uuid_of(1)):
        way(two_functions, 2, function)
    now = two_functions.kernel.snapshot(), two_functions.manager.store.leases()
    assert now == state
    # The rebuild is finished, and its region given to others again.
    (entry,) = start(two_functions)
    assert entry["function_id"] == CRYPTO
    assert acme_card.held(two_functions) == CRYPTO
    assert published(two_functions) == {CRYPTO}
    (entry,) = by_trait(two_functions, 2, CRYPTO)
    assert entry["pci_id"] == PCI_B


def test_a_plug_during_a_rebuild_does_not_get_its_region(
    two_functions, images, monkeypatch
):
    """The card is not locked between the record and the programming."""
    reestablish = Lifecycle.reestablish

    def beside(self, leases, deadline):
        with raises(exception.RegionReason.IN_USE, match=uuid_of(1)):
            by_trait(two_functions, 2, GZIP)
        return reestablish(self, leases, deadline)

    with monkeypatch.context() as patch:
        patch.setattr(Lifecycle, "reestablish", beside)
        (entry,) = start(two_functions, images[CRYPTO])
    assert (entry["pci_id"], entry["function_id"]) == (PCI_A, CRYPTO)
    assert published(two_functions) == {CRYPTO}


def test_a_rebuild_that_failed_publishes_no_function(two_functions, images):
    two_functions.kernel.fail(PCI_A, "drivers_probe")
    with pytest.raises(exception.OsAccError):
        start(two_functions, images[CRYPTO])
    (capacity,) = two_functions.manager.catalog.snapshots.newest()
    assert not [
        each for each in capacity.provider.device.traits if "_FUNCTION_" in each
    ]
    start(two_functions, images[CRYPTO])
    assert published(two_functions) == {CRYPTO}


def test_a_killed_rebuild_of_a_guest_that_is_released_frees_its_region(
    two_functions, images
):
    kill(two_functions, images[CRYPTO])
    two_functions.kernel.hold(PCI_A)
    with pytest.raises(exception.DevicesUnreleased):
        two_functions.unplug(1)
    assert two_functions.lease_state(1) is not LeaseState.HELD
    (entry,) = by_trait(two_functions, 2, GZIP)
    assert entry["pci_id"] == PCI_B
