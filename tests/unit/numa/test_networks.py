# SPDX-License-Identifier: Apache-2.0

"""A guest is placed on the cells of its networks' cards, if those are declared.

The hosts are those of the specification of NUMA-aware virtual switches.
"""

import dataclasses

import pytest

from os_acc.numa.fit import NO_NETWORKS, Question, fit_to_host, not_carried
from os_acc.objects.numa import (
    InstanceNUMACell,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    NUMACell,
    NUMANetworkInfo,
    NUMATopology,
)


def host(*networks: NUMANetworkInfo) -> NUMATopology:
    return NUMATopology(
        tuple(
            NUMACell(number, frozenset({number}), memory=64, network_info=info)
            for number, info in enumerate(networks)
        )
    )


def info(*physnets: str, tunneled: bool = False) -> NUMANetworkInfo:
    return NUMANetworkInfo(frozenset(physnets), tunneled)


def wanted(*physnets: str, tunneled: bool = False) -> InstanceNUMANetworks:
    return InstanceNUMANetworks(frozenset(physnets), tunneled)


#: physnet0 on node 0, physnet1 on both, tunnels on node 1.
SPECIFIED = host(info("physnet0", "physnet1"), info("physnet1", tunneled=True), info())
SILENT = host(info(), info(), info())

FOO, BAR, TUNNELS = wanted("physnet0"), wanted("physnet1"), wanted(tunneled=True)
BOTH = wanted("physnet0", tunneled=True)

#: Networks, chosen cells, and the networks that these cells do not provide.
TABLE = [
    (FOO, [0], NO_NETWORKS),
    (FOO, [1], FOO),
    (FOO, [0, 1], NO_NETWORKS),
    (BAR, [0], NO_NETWORKS),
    (BAR, [1], NO_NETWORKS),
    (BAR, [2], BAR),
    (wanted("unlisted"), [2], NO_NETWORKS),
    (wanted("unlisted", "physnet0"), [2], FOO),
    (TUNNELS, [0], TUNNELS),
    (TUNNELS, [1], NO_NETWORKS),
    (BOTH, [0], TUNNELS),
    (BOTH, [1], FOO),
    (BOTH, [2], BOTH),
    (BOTH, [0, 1], NO_NETWORKS),
    (NO_NETWORKS, [2], NO_NETWORKS),
]


@pytest.mark.parametrize(("networks", "cells", "missing"), TABLE)
def test_one_of_the_chosen_cells_has_to_lead_to_each_network(networks, cells, missing):
    assert not_carried(SPECIFIED, cells, networks) == missing
    assert not_carried(SILENT, cells, networks) == NO_NETWORKS


@pytest.mark.parametrize(
    ("networks", "guest_cells", "where"),
    [
        # The guest goes to the cell of the network card, also if other cells are free.
        (FOO, 1, (0,)),
        (TUNNELS, 1, (1,)),
        (BAR, 1, (0,)),
        # With cards on both cells, only a guest of two cells fits.
        (BOTH, 1, None),
        (BOTH, 2, (0, 1)),
        (wanted("unlisted"), 2, (0, 1)),
    ],
)
def test_a_guest_goes_where_its_network_cards_are(networks, guest_cells, where):
    cell = InstanceNUMACell(frozenset({0}), memory=64)
    guest = InstanceNUMATopology((cell,) * guest_cells)
    question = Question(SPECIFIED, guest, networks=networks)
    found = fit_to_host(question)
    assert (found.cells if found.fits else None) == where
    assert fit_to_host(dataclasses.replace(question, host=SILENT)).fits
