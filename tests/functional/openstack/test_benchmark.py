# SPDX-License-Identifier: Apache-2.0

"""The benchmark with many hosts counts its requests to the real Placement."""

from __future__ import annotations

import pytest

from benchmarks import placement as benchmark
from tests.functional.openstack.placement import Placement


@pytest.mark.parametrize(("hosts", "devices"), [(2, 2), (1, 64)])
def test_a_host_costs_a_listing_and_what_has_changed(
    placement: Placement, hosts: int, devices: int
) -> None:
    first, second, changed, last = benchmark.cycles(placement, hosts, devices)
    # A provider with its inventories and traits each; names are in addition.
    assert first.writes >= hosts * devices * 3
    for again in (second, last):
        assert (again.reads, again.writes) == (hosts, 0)
    assert (changed.reads, changed.writes) == (hosts, hosts)
    for cycle in (first, second, changed, last):
        assert cycle.refused == 0, str(cycle)
