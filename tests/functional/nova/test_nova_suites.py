# SPDX-License-Identifier: Apache-2.0

"""Nova's own tests pass with the driver of os_acc as with Nova's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nova.virt.libvirt import driver

from os_acc.nova.driver import LibvirtDriver
from tests.functional.nova import nova_suites
from tests.run_figures import note

#: A share takes less than three minutes.
DIVISOR = 12
#: Few: with its own driver, Nova runs them itself.
STOCK_DIVISOR = 120
#: The tests that Nova skips with every driver, and its reason.
EXCEPTIONS = {
    "libvirt.test_numa_servers.NUMAServersWithNetworksTest"
    ".test_attach_interface_with_network_affinity_violation": "bug 1855332",
}
#: The tests whose request Nova's API rejects: they start no compute service.
WITHOUT_COMPUTE = {
    "libvirt.test_rt_servers.RealTimeServersTest.test_no_dedicated_cpu",
    "libvirt.test_rt_servers.RealTimeServersTest.test_no_realtime_mask",
    "regressions.test_bug_2102038.MultipleSpecPerAliasWithPCIInPlacementTest"
    ".test_alias_with_multiple_specs_not_supported",
    "regressions.test_bug_2111440.MissingRCAndIdAliasWithPCIInPlacementTest"
    ".test_alias_without_rc_or_vendor_product_id_is_not_supported",
}
SUBJECTS = nova_suites.subjects()


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory outside /dev, where pytest's may be.

    Nova's tests with LVM replace ``os.path.exists`` there.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        yield Path(path)


def each_test(divisor: int) -> list[Any]:
    return [
        # Similar tests follow each other: the places spread them evenly.
        pytest.param(name, id=name, marks=pytest.mark.share(divisor, place=place))
        for place, name in enumerate(SUBJECTS)
        if name not in EXCEPTIONS
    ]


def check(run: nova_suites.Run, name: str, driver: type) -> None:
    """Check that a test has passed with this driver."""
    if run.failures:
        pytest.fail("\n".join(run.failures), pytrace=False)
    assert run.skipped == ()
    assert set(run.drivers) == (set() if name in WITHOUT_COMPUTE else {driver})


@pytest.mark.parametrize("name", each_test(DIVISOR))
def test_it_passes_with_our_driver(name, directory, request):
    run = nova_suites.run(name, directory)
    check(run, name, LibvirtDriver)
    note(request.node, f"Nova's own tests: {SUBJECTS[name]}", 1)
    note(request.node, "Nova's own tests: drivers loaded", len(run.drivers))


@pytest.mark.parametrize("name", each_test(STOCK_DIVISOR))
def test_it_passes_with_novas_driver(name, request):
    check(nova_suites.run(name), name, driver.LibvirtDriver)
    note(request.node, f"Nova's own tests, Nova's driver: {SUBJECTS[name]}", 1)


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_an_exception_still_applies(name, directory):
    for place in (directory, None):
        assert nova_suites.run(name, place).skipped == (EXCEPTIONS[name],)
