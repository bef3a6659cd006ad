# SPDX-License-Identifier: Apache-2.0

"""Nova's own tests for PCI, VDPA, vGPU and NUMA pass with the driver of os_acc."""

from __future__ import annotations

from pathlib import Path

import pytest

from os_acc.nova.driver import LibvirtDriver
from tests.functional.nova import nova_suites
from tests.run_figures import note

#: A share takes less than three minutes.
DIVISOR = 12
#: The tests that Nova skips with every driver, and its reason.
EXCEPTIONS = {
    "libvirt.test_numa_servers.NUMAServersWithNetworksTest"
    ".test_attach_interface_with_network_affinity_violation": "bug 1855332",
}
#: The tests whose request Nova's API rejects: they start no compute service.
WITHOUT_COMPUTE = {
    "regressions.test_bug_2102038.MultipleSpecPerAliasWithPCIInPlacementTest"
    ".test_alias_with_multiple_specs_not_supported",
    "regressions.test_bug_2111440.MissingRCAndIdAliasWithPCIInPlacementTest"
    ".test_alias_without_rc_or_vendor_product_id_is_not_supported",
}
SUBJECTS = nova_suites.subjects()


@pytest.mark.parametrize(
    "name",
    [
        # Similar tests follow each other: the places spread them evenly.
        pytest.param(name, id=name, marks=pytest.mark.share(DIVISOR, place=place))
        for place, name in enumerate(SUBJECTS)
        if name not in EXCEPTIONS
    ],
)
def test_it_passes_with_our_driver(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = nova_suites.run(name, tmp_path)
    if run.failures:
        pytest.fail("\n".join(run.failures), pytrace=False)
    assert run.skipped == ()
    assert set(run.drivers) == (set() if name in WITHOUT_COMPUTE else {LibvirtDriver})
    note(request.node, f"Nova's own tests: {SUBJECTS[name]}", 1)
    note(request.node, "Nova's own tests: drivers loaded", len(run.drivers))


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_an_exception_still_applies(name: str, tmp_path: Path) -> None:
    assert nova_suites.run(name, tmp_path).skipped == (EXCEPTIONS[name],)
