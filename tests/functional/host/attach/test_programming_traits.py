# SPDX-License-Identifier: Apache-2.0

"""A guest's region has the traits that its flavor requires."""

from __future__ import annotations

from typing import Any

import pytest

from os_acc import exception
from os_acc.testing import TestHost, instance, request
from tests.expected_errors import Expected, raises
from tests.functional.host.attach.test_rebuild import vm_image
from tests.unit import acme_card
from tests.unit.acme_card import PCI_A
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    INTERFACE,
    POWER_ON,
    cyborgs_trait,
    function_trait,
    held,
    region_trait,
    upload,
)


def plug(
    bench: TestHost,
    trait: str,
    image: str = "",
    address: str = CARD,
    **requested: str,
) -> list[Any]:
    """Plug one function of a region with this trait, also if Placement lacks it."""
    selected, specs = request(bench.provider(address))
    specs |= {f"trait1:{trait}": "required"}
    specs |= {f"accel1:{name}": value for name, value in requested.items()}
    instance_info = instance(1) | ({"image_id": image} if image else {})
    return bench.manager.plug(instance_info, selected, specs)


def refuse(bench: TestHost, error: Expected, *asked: str) -> Any:
    with raises(error) as caught:
        plug(bench, *asked)
    assert bench.manager.store.leases() == ()
    assert bench.programmings() == []
    return caught.value


@pytest.mark.parametrize(
    "trait",
    [function_trait(POWER_ON), cyborgs_trait(POWER_ON), region_trait(INTERFACE)],
)
def test_a_region_that_has_what_is_required_is_given_out(fpgas, trait):
    (entry,) = plug(fpgas, trait)
    assert entry["pci_id"] == CARD
    assert fpgas.programmings() == []


@pytest.mark.parametrize("trait", [function_trait(GZIP), cyborgs_trait(GZIP)])
def test_a_function_that_has_gone_is_not_handed_out_as_another(fpgas, trait):
    """The function was lost, by a power cut or another plug, after its publication."""
    error = refuse(fpgas, exception.RegionReason.MISMATCH, trait)
    assert POWER_ON in str(error)
    assert error.retryable


def test_a_region_that_takes_something_else_is_not_handed_out(fpgas):
    refuse(fpgas, exception.RegionReason.MISMATCH, region_trait(CRYPTO))


def test_a_function_that_a_guest_could_replace_is_not_handed_out(fpgas):
    fpgas.plug(2)
    fpgas.unplug(2)
    refuse(fpgas, exception.RegionReason.MISMATCH, function_trait(POWER_ON))


def test_the_image_of_the_guest_does_not_replace_what_the_flavor_requires(fpgas):
    upload(fpgas)
    image = vm_image(fpgas, "vm", **{"accel:function_id": GZIP})
    refuse(fpgas, exception.InvalidExtraSpec, function_trait(POWER_ON), image)
    assert held(fpgas) == POWER_ON


def test_a_flavor_that_requires_one_function_and_names_another_is_refused(fpgas):
    upload(fpgas)
    with pytest.raises(exception.InvalidExtraSpec, match="FUNCTION"):
        plug(fpgas, function_trait(POWER_ON), function_id=GZIP)
    assert held(fpgas) == POWER_ON


def test_a_flavor_may_require_the_function_that_it_names(fpgas):
    upload(fpgas)
    plug(fpgas, function_trait(GZIP), function_id=GZIP)
    assert held(fpgas) == GZIP


def test_a_guest_starts_again_with_the_function_that_its_flavor_requires(two_functions):
    first = plug(two_functions, acme_card.trait_of(POWER_ON), address=PCI_A)
    two_functions.kernel.reboot()
    acme_card.hold(two_functions, POWER_ON)
    two_functions.restart()
    assert two_functions.manager.plug(instance(1), None, None) == first
    two_functions.kernel.reboot()
    acme_card.hold(two_functions, GZIP)
    two_functions.restart()
    with raises(exception.ProgrammingReason.WRONG_FUNCTION, match=POWER_ON):
        two_functions.manager.plug(instance(1), None, None)


def test_what_no_flavor_requires_changes_no_request_that_is_recorded(fpgas):
    (entry,) = fpgas.plug(1)
    selected, specs = request(fpgas.provider(CARD))
    specs["trait1:CUSTOM_FPGA_INTEL"] = "required"
    assert fpgas.manager.plug(instance(1), selected, specs) == [entry]
    with raises(exception.ConflictReason.CONSUMER):
        plug(fpgas, function_trait(GZIP))
