# SPDX-License-Identifier: Apache-2.0

"""One Keystone, Glance and Placement for all tests of the lane."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.bitstreams.glance import Glance
from tests.functional.openstack.cloud import Cloud
from tests.functional.openstack.placement import Placement
from tests.functional.openstack.placement_site import Site

_CLOUD = pytest.StashKey[Cloud]()


@pytest.fixture(scope="session")
def cloud(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    """Yield running Keystone and Glance; a test that stops one starts it again."""
    made = Cloud(tmp_path_factory.mktemp("cloud"))
    request.config.stash[_CLOUD] = made
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def placement(cloud: Cloud) -> Placement:
    """Return a running Placement, as its administrator."""
    cloud.placement.start()
    return Placement(cloud)


@pytest.fixture
def site(placement: Placement, tmp_path: Path) -> Iterator[Site]:
    """Yield a host for one test, with a compute node of its own in Placement."""
    with Site(tmp_path, placement) as site:
        yield site


@pytest.fixture
def function() -> str:
    """Return the id of a function that no other test has."""
    return str(uuid.uuid4())


@pytest.fixture
def source(cloud: Cloud) -> Glance:
    """Return a client of Glance as the library's user, without any earlier request."""
    return Glance(cloud.conf())


@pytest.fixture
def soon() -> float:
    """Return a deadline that no test reaches on a slow machine."""
    return time.monotonic() + 300.0


@pytest.fixture(scope="session")
def large() -> bytes:
    """Return more data than all buffers hold: Glance ends before it is sent."""
    return random.Random(4).randbytes(96 * 2**20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:
    report = yield
    if report.failed and (cloud := item.config.stash.get(_CLOUD, None)) is not None:
        report.sections.append(("what the services said", cloud.logs()))
    return report
