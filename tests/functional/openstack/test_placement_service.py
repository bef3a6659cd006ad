# SPDX-License-Identifier: Apache-2.0

"""The lane's Placement is real: nested providers, candidates, errors."""

from __future__ import annotations

import pytest

from tests.functional.openstack.placement import NEWEST, Placement, Refused


def test_it_is_the_release_that_the_lane_names(placement: Placement) -> None:
    (version,) = placement.get("/")["versions"]

    assert (version["min_version"], version["max_version"]) == ("1.0", NEWEST)


def test_a_tree_of_three_levels_is_a_candidate_until_it_is_allocated(
    placement: Placement,
) -> None:
    root = placement.make("lane-node", inventories={"VCPU": 8})
    card = placement.make("lane-card", root, traits=("CUSTOM_LANE_CARD",))
    region = placement.make("lane-region", card, {"CUSTOM_LANE_FPGA": 1})
    query = "resources=VCPU:1,CUSTOM_LANE_FPGA:1"

    found = placement.candidates(query)
    consumer = placement.allocate({root: {"VCPU": 1}, region: {"CUSTOM_LANE_FPGA": 1}})

    assert set(found["allocation_requests"][0]["allocations"]) == {root, region}
    assert placement.candidates(query)["allocation_requests"] == []
    with pytest.raises(Refused):
        placement.remove(region)
    placement.free(consumer)
    placement.remove(region, card, root)
