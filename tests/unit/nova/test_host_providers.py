# SPDX-License-Identifier: Apache-2.0

"""The scheduler reads the providers of a host once in a while, and never waits long."""

import concurrent.futures
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from os_acc import exception
from os_acc.nova import host_providers
from os_acc.nova.host_providers import HostProviders, record_of

GPU = "CUSTOM_ACCELERATOR_GPU"
FUNCTION = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"
SUMMARY = {
    "resources": {GPU: {"capacity": 4, "used": 1}},
    "traits": [
        "CUSTOM_GOLD",
        "CUSTOM_NUMA_CELL_1",
        "CUSTOM_PROGRAMMABLE",
        f"CUSTOM_FPGA_INTEL_FUNCTION_{FUNCTION.upper().replace('-', '_')}",
    ],
}


class Placement:
    """Answers as Placement does; each answer has its number as used units.

    :ivar asked: the hosts of all requests.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.now = 0.0

    def read(self, host: str, resource_class: str) -> Mapping[str, Any]:
        assert resource_class == GPU
        self.asked.append(host)
        number = len(self.asked)
        assert self.answers.wait(60)
        if self.error:
            raise self.error
        used = {GPU: {"capacity": 0, "used": -number}}
        return {f"gpu-of-{host}": {"resources": used, "traits": []}}


@pytest.fixture
def placement() -> Iterator[Placement]:
    found = Placement()
    yield found
    found.answers.set()


@pytest.fixture
def hosts(placement: Placement) -> HostProviders:
    return HostProviders(placement.read, 2, lambda: placement.now)


def number(hosts: HostProviders, host: str, max_age: float = 10.0) -> int:
    """Return the number of the request that a host's state is from."""
    found = hosts.get(host, GPU, max_age, time.monotonic() + 60)
    return found[f"gpu-of-{host}"].free[GPU]


def test_cells_functions_and_units_are_read():
    state = host_providers.parse({"gpu": SUMMARY})["gpu"]
    assert state.cells == {1}
    assert state.functions == {FUNCTION}
    assert state.is_programmable
    assert state.free == {GPU: 3}


@pytest.mark.parametrize(
    "summary", [{}, {"resources": {}}, SUMMARY | {"resources": {GPU: {}}}, [], None]
)
def test_another_answer_is_an_error(summary):
    with pytest.raises(exception.ServiceUnavailable):
        host_providers.parse({"gpu": summary})


def test_an_answer_serves_until_it_is_too_old(placement, hosts):
    assert [number(hosts, "a"), number(hosts, "a"), number(hosts, "b")] == [1, 1, 2]
    placement.now = 9
    assert number(hosts, "a") == 1
    assert number(hosts, "a", max_age=5.0) == 3
    placement.now = 18
    assert number(hosts, "a") == 3
    placement.now = 19
    assert number(hosts, "a") == 4


def test_without_a_lifetime_each_call_asks(hosts):
    assert [number(hosts, "a", max_age=0.0) for _ in range(3)] == [1, 2, 3]


def test_the_host_unused_for_the_longest_time_is_dropped(placement, hosts):
    for host in ("a", "b", "a", "c"):
        number(hosts, host)
    assert number(hosts, "a") == 1
    assert number(hosts, "b") == 4
    assert placement.asked == ["a", "b", "c", "b"]


def test_an_error_is_not_kept(placement, hosts):
    error = exception.ServiceUnavailable(
        "down", service=exception.ServiceType.PLACEMENT
    )
    placement.error = error
    with pytest.raises(exception.ServiceUnavailable):
        number(hosts, "a")
    placement.error = None
    assert number(hosts, "a") == 2


def test_an_answer_after_the_deadline_serves_the_next_call(placement, hosts):
    placement.answers.clear()
    with pytest.raises(exception.ServiceUnavailable, match="in time"):
        hosts.get("a", GPU, 10.0, time.monotonic() + 0.01)
    placement.answers.set()
    assert number(hosts, "a") == 1


def test_requests_without_an_answer_are_limited(placement, hosts):
    placement.answers.clear()
    for each in range(20):
        with pytest.raises(exception.ServiceUnavailable):
            hosts.get(f"host-{each}", GPU, 10.0, time.monotonic())
    assert len(placement.asked) <= 16
    placement.answers.set()
    # Ends with the requests: their threads give their places back.
    while True:
        try:
            assert number(hosts, "another") > 0
            return
        except exception.ServiceUnavailable:
            continue


def test_threads_share_one_request(placement, hosts):
    placement.answers.clear()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(number, hosts, "a") for _ in range(8)]
        placement.answers.set()
        assert {each.result() for each in answers} == {1}
    assert placement.asked == ["a"]


def test_threads_with_many_hosts_keep_the_limit(placement, hosts):
    names = [f"host-{each % 5}" for each in range(200)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: number(hosts, name), names))
    assert min(found) >= 1
    # Two hosts remain: a third one is asked again.
    count = len(placement.asked)
    for name in ("host-0", "host-1", "host-2"):
        number(hosts, name)
    assert len(placement.asked) > count


# -- candidates that servers of one request have claimed ------------------------

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
    record = record_of(host)
    record.keep(host, kept, record.candidates(host))


def following(host: Any) -> Any:
    return record_of(host).next(host)


def test_a_dropped_candidate_is_there_for_the_next_server(host):
    keep(host, B)
    assert host.allocation_candidates == [B]
    assert record_of(host).candidates(host) == [B, A, C]


def test_a_candidate_that_another_filter_drops_stays_away(host):
    keep(host, B, C)
    host.allocation_candidates = [C]
    assert record_of(host).candidates(host) == [C, A]


def test_without_a_claim_the_host_is_the_same(host):
    assert following(host) is host
    keep(host, B)
    assert following(host) is host
    assert not record_of(host).claimed


def test_each_claim_keeps_its_limits(host):
    """Nova's filter writes those of the next server into the same host."""
    host.limits["numa_topology"] = "of the first"
    keep(host, B)
    host.num_instances += 1
    host.limits["numa_topology"] = "of the second"
    second = following(host)
    assert host.limits == {"numa_topology": "of the first"}
    assert second.limits == {"numa_topology": "of the second"}
    assert record_of(second).candidates(second) == [B, A, C]


def test_claims_add_up(host):
    for candidate in (B, B, C):
        keep(host, candidate)
        host.num_instances += 1
        host = following(host)
    claimed = record_of(host).claimed
    assert claimed == {("b", GPU): 2, ("c", GPU): 1}


def test_without_limits_no_other_object_is_needed(host):
    host.limits = {}
    keep(host, A)
    host.num_instances += 1
    assert following(host) is host
    assert record_of(host).claimed == {("a", GPU): 1}


def test_each_state_of_a_host_is_equal_for_nova_s_choice_of_alternates(host):
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
