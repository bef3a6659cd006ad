# SPDX-License-Identifier: Apache-2.0

"""The scheduler selects accelerators in the cells that Nova selects for a guest.

Two hosts have two NUMA cells and two GPUs each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.functional.nova import cloud as clouds
from tests.functional.nova import scheduled_cloud
from tests.functional.nova.cloud import FIRST, ONE, SECOND, TWO, Cloud
from tests.functional.nova.compute_nodes import GPUS, ComputeNode
from tests.functional.nova.scheduled_cloud import GROUP
from tests.unit import fpga

#: The cells of the GPUs of each host.
IN_BOTH = {FIRST: (0, 1), SECOND: (0, 1)}
IN_THE_OTHER = {FIRST: (1, 1), SECOND: (1, 1)}
ONE_CELL = ONE | {"hw:numa_nodes": "1", "accel1:numa_policy": "required"}


@pytest.fixture
def nodes(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Mapping[str, ComputeNode]]:
    """Yield the compute nodes; the parameter has the cells of their GPUs."""
    with scheduled_cloud.two_cells(tmp_path, request.param) as found:
        yield found


@pytest.fixture
def cloud(nodes: Mapping[str, ComputeNode]) -> Iterator[Cloud]:
    with clouds.started(scheduled_cloud.ScheduledServers, nodes) as found:
        found.nova.start_compute(FIRST)
        yield found


@pytest.fixture
def pair(cloud: Cloud) -> Cloud:
    """Start a second compute node."""
    cloud.nova.start_compute(SECOND)
    return cloud


@pytest.fixture
def without_filter(nodes: Mapping[str, ComputeNode]) -> Iterator[Cloud]:
    with clouds.started(
        scheduled_cloud.ScheduledServers, nodes, with_filter=False
    ) as found:
        found.nova.start_compute(FIRST)
        yield found


def check_local(cloud: Cloud, server: dict[str, Any], host: str = FIRST) -> int:
    """Check a guest whose accelerator is in its own cell; return the cell."""
    cloud.check_attached(server, 1, host)
    (cell,) = cloud.nova.cells_of(server)
    (gpu,) = cloud.nova.hostdevs(host, server)
    assert cloud.nodes[host].cell(gpu) == cell
    return cell


@pytest.mark.parametrize("nodes", [IN_THE_OTHER], indirect=True)
def test_without_the_filter_nova_chooses_the_wrong_cell(without_filter):
    without_filter.nova.create(ONE_CELL, state="ERROR")
    without_filter.check_free()


@pytest.mark.parametrize("nodes", [IN_THE_OTHER], indirect=True)
def test_a_required_guest_goes_to_the_cell_of_the_accelerators(cloud):
    assert check_local(cloud, cloud.nova.create(ONE_CELL)) == 1
    assert check_local(cloud, cloud.nova.create(ONE_CELL)) == 1


@pytest.mark.parametrize("nodes", [IN_BOTH], indirect=True)
def test_several_servers_of_one_request_get_accelerators_of_their_cells(cloud):
    servers = cloud.nova.create_several(ONE_CELL, 2)
    assert sorted(check_local(cloud, each) for each in servers) == [0, 1]


@pytest.mark.parametrize("nodes", [IN_BOTH], indirect=True)
def test_servers_of_one_request_share_a_host_without_cells(cloud):
    for server in cloud.nova.create_several(ONE, 2):
        cloud.check_attached(server, 1)


@pytest.mark.parametrize("nodes", [IN_THE_OTHER], indirect=True)
def test_a_guest_of_both_cells_has_any_accelerator(cloud):
    specs = ONE_CELL | {"hw:numa_nodes": "2"}
    (server,) = cloud.nova.create_several(specs, 1, vcpus=2)
    cloud.check_attached(server, 1)


@pytest.mark.parametrize("nodes", [{FIRST: (0, 1), SECOND: (1, 1)}], indirect=True)
def test_a_host_without_accelerators_in_one_cell_is_not_selected(pair):
    """Each host has both accelerators; only the second has them in one cell."""
    policies = {f"accel{suffix}:numa_policy": "required" for suffix in (1, 2)}
    server = pair.nova.create(TWO | policies | {"hw:numa_nodes": "1"})
    assert pair.nova.host_of(server) == SECOND
    pair.check_attached(server, 2, SECOND)
    assert pair.nova.cells_of(server) == [1]
    refused = pair.nova.create(TWO | policies | {"hw:numa_nodes": "1"}, state="ERROR")
    assert "No valid host" in refused["fault"]["message"]


@pytest.mark.parametrize("nodes", [IN_THE_OTHER], indirect=True)
def test_a_guest_that_moves_stays_beside_its_accelerator(pair):
    server = pair.nova.create(ONE_CELL, host=FIRST)
    pair.nova.migrate(server)
    assert check_local(pair, server, SECOND) == 1
    pair.nova.confirm(server)
    pair.nova.shelve(server)
    pair.nova.offload(server)
    pair.nova.stop_host(SECOND)
    pair.nova.unshelve(server)
    assert check_local(pair, server, FIRST) == 1


@pytest.mark.parametrize("nodes", [IN_THE_OTHER], indirect=True)
def test_without_an_answer_of_placement_the_claim_decides(cloud):
    with cloud.nova.summaries_refused() as refused:
        server = cloud.nova.create(ONE_CELL, state="ERROR")
        assert refused
        # Its group has no NUMA policy: the host serves it in any cell.
        cloud.check_attached(cloud.nova.create(ONE), 1)
    assert "retries" in server["fault"]["message"]


@pytest.mark.parametrize("nodes", [IN_BOTH], indirect=True)
@pytest.mark.parametrize(("multiplier", "expected"), [(1.0, SECOND), (-1.0, FIRST)])
def test_servers_with_accelerators_are_spread_or_packed(pair, multiplier, expected):
    pair.nova.flags(accelerator_weight_multiplier=multiplier, group=GROUP)
    pair.nova.create(ONE, host=FIRST)
    assert pair.nova.host_of(pair.nova.create(ONE)) == expected


# -- functions -----------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1])
def test_a_region_that_has_the_function_is_selected(tmp_path, place):
    """The other region can be programmed with this function."""
    functions = fpga.GZIP, fpga.CRYPTO
    specs = {
        "resources1:CUSTOM_ACCELERATOR_FPGA": "1",
        "accel1:function_id": functions[place],
    }
    with (
        scheduled_cloud.two_regions(tmp_path, functions) as nodes,
        clouds.started(scheduled_cloud.ScheduledServers, nodes) as cloud,
    ):
        for function in functions:
            fpga.upload(nodes[FIRST].bench, function, function)
        cloud.nova.start_compute(FIRST)
        server = cloud.nova.create(specs)
        assert cloud.nova.hostdevs(FIRST, server) == [GPUS[FIRST][place]]
