# SPDX-License-Identifier: Apache-2.0

"""Traits that follow from the NUMA cells and the region of a device."""

import dataclasses

import pytest

from os_acc.objects.device import Device
from os_acc.objects.records import RecordedState
from os_acc.placement import device_traits
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


def device(*nodes: int | None, own: int | None = None) -> Device:
    """Return a device with an accelerator on each of these nodes."""
    found = capacity_examples.provider(
        1, *(capacity_examples.handle(number) for number in range(len(nodes)))
    ).device
    handles = tuple(
        dataclasses.replace(handle, numa_node=node)
        for handle, node in zip(found.handles, nodes, strict=True)
    )
    return dataclasses.replace(
        found, handles=handles, numa_node=own, traits=frozenset({"CUSTOM_GOLD"})
    )


@pytest.mark.parametrize(
    ("given", "cells"),
    [
        (device(0), {0}),
        (device(1, 1), {1}),
        (device(1, None, 0), {0, 1}),
        (device(None), set()),
        (device(own=3), {3}),
        (device(10), {10}),
    ],
)
def test_the_cells_of_the_accelerators_are_added(given, cells):
    traits = device_traits.described(given, RecordedState()).traits
    assert device_traits.cells_of(traits) == cells
    assert traits - {"CUSTOM_GOLD"} == {f"CUSTOM_NUMA_CELL_{cell}" for cell in cells}


@pytest.mark.parametrize(
    "trait",
    [
        "CUSTOM_NUMA_CELL_",
        "CUSTOM_NUMA_CELL_A",
        "CUSTOM_NUMA_CELL_01",
        "CUSTOM_NUMA_CELL_1_2",
        "CUSTOM_NUMA_CELL_1234567890",
        "HW_NUMA_ROOT",
    ],
)
def test_no_other_trait_names_a_cell(trait):
    assert device_traits.cells_of({trait}) == frozenset()


# -- regions -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("takes", "holds", "ours"),
    [
        pytest.param(
            ANY, ANY, {FUNCTION, CYBORGS, device_traits.PROGRAMMABLE}, id="both"
        ),
        pytest.param(
            ANY, None, {FUNCTION, CYBORGS, device_traits.PROGRAMMABLE}, id="silent"
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
    traits = {FUNCTION, CYBORGS, device_traits.PROGRAMMABLE} | OTHERS
    assert device_traits.published_of(device, traits) == ours


def test_of_what_is_no_region_nothing_is():
    device = capacity_examples.provider(1, capacity_examples.handle(1)).device
    assert not device_traits.published_of(
        device, {FUNCTION, device_traits.PROGRAMMABLE}
    )
