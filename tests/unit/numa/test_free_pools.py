# SPDX-License-Identifier: Apache-2.0

"""The free devices of providers are the pools for the next guest."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc import exception, numa
from os_acc.objects.device import Provider
from os_acc.objects.numa import (
    InstanceNUMACell,
    InstanceNUMATopology,
    NUMACell,
    NUMAPolicy,
    NUMATopology,
)
from os_acc.testing import HostSpec, TestHost, hosts
from tests.unit.placement import capacity_examples

FAR, NEAR, NODELESS = "0000:17:00.0", "0000:27:00.0", "0000:37:00.0"
NODES = {FAR: 1, NEAR: 0, NODELESS: -1}


def card(*nodes: int | None) -> Provider:
    handles = [capacity_examples.handle(8 + place) for place in range(len(nodes))]
    return capacity_examples.provider(
        1,
        *(
            dataclasses.replace(handle, numa_node=node)
            for handle, node in zip(handles, nodes, strict=True)
        ),
    )


def test_each_node_of_a_provider_is_a_pool() -> None:
    provider = card(2, None, 2, 0)
    assert numa.free_pools(provider, {}) == (
        numa.DevicePool(f"{provider.uuid}/2", 2, 2),
        numa.DevicePool(f"{provider.uuid}/-1", None, 1),
        numa.DevicePool(f"{provider.uuid}/0", 0, 1),
    )


def test_what_is_out_of_order_is_not_free() -> None:
    provider = card(0, 0)
    first, second = provider.device.handles
    broken = dataclasses.replace(first, fault="it smokes")
    device = dataclasses.replace(provider.device, handles=(broken, second))
    (pool,) = numa.free_pools(dataclasses.replace(provider, device=device), {})
    assert pool.count == 1


@pytest.mark.parametrize(
    "info", [None, {}, {"domain": "0", "bus": "no", "device": "0", "function": "0"}]
)
def test_an_entry_that_is_none_is_refused(info: object) -> None:
    attached = {"guest": [{"attach_handle_info": info}]}
    with pytest.raises(exception.InvalidInput, match="attach_handle_info"):
        numa.free_pools(card(0), attached)


@pytest.fixture
def host(make_bench) -> TestHost:
    return make_bench(
        HostSpec(
            tuple(
                part
                for number, (address, node) in enumerate(NODES.items())
                for part in hosts.gpu(address[:7], node, card=number)
            )
        )
    )


def fit(bench: TestHost, policy: NUMAPolicy) -> numa.Fit:
    """Return whether a guest fits that needs cell 0 and any one of the GPUs."""
    attached = bench.manager.attached(None)
    pools = tuple(
        pool
        for provider in bench.manager.providers()
        for pool in numa.free_pools(provider, attached)
    )
    guest = InstanceNUMATopology((InstanceNUMACell(memory=1),))
    names = frozenset(pool.name for pool in pools)
    wanted = numa.DeviceRequest("gpu", 1, names, policy)
    cells = NUMATopology((NUMACell(0, memory=1), NUMACell(1)))
    return numa.fit_to_host(
        numa.Question(cells, guest, pools=pools, requests=(wanted,))
    )


def test_what_a_guest_has_is_not_free_until_it_gives_it_back(host: TestHost) -> None:
    assert fit(host, NUMAPolicy.REQUIRED).fits
    host.plug(1, NEAR)
    assert fit(host, NUMAPolicy.REQUIRED).requests == ("gpu",)
    assert fit(host, NUMAPolicy.LEGACY).fits
    host.plug(2, NODELESS)
    assert fit(host, NUMAPolicy.LEGACY).requests == ("gpu",)
    assert fit(host, NUMAPolicy.PREFERRED).fits
    host.unplug(1)
    assert fit(host, NUMAPolicy.REQUIRED).fits
