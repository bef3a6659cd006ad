# SPDX-License-Identifier: Apache-2.0

"""Servers of one request have their own candidates and limits on a shared host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from os_acc.nova import claimed_candidates

GPU = "CUSTOM_ACCELERATOR_GPU"
A, B, C = (
    {"allocations": {name: {"resources": {GPU: 1}}}, "mappings": {"1": [name]}}
    for name in "abc"
)


@pytest.fixture
def host() -> SimpleNamespace:
    return SimpleNamespace(
        allocation_candidates=[A, B, C], num_instances=3, limits={"numa_topology": "of"}
    )


def keep(host: Any, *kept: Any) -> None:
    record = claimed_candidates.record_of(host)
    record.keep(host, kept, record.candidates(host))


def following(host: Any) -> Any:
    return claimed_candidates.record_of(host).next(host)


def test_a_dropped_candidate_is_there_for_the_next_server(
    host: SimpleNamespace,
) -> None:
    keep(host, B)
    assert host.allocation_candidates == [B]
    assert claimed_candidates.record_of(host).candidates(host) == [B, A, C]


def test_a_candidate_that_another_filter_drops_stays_away(
    host: SimpleNamespace,
) -> None:
    keep(host, B, C)
    host.allocation_candidates = [C]
    assert claimed_candidates.record_of(host).candidates(host) == [C, A]


def test_without_a_claim_the_host_is_the_same(host: SimpleNamespace) -> None:
    assert following(host) is host
    keep(host, B)
    assert following(host) is host
    assert not claimed_candidates.record_of(host).claimed


def test_each_claim_keeps_its_limits(host: SimpleNamespace) -> None:
    """Nova's filter writes those of the next server into the same host."""
    host.limits["numa_topology"] = "of the first"
    keep(host, B)
    host.num_instances += 1
    host.limits["numa_topology"] = "of the second"
    second = following(host)
    assert host.limits == {"numa_topology": "of the first"}
    assert second.limits == {"numa_topology": "of the second"}
    assert claimed_candidates.record_of(second).candidates(second) == [B, A, C]


def test_claims_add_up(host: SimpleNamespace) -> None:
    for candidate in (B, B, C):
        keep(host, candidate)
        host.num_instances += 1
        host = following(host)
    claimed = claimed_candidates.record_of(host).claimed
    assert claimed == {("b", GPU): 2, ("c", GPU): 1}


def test_without_limits_no_other_object_is_needed(host: SimpleNamespace) -> None:
    host.limits = {}
    keep(host, A)
    host.num_instances += 1
    assert following(host) is host
    assert claimed_candidates.record_of(host).claimed == {("a", GPU): 1}
