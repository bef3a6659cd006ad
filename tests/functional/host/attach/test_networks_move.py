# SPDX-License-Identifier: Apache-2.0

"""The networks of a guest are evaluated again when it moves to another host."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.testing import TestHost, hosts, instance, request, uuid_of
from os_acc.testing.test_host import config_of
from tests.expected_errors import has

GPU = "0000:17:00.0"
NETWORKS = """
[neutron]
physnets = physnet0

[neutron_physnet_physnet0]
numa_nodes = {}
"""


def networked(place: Path, name: str, node: int) -> TestHost:
    """Return a host whose physnet0 leaves by a NUMA node."""
    place.mkdir()
    (place / "nova.conf").write_text(NETWORKS.format(node))
    read = functools.partial(config_of, place / "nova.conf")
    return TestHost(place, hosts.two_socket_host(), read=read, node_name=name)


def test_a_move_evaluates_the_networks_by_the_nodes_of_the_destination(tmp_path):
    """Specification: it is "updated in the event of a move operation"."""

    def plug(host, cell):
        selected, specs = request(host.provider(GPU))
        specs["accel1:numa_policy"] = "preferred"
        guest = {"numa_cells": [cell], "networks": {"physnets": ["physnet0"]}}
        return host.manager.plug(instance(1) | guest, selected, specs)

    with networked(tmp_path / "1", "node1", 0) as source:
        assert plug(source, 0)
        assert source.manager.rekey(uuid_of(1), uuid_of(2)) == 1
        with networked(tmp_path / "2", "node2", 1) as destination:
            with pytest.raises(
                exception.NoDeviceAvailable,
                check=has(reason=exception.NoDeviceReason.NETWORK, elsewhere=True),
                match="physnet0",
            ):
                plug(destination, 0)
            assert destination.plugged(1) == []
            assert plug(destination, 1)
        assert source.unplug(2) == 1
