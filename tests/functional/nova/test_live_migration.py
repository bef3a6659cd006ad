# SPDX-License-Identifier: Apache-2.0

"""Running guests move to another host with their accelerators, or stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.functional.nova import mdev_hosts
from tests.functional.nova.mdev_hosts import PARENTS, MdevCloud
from tests.functional.nova.test_driver_mdevs import ONE, TWO, nova_creates_none

mdev_nodes, mdev_cloud = mdev_hosts.mdev_nodes, mdev_hosts.mdev_cloud

FIRST, SECOND = PARENTS


@pytest.fixture
def pair(mdev_cloud: MdevCloud) -> Iterator[MdevCloud]:
    """Start Nova with two compute nodes; it must not create a mediated device."""
    with nova_creates_none():
        mdev_cloud.nova.flags(live_migration_permit_post_copy=False, group="libvirt")
        for host in PARENTS:
            mdev_cloud.start(host)
        yield mdev_cloud


@pytest.fixture(params=[ONE, TWO], ids=["one", "two"])
def server(pair: MdevCloud, request: pytest.FixtureRequest) -> dict[str, Any]:
    return pair.nova.create(request.param, host=FIRST)


def test_a_guest_moves_with_its_mediated_devices(
    pair: MdevCloud, server: dict[str, Any]
) -> None:
    number = len(pair.nova.mdevs(FIRST, server))
    pair.check_attached(server, FIRST, number)
    pair.nova.live_migrate(server)
    pair.check_attached(server, SECOND, number)
    pair.check_free(FIRST)
