# SPDX-License-Identifier: Apache-2.0

"""Fifty servers with random lives on two hosts leave nothing behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.functional.nova import cloud as clouds
from tests.functional.nova import compute_nodes, libvirt_servers
from tests.functional.nova.cloud import FIRST, ONE, SECOND, TWO, Cloud

cloud, nodes, pair = clouds.cloud, compute_nodes.nodes, clouds.pair

SERVERS = 50
#: The servers of a share.
FEW = 10
Server = dict[str, Any]


def _restart(nova: libvirt_servers.LibvirtServers, server: Server) -> None:
    nova.stop(server)
    nova.start(server)


def _rebuild(nova: libvirt_servers.LibvirtServers, server: Server) -> None:
    nova.rebuild(server, clouds.OTHER_IMAGE)


def _offload(nova: libvirt_servers.LibvirtServers, server: Server) -> None:
    nova.shelve(server)
    nova.offload(server)
    nova.unshelve(server)


def _suspend(nova: libvirt_servers.LibvirtServers, server: Server) -> None:
    nova.suspend(server)
    nova.resume(server)


def _rescue(nova: libvirt_servers.LibvirtServers, server: Server) -> None:
    nova.rescue(server)
    nova.unrescue(server)


OPERATIONS: Mapping[str, Callable[[libvirt_servers.LibvirtServers, Server], None]] = {
    "restart": _restart,
    "reboot": libvirt_servers.LibvirtServers.reboot,
    "rebuild": _rebuild,
    "offload": _offload,
    "suspend": _suspend,
    "rescue": _rescue,
}


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Return the source of chance; the seed is part of the test."""
    return random.Random(request.node.name)


def move(pair: Cloud, dice: random.Random, server: Server) -> None:
    """Migrate a server if the other host has room; decide either way."""
    host = pair.nova.host_of(server)
    (other,) = {FIRST, SECOND} - {host}
    if pair.nodes[other].leases():
        return
    pair.nova.migrate(server)
    decide = dice.choice([pair.nova.confirm, pair.nova.revert])
    decide(server)


@pytest.mark.share(1)
def test_servers_with_random_lives_leave_nothing(pair, dice, share):
    alive: list[tuple[Server, int]] = []
    for _ in range(FEW if share.number is not None else SERVERS):
        while len(alive) > 1:
            server, _number = alive.pop(dice.randrange(len(alive)))
            pair.nova.delete(server)
        specs, number = dice.choice([(ONE, 1), (TWO, 2)])
        alive.append((pair.nova.create(specs), number))
        server, number = dice.choice(alive)
        name = dice.choice([*OPERATIONS, "move"])
        if name == "move":
            move(pair, dice, server)
        else:
            OPERATIONS[name](pair.nova, server)
        for each, units in alive:
            pair.check_attached(each, units, pair.nova.host_of(each))
    for server, _number in alive:
        pair.nova.delete(server)
    pair.check_free(FIRST)
    pair.check_free(SECOND)
