# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What the benchmark with many hosts counts: requests to the real Placement."""

from __future__ import annotations

import pytest

from benchmarks import placement as benchmark
from tests.functional.openstack.placement import Placement


@pytest.mark.parametrize(("hosts", "devices"), [(2, 2), (1, 64)])
def test_a_host_costs_a_listing_and_what_has_changed(
    placement: Placement, hosts: int, devices: int
) -> None:
    first, second, changed, last = benchmark.cycles(placement, hosts, devices)
    # Each is a provider with its inventories and traits; and there are the names.
    assert first.writes >= hosts * devices * 3
    for again in (second, last):
        assert (again.reads, again.writes) == (hosts, 0)
    assert (changed.reads, changed.writes) == (hosts, hosts)
    for cycle in (first, second, changed, last):
        assert cycle.refused == 0, str(cycle)
