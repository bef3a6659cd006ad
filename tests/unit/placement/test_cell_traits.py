# SPDX-License-Identifier: Apache-2.0

"""The NUMA cells of a device are traits of its provider."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc.objects.device import Device
from os_acc.placement import cell_traits
from tests.unit.placement import capacity_examples


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
def test_the_cells_of_the_accelerators_are_added(given: Device, cells: set[int]):
    traits = cell_traits.described(given).traits
    assert cell_traits.cells_of(traits) == cells
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
def test_no_other_trait_names_a_cell(trait: str):
    assert cell_traits.cells_of({trait}) == frozenset()
