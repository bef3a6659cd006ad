# SPDX-License-Identifier: Apache-2.0

"""Servers of one request have their own candidates and limits on a shared host."""

from __future__ import annotations

from typing import Any

import pytest

from os_acc.nova import claimed_candidates

GPU = "CUSTOM_ACCELERATOR_GPU"
A, B, C = (
    {"allocations": {name: {"resources": {GPU: 1}}}, "mappings": {"1": [name]}}
    for name in "abc"
)


class HostState:
    """The attributes of Nova's class that are used here; it has no ``__eq__``."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.allocation_candidates: list[Any] = [A, B, C]
        self.num_instances = 3
        self.limits = {"numa_topology": "of"}


@pytest.fixture
def host() -> HostState:
    return HostState("host")


def keep(host: Any, *kept: Any) -> None:
    record = claimed_candidates.record_of(host)
    record.keep(host, kept, record.candidates(host))


def following(host: Any) -> Any:
    return claimed_candidates.record_of(host).next(host)


def test_a_dropped_candidate_is_there_for_the_next_server(
    host: HostState,
) -> None:
    keep(host, B)
    assert host.allocation_candidates == [B]
    assert claimed_candidates.record_of(host).candidates(host) == [B, A, C]


def test_a_candidate_that_another_filter_drops_stays_away(
    host: HostState,
) -> None:
    keep(host, B, C)
    host.allocation_candidates = [C]
    assert claimed_candidates.record_of(host).candidates(host) == [C, A]


def test_without_a_claim_the_host_is_the_same(host: HostState) -> None:
    assert following(host) is host
    keep(host, B)
    assert following(host) is host
    assert not claimed_candidates.record_of(host).claimed


def test_each_claim_keeps_its_limits(host: HostState) -> None:
    """Nova's filter writes those of the next server into the same host."""
    host.limits["numa_topology"] = "of the first"
    keep(host, B)
    host.num_instances += 1
    host.limits["numa_topology"] = "of the second"
    second = following(host)
    assert host.limits == {"numa_topology": "of the first"}
    assert second.limits == {"numa_topology": "of the second"}
    assert claimed_candidates.record_of(second).candidates(second) == [B, A, C]


def test_claims_add_up(host: HostState) -> None:
    for candidate in (B, B, C):
        keep(host, candidate)
        host.num_instances += 1
        host = following(host)
    claimed = claimed_candidates.record_of(host).claimed
    assert claimed == {("b", GPU): 2, ("c", GPU): 1}


def test_without_limits_no_other_object_is_needed(host: HostState) -> None:
    host.limits = {}
    keep(host, A)
    host.num_instances += 1
    assert following(host) is host
    assert claimed_candidates.record_of(host).claimed == {("a", GPU): 1}


def test_each_state_of_a_host_is_equal_for_nova_s_choice_of_alternates(
    host: HostState,
) -> None:
    states = [host]
    for _ in range(2):
        keep(states[-1], A)
        states[-1].num_instances += 1
        states.append(following(states[-1]))
    assert len(set(map(id, states))) == 3
    for state in states:
        assert all(state in [each] and each in [state] for each in states)
        assert HostState("other") not in [state]
        assert state not in [HostState("other")]
