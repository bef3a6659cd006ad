# SPDX-License-Identifier: Apache-2.0

"""Nova's own tests for PCI, VDPA, vGPU and NUMA pass with the driver of os_acc."""

from __future__ import annotations

from pathlib import Path

import pytest

from os_acc.nova.driver import LibvirtDriver
from tests.functional.nova import nova_suites
from tests.run_figures import note

SUBJECTS = nova_suites.subjects()
#: The tests whose request Nova's API rejects: they start no compute service.
WITHOUT_COMPUTE: frozenset[str] = frozenset()


# pytest numbers long values by default.
@pytest.mark.parametrize("name", SUBJECTS, ids=list(SUBJECTS))
def test_it_passes_with_our_driver(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = nova_suites.run(name, tmp_path)
    assert not run.failures, "\n".join(run.failures)
    assert set(run.drivers) == (set() if name in WITHOUT_COMPUTE else {LibvirtDriver})
    note(request.node, f"Nova's own tests: {SUBJECTS[name]}", 1)
    note(request.node, "Nova's own tests: drivers loaded", len(run.drivers))
