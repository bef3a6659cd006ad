# SPDX-License-Identifier: Apache-2.0

"""Without a record, os_acc owns the traits that it could publish of a region."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc.placement import region_traits
from os_acc.testing import uuid_of
from tests.unit.placement import capacity_examples

FUNCTION = "CUSTOM_FPGA_INTEL_FUNCTION_3A7AB2F4_4F15_4D36_9C2E_0B6A3D0D6F01"
CYBORGS = "CUSTOM_FPGA_FUNCTION_ID_INTEL_3A7AB2F44F154D369C2E0B6A3D0D6F01"
OTHERS = frozenset(
    {
        "CUSTOM_FPGA_XILINX_FUNCTION_3A7AB2F4_4F15_4D36_9C2E_0B6A3D0D6F01",
        "CUSTOM_FPGA_INTEL_FUNCTION_OF_OURS",
        "CUSTOM_GOLD",
    }
)
ANY = uuid_of(73)


@pytest.mark.parametrize(
    ("takes", "holds", "ours"),
    [
        pytest.param(
            ANY, ANY, {FUNCTION, CYBORGS, region_traits.PROGRAMMABLE}, id="both"
        ),
        pytest.param(
            ANY, None, {FUNCTION, CYBORGS, region_traits.PROGRAMMABLE}, id="silent"
        ),
        pytest.param(None, ANY, {FUNCTION, CYBORGS}, id="fixed"),
        pytest.param(None, None, set(), id="fixed-and-silent"),
    ],
)
def test_only_what_can_be_said_of_a_region_is_ours_without_a_record(takes, holds, ours):
    device = capacity_examples.region(1, ANY).device
    assert device.region is not None
    found = dataclasses.replace(device.region, interface_id=takes, function_id=holds)
    device = dataclasses.replace(device, region=found)
    traits = {FUNCTION, CYBORGS, region_traits.PROGRAMMABLE} | OTHERS
    assert region_traits.published_of(device, traits) == ours


def test_of_what_is_no_region_nothing_is():
    device = capacity_examples.provider(1, capacity_examples.handle(1)).device
    assert not region_traits.published_of(
        device, {FUNCTION, region_traits.PROGRAMMABLE}
    )
