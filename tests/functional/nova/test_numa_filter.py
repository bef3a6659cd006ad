# SPDX-License-Identifier: Apache-2.0

"""The manual's filter passes exactly the hosts that fit a guest."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from types import SimpleNamespace

import pytest
from nova import objects

from os_acc.numa.fit import convert
from os_acc.objects.numa import (
    InstanceNUMACell,
    InstanceNUMATopology,
    NUMACell,
    NUMALimits,
    NUMATopology,
)
from tests.functional.nova import numa_objects
from tests.functional.nova.numa_filter import ExactNUMAFilter
from tests.unit.numa import cases, oracle


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    objects.register_all()


def host_state(topology: NUMATopology, limits: NUMALimits) -> SimpleNamespace:
    return SimpleNamespace(
        numa_topology=numa_objects.host(topology),
        cpu_allocation_ratio=limits.cpu_allocation_ratio,
        ram_allocation_ratio=limits.ram_allocation_ratio,
    )


@pytest.mark.parametrize("seed", range(10))
def test_it_passes_where_some_permutation_does(seed: int) -> None:
    dice, counted = random.Random(seed), Counter[bool]()
    for _ in range(50):
        question = cases.question(dice, most_host=4)
        question = dataclasses.replace(
            question, limits=question.limits or NUMALimits(), requests=()
        )
        assert question.limits
        spec = objects.RequestSpec(
            numa_topology=numa_objects.guest(question.guest),
            network_metadata=convert.networks_to_nova(question.networks, objects),
        )
        passes = ExactNUMAFilter().host_passes(
            host_state(question.host, question.limits), spec
        )
        assert passes is (next(oracle.answers(question), None) is not None)
        counted[passes] += 1
    assert counted[True]
    assert counted[False]


def test_a_guest_without_cells_passes_anywhere() -> None:
    spec = objects.RequestSpec(numa_topology=None)
    state = SimpleNamespace(
        numa_topology=None, cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0
    )
    assert ExactNUMAFilter().host_passes(state, spec)


def test_where_it_is_not_found_out_the_claim_decides() -> None:
    many = tuple(NUMACell(cell, frozenset({cell}), memory=64) for cell in range(17))
    # The host has one cell less: only the bound prevents a rejection.
    cells = (InstanceNUMACell(frozenset({0}), memory=1),) * 18
    guest = InstanceNUMATopology(cells)
    spec = objects.RequestSpec(numa_topology=numa_objects.guest(guest))
    assert ExactNUMAFilter().host_passes(
        host_state(NUMATopology(many), NUMALimits()), spec
    )
