# SPDX-License-Identifier: Apache-2.0

"""The claim of a guest is bound to host cells by Nova's own function."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from nova import objects
from nova.virt import hardware

from os_acc.nova import scheduling

_CPUS = 8


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    objects.register_all()


def host(cells: int, networks: Mapping[int, str] | None = None) -> objects.NUMATopology:
    """Return a host with this number of cells, each with eight CPUs for pinning.

    :param networks: the physical network of cells.
    """
    networks = networks or {}
    topology = objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=number,
                cpuset=set(),
                pcpuset=_cpus(number),
                memory=4096,
                cpu_usage=0,
                memory_usage=0,
                pinned_cpus=set(),
                siblings=[{cpu} for cpu in _cpus(number)],
                mempages=[
                    objects.NUMAPagesTopology(
                        size_kb=4, total=1 << 20, used=0, reserved=0
                    )
                ],
                socket=number,
                network_metadata=objects.NetworkMetadata(
                    physnets={networks[number]} if number in networks else set(),
                    tunneled=False,
                ),
            )
            for number in range(cells)
        ]
    )
    scheduling.declare_cell_networks(topology)
    return topology


def _cpus(cell: int) -> set[int]:
    return set(range(cell * _CPUS, (cell + 1) * _CPUS))


def guest(cells: int) -> objects.InstanceNUMATopology:
    """Return a guest with this number of cells, each with two pinned CPUs."""
    return objects.InstanceNUMATopology(
        cells=[
            objects.InstanceNUMACell(
                id=number,
                cpuset=set(),
                pcpuset={2 * number, 2 * number + 1},
                memory=1024,
                cpu_policy="dedicated",
            )
            for number in range(cells)
        ]
    )


@pytest.mark.parametrize(("cells", "parts"), [(2, 1), (3, 2), (4, 2), (4, 3)])
def test_a_fit_includes_the_cells_and_can_be_claimed(cells, parts):
    limits = objects.NUMATopologyLimits(
        cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0
    )
    found = 0
    for number in range(1, parts + 1):
        for wanted in itertools.combinations(range(cells), number):
            bound = scheduling.bound_to_cells(limits, wanted)
            fit = scheduling.fit_cells(
                host(cells), guest(parts), provider_mapping=None, limits=bound
            )
            if fit is None:
                continue
            found += 1
            assert set(fit) >= set(wanted)
            claimed = hardware.numa_fit_instance_to_host(
                host(cells), guest(parts), provider_mapping=None, limits=bound
            )
            assert tuple(cell.id for cell in claimed.cells) == fit
            hardware.numa_usage_from_instance_numa(host(cells), claimed)
    assert found >= cells


def test_a_fit_with_the_pinned_cpus_of_another_cell_is_none():
    """Nova's claim would raise CPUPinningUnknown, and no other host be tried."""
    limits = objects.NUMATopologyLimits(
        cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0
    )
    bound = scheduling.bound_to_cells(limits, {1, 3})
    criteria = {"provider_mapping": None, "limits": bound}
    assert scheduling.fit_cells(host(4), guest(2), **criteria) is None


@pytest.mark.parametrize(
    ("cells", "expected"), [({0}, (0, 2)), ({2}, (0, 2)), ({1}, (1, 2)), ({0, 1}, None)]
)
def test_the_networks_of_the_guest_and_the_cells_both_hold(cells, expected):
    limits = objects.NUMATopologyLimits(
        cpu_allocation_ratio=1.0,
        ram_allocation_ratio=1.0,
        network_metadata=objects.NetworkMetadata(physnets={"data"}, tunneled=False),
    )
    fit = scheduling.fit_cells(
        host(3, {2: "data"}),
        guest(2),
        provider_mapping=None,
        limits=scheduling.bound_to_cells(limits, cells),
    )
    assert (fit and tuple(sorted(fit))) == expected
    assert limits.network_metadata.physnets == {"data"}
