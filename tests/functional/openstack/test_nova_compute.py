# SPDX-License-Identifier: Apache-2.0

"""nova-compute, a process with the driver of os_acc, becomes a compute node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.functional.openstack.nova_cell import NovaCell
from tests.functional.openstack.placement import Placement


@pytest.fixture
def cell(placement: Placement, tmp_path: Path) -> Iterator[NovaCell]:
    """Yield a cell without a compute node."""
    cell = NovaCell(tmp_path, placement.cloud)
    with cell.running():
        yield cell
    # pytest shows it if the test has failed.
    print(cell.logs())
    if cell.compute_node:
        placement.remove(cell.compute_node)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, marks=pytest.mark.share(2, place=place))
        for place, program in enumerate(("nova-compute", "os-acc-nova-compute"))
    ],
)
def test_both_programs_start_nova_compute_with_the_driver(
    cell: NovaCell, placement: Placement, program: str
) -> None:
    compute = cell.nova_compute(program)
    # Nova creates the driver when the conductor answers, and this provider later.
    compute.wait(lambda: "Created resource provider record" in compute.log())
    log = compute.log()
    assert "Loading compute driver 'os_acc.LibvirtDriver'" in log
    assert "The virt driver is os_acc.nova.driver.LibvirtDriver" in log
    compute.wait(lambda: "VCPU" in placement.known(cell.compute_node).inventories)
