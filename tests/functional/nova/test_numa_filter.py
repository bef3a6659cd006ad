# SPDX-License-Identifier: Apache-2.0

"""The scheduler filter passes exactly the hosts that fit a guest."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from nova import conf as nova_conf
from nova import objects
from nova.scheduler.filters.numa_topology_filter import NUMATopologyFilter
from nova.scheduler.host_manager import HostManager

from os_acc import exception, numa
from os_acc.nova.filters import ExactNUMAFilter
from os_acc.objects.numa import (
    InstanceNUMACell,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    NUMACell,
    NUMALimits,
    NUMANetworkInfo,
    NUMATopology,
)
from tests.functional.nova import numa_objects
from tests.unit.numa import cases, nova_claim, oracle, to_nova

PATH = "os_acc.nova.filters.ExactNUMAFilter"


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    objects.register_all()


def host_state(topology: NUMATopology, limits: NUMALimits) -> SimpleNamespace:
    return SimpleNamespace(
        numa_topology=numa_objects.host(topology),
        cpu_allocation_ratio=limits.cpu_allocation_ratio,
        ram_allocation_ratio=limits.ram_allocation_ratio,
        allocation_candidates=[{"allocations": {}, "mappings": {}}],
        pci_stats=None,
        limits={},
        host="node1",
        nodename="node1",
    )


def spec_of(question: numa.Question) -> objects.RequestSpec:
    return objects.RequestSpec(
        instance_uuid="00000001-1111-4111-8111-111111111111",
        flavor=objects.Flavor(extra_specs={}),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        pci_requests=None,
        numa_topology=numa_objects.guest(question.guest),
        network_metadata=to_nova.networks_to_nova(question.networks, objects),
    )


def questions(seed: int, count: int) -> Iterator[numa.Question]:
    """Yield questions without devices: those are of Nova's own filters."""
    dice = random.Random(seed)
    for _ in range(count):
        question = cases.question(dice, most_host=4)
        yield dataclasses.replace(
            question,
            limits=question.limits or NUMALimits(),
            requests=(),
            pools=(),
            pack=False,
        )


@pytest.mark.parametrize("seed", range(3))
def test_it_passes_where_some_permutation_does(seed):
    counted = Counter[bool]()
    for question in questions(seed, 50):
        assert question.limits
        passes = ExactNUMAFilter().host_passes(
            host_state(question.host, question.limits), spec_of(question)
        )
        assert passes is (next(oracle.answers(question), None) is not None)
        counted[passes] += 1
    assert counted[True]
    assert counted[False]


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_nova_s_filter_but_for_nova_s_quirks(seed):
    """A model of Nova's claim predicts Nova's verdict in each case that differs."""
    counted = Counter[str]()
    for question in questions(seed, 100):
        assert question.limits
        state, spec = host_state(question.host, question.limits), spec_of(question)
        ours = ExactNUMAFilter().host_passes(state, spec)
        theirs = NUMATopologyFilter().host_passes(state, spec)
        assert theirs is (nova_claim.fit_as_nova(question) is not None)
        assert ours is numa.fit_to_host(question).fits
        counted["same" if ours is theirs else "quirk"] += 1
        if question.networks.physnets and not ours and not theirs:
            without = dataclasses.replace(question, networks=InstanceNUMANetworks())
            counted["networks"] += numa.fit_to_host(without).fits
    assert counted["same"] > counted["quirk"]
    assert counted["networks"]


@pytest.fixture
def filtering(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostManager]:
    """Yield Nova's host manager with the filter as the manual enables it."""
    for read in ("_init_aggregates", "refresh_cells_caches"):
        monkeypatch.setattr(HostManager, read, lambda _self: None)
    conf, group = nova_conf.CONF, "filter_scheduler"
    available = ["nova.scheduler.filters.all_filters", PATH]
    enabled = ["NUMATopologyFilter", "ExactNUMAFilter"]
    conf.set_override("available_filters", available, group)
    conf.set_override("enabled_filters", enabled, group)
    conf.set_override("track_instance_changes", False, group)
    yield HostManager()
    for option in ("available_filters", "enabled_filters", "track_instance_changes"):
        conf.clear_override(option, group)


def test_nova_loads_the_filter_by_available_filters(filtering):
    first, second = filtering.enabled_filters
    assert isinstance(first, NUMATopologyFilter)
    assert isinstance(second, ExactNUMAFilter)


def test_both_filters_pass_a_host_and_the_limits_of_the_claim(filtering):
    """The claim on the host has the networks from Nova's filter."""
    cells = tuple(
        NUMACell(
            cell,
            frozenset({cell}),
            memory=64,
            network_info=NUMANetworkInfo(frozenset({f"physnet{cell}"})),
        )
        for cell in (0, 1)
    )
    near = host_state(NUMATopology(cells), NUMALimits())
    # Only the cell without the network has memory left.
    full = dataclasses.replace(cells[1], memory_usage=64)
    far = host_state(NUMATopology((cells[0], full)), NUMALimits())
    guest = InstanceNUMATopology((InstanceNUMACell(frozenset({0}), memory=1),))
    networks = InstanceNUMANetworks(frozenset({"physnet1"}))
    spec = spec_of(numa.Question(NUMATopology(cells), guest, networks=networks))
    found = filtering.filter_handler.get_filtered_objects(
        filtering.enabled_filters, [near, far], spec
    )
    assert found == [near]
    assert near.limits["numa_topology"].network_metadata.physnets == {"physnet1"}


def test_a_guest_without_cells_passes_anywhere():
    spec = objects.RequestSpec(numa_topology=None)
    state = SimpleNamespace(
        numa_topology=None, cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0
    )
    assert ExactNUMAFilter().host_passes(state, spec)


def test_where_it_is_not_found_out_the_claim_decides(monkeypatch):
    shared = NUMANetworkInfo(frozenset({"a"}))
    one = NUMACell(0, frozenset({0}), memory=64)
    other = NUMACell(1, frozenset({1}), memory=64, network_info=shared)
    cell = InstanceNUMACell(frozenset({0}), memory=1)
    question = numa.Question(
        NUMATopology((one, other)),
        InstanceNUMATopology((cell,)),
        networks=InstanceNUMANetworks(frozenset({"a"})),
    )
    state, spec = host_state(question.host, NUMALimits()), spec_of(question)
    # The search begins with no cell, then tries cell 0, which lacks the network.
    monkeypatch.setattr(
        numa, "fit_to_host", functools.partial(numa.fit_to_host, budget=2)
    )
    with pytest.raises(exception.FitUndecided):
        numa.fit_to_host(question)
    assert ExactNUMAFilter().host_passes(state, spec)
