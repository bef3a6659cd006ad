# SPDX-License-Identifier: Apache-2.0

"""A host cell fits a guest cell, or gives the reason why it does not."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc.numa.fit import cells
from os_acc.numa.fit.reasons import Reason, ReasonKind
from os_acc.objects.numa import (
    CPUPolicy,
    CPUThreadPolicy,
    InstanceNUMACell,
    MemoryPages,
    NUMACell,
    NUMALimits,
    PageSize,
)

SHARED, DEDICATED, MIXED = CPUPolicy.SHARED, CPUPolicy.DEDICATED, CPUPolicy.MIXED
PREFER, REQUIRE = CPUThreadPolicy.PREFER, CPUThreadPolicy.REQUIRE
ISOLATE = CPUThreadPolicy.ISOLATE

#: Four cores of two threads, for both shared and dedicated CPUs.
HOST = NUMACell(
    0,
    frozenset(range(8)),
    frozenset(range(8)),
    memory=1024,
    siblings=tuple(frozenset({n, n + 1}) for n in range(0, 8, 2)),
)


def host(**changes: object) -> NUMACell:
    return dataclasses.replace(HOST, **changes)


def guest(
    shared: int = 0,
    own: int = 0,
    policy: CPUPolicy = SHARED,
    threads: CPUThreadPolicy | None = None,
    memory: int = 256,
    pages: int | None = None,
) -> InstanceNUMACell:
    return InstanceNUMACell(
        frozenset(range(own, own + shared)),
        frozenset(range(own)),
        memory,
        pages,
        policy,
        threads,
    )


# -- memory ------------------------------------------------------------------------

SMALL = MemoryPages(4, total=1024 * 256, used=512 * 256)
LARGE = MemoryPages(2048, total=512, used=128, reserved=128)
HUGE = MemoryPages(1048576, total=2)
PAGES = (SMALL, LARGE, HUGE)


@pytest.mark.parametrize(
    ("size", "memory", "found"),
    [
        (PageSize.SMALL, 512, 4),
        (PageSize.SMALL, 513, Reason(ReasonKind.FREE_PAGES, 513, 512)),
        (PageSize.LARGE, 512, 2048),
        (PageSize.LARGE, 1024, 1048576),
        (PageSize.LARGE, 514, Reason(ReasonKind.FREE_PAGES, 514, 512)),
        (PageSize.LARGE, 3, Reason(ReasonKind.UNEVEN_PAGES, 3072, 2048)),
        (PageSize.ANY, 1024, 1048576),
        (PageSize.ANY, 2, 2048),
        (PageSize.ANY, 3, 4),
        (4, 512, 4),
        (2048, 512, 2048),
        (1048576, 512, Reason(ReasonKind.UNEVEN_PAGES, 512 * 1024, 1048576)),
        (1048576, 3072, Reason(ReasonKind.FREE_PAGES, 3072, 2048)),
        (64, 512, Reason(ReasonKind.PAGE_SIZE, 64)),
    ],
)
def test_pages_are_of_the_size_asked_for_and_whole_and_free(
    size: int, memory: int, found: int | Reason
) -> None:
    cell = guest(1, memory=memory, pages=size)
    there = host(mempages=PAGES[::-1])
    assert cells.page_size(there, cell) == found
    refusal = cells.refusal(there, cell)
    assert refusal == (found if isinstance(found, Reason) else None)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (PageSize.LARGE, "it has no large pages"),
        (PageSize.ANY, "it has no pages of a known size"),
        (PageSize.SMALL, "it has no pages of a known size"),
        (2048, "it has no pages of 2048 KiB"),
    ],
)
def test_where_no_pages_are_known_none_can_be_asked_for(size: int, text: str) -> None:
    refusal = cells.refusal(HOST, guest(1, pages=size))
    assert refusal == Reason(ReasonKind.PAGE_SIZE, size)
    assert str(refusal) == text


@pytest.mark.parametrize(
    ("policy", "memory", "found"),
    [
        # A guest with shared CPUs may overcommit memory, but not with itself.
        (SHARED, 1024, None),
        (SHARED, 1025, Reason(ReasonKind.FREE_PAGES, 1025, 1024)),
        (DEDICATED, 512, None),
        (DEDICATED, 513, Reason(ReasonKind.FREE_PAGES, 513, 512)),
        (MIXED, 513, Reason(ReasonKind.FREE_PAGES, 513, 512)),
    ],
)
def test_whoever_asks_for_no_size_gets_the_smallest(
    policy: CPUPolicy, memory: int, found: Reason | None
) -> None:
    cell = guest(own=policy is not SHARED, policy=policy, memory=memory)
    assert cells.refusal(host(mempages=PAGES), cell) == found


def test_the_smallest_pages_may_be_too_large() -> None:
    refusal = cells.refusal(host(mempages=(LARGE,)), guest(1, memory=3))
    assert refusal == Reason(ReasonKind.UNEVEN_PAGES, 3072, 2048)


@pytest.mark.parametrize(
    ("policy", "memory", "found"),
    [
        (SHARED, 1024, None),
        (SHARED, 1025, Reason(ReasonKind.MEMORY, 1025, 1024)),
        (DEDICATED, 768, None),
        (DEDICATED, 769, Reason(ReasonKind.FREE_MEMORY, 769, 768)),
        (MIXED, 769, Reason(ReasonKind.FREE_MEMORY, 769, 768)),
    ],
)
def test_without_pages_memory_is_counted(
    policy: CPUPolicy, memory: int, found: Reason | None
) -> None:
    cell = guest(own=policy is not SHARED, policy=policy, memory=memory)
    assert cells.refusal(host(memory_usage=256), cell) == found


# -- CPUs and limits ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "cell", "found"),
    [
        ({}, guest(8), None),
        ({}, guest(9), Reason(ReasonKind.CPUS, 9, 8)),
        ({}, guest(own=8, policy=DEDICATED), None),
        ({}, guest(own=9, policy=DEDICATED), Reason(ReasonKind.PCPUS, 9, 8)),
        ({}, guest(9, 1, MIXED), Reason(ReasonKind.CPUS, 9, 8)),
        (
            {"pinned_cpus": frozenset({0})},
            guest(own=8, policy=DEDICATED),
            Reason(ReasonKind.FREE_PCPUS, 8, 7),
        ),
        # The usage of shared CPUs is not counted.
        ({"pinned_cpus": frozenset({0}), "cpu_usage": 99}, guest(8), None),
        # A CPU outside every core cannot be dedicated.
        (
            {"siblings": HOST.siblings[:3]},
            guest(own=7, policy=DEDICATED),
            Reason(ReasonKind.FREE_PCPUS, 7, 6),
        ),
    ],
)
def test_cpus_are_counted_by_their_kind(
    changes: dict[str, object], cell: InstanceNUMACell, found: Reason | None
) -> None:
    assert cells.refusal(host(**changes), cell) == found


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (SHARED, Reason(ReasonKind.CPU_LIMIT, 13, 12)),
        (MIXED, Reason(ReasonKind.CPU_LIMIT, 13, 12)),
        (DEDICATED, None),
    ],
)
def test_only_what_is_shared_has_a_limit(
    policy: CPUPolicy, found: Reason | None
) -> None:
    shared, own = (0, 3) if policy is DEDICATED else (3, int(policy is MIXED))
    cell = guest(shared, own, policy)
    limits = NUMALimits(1.5, 1.0)
    assert cells.refusal(host(cpu_usage=10), cell, limits) == found
    assert cells.refusal(host(cpu_usage=9), cell, limits) is None
    assert cells.refusal(host(cpu_usage=10), cell) is None


def test_what_others_share_is_nothing_to_a_guest_that_does_not() -> None:
    there, limits = host(cpu_usage=99, memory_usage=768), NUMALimits(1.0, 0.5)
    assert cells.refusal(there, guest(1), limits) is not None
    assert cells.refusal(there, guest(own=1, policy=DEDICATED), limits) is None


def test_memory_has_a_limit_too() -> None:
    there, limits = host(memory_usage=769), NUMALimits(16.0, 1.0)
    assert cells.refusal(there, guest(1), limits) == Reason(
        ReasonKind.RAM_LIMIT, 1025, 1024
    )
    assert cells.refusal(there, guest(1), NUMALimits(16.0, 1.25)) is None


# -- threads -----------------------------------------------------------------------


def with_free(*free: int, threads: int = 2) -> NUMACell:
    """Return a host cell whose cores have these numbers of free threads."""
    siblings = [range(at * 8, at * 8 + threads) for at in range(len(free))]
    everything = frozenset(cpu for core in siblings for cpu in core)
    left = {cpu for core, n in zip(siblings, free, strict=True) for cpu in core[:n]}
    return host(
        cpuset=everything,
        pcpuset=everything,
        siblings=tuple(frozenset(core) for core in siblings),
        pinned_cpus=everything - left,
    )


@pytest.mark.parametrize(
    ("free", "threads", "policy", "most"),
    [
        ((2, 2, 1), 2, PREFER, 5),
        ((2, 2, 1), 2, None, 5),
        # Whole sets of siblings only, and the same number from each core.
        ((2, 2, 1), 2, REQUIRE, 4),
        ((4, 3, 2), 4, REQUIRE, 6),
        ((4, 3, 1), 4, REQUIRE, 6),
        ((4, 1, 1), 4, REQUIRE, 4),
        # Only cores without a thread in use.
        ((2, 2, 1), 2, ISOLATE, 2),
        ((1, 1, 1), 1, ISOLATE, 3),
    ],
)
def test_as_many_cpus_can_be_dedicated_as_the_thread_policy_allows(
    free: tuple[int, ...], threads: int, policy: CPUThreadPolicy | None, most: int
) -> None:
    there = with_free(*free, threads=threads)
    for number in range(1, sum(free) + 2):
        refusal = cells.dedicated_cpu_refusal(there, number, policy)
        assert (refusal is None) is (number <= most)
        if refusal:
            assert (refusal.wanted, refusal.there) == (number, most)


@pytest.mark.parametrize(
    ("there", "policy", "why"),
    [
        (with_free(1, 1, threads=1), REQUIRE, ReasonKind.NO_THREADS),
        (with_free(1, 1), REQUIRE, ReasonKind.SIBLINGS),
        (with_free(1, 1), ISOLATE, ReasonKind.WHOLE_CORES),
        (
            dataclasses.replace(with_free(2, 2), cpuset=frozenset()),
            ISOLATE,
            ReasonKind.THREADS,
        ),
        (host(siblings=()), PREFER, ReasonKind.FREE_PCPUS),
        (host(siblings=()), REQUIRE, ReasonKind.NO_THREADS),
        (host(siblings=()), ISOLATE, ReasonKind.WHOLE_CORES),
    ],
)
def test_some_hosts_can_never_serve_a_thread_policy(
    there: NUMACell, policy: CPUThreadPolicy, why: ReasonKind
) -> None:
    refusal = cells.dedicated_cpu_refusal(there, 1, policy)
    assert refusal is not None
    assert refusal.why is why


@pytest.mark.parametrize(
    ("free", "policy", "most"),
    [
        ((2, 2), PREFER, 3),
        # The emulator may use a thread of any core,
        ((2, 2, 1), REQUIRE, 4),
        ((2, 2), REQUIRE, 3),
        # except a core that is reserved for one CPU of the guest.
        ((2, 2), ISOLATE, 1),
        ((2, 2, 1), ISOLATE, 2),
    ],
)
def test_the_emulator_has_a_cpu_more(
    free: tuple[int, ...], policy: CPUThreadPolicy, most: int
) -> None:
    there = with_free(*free)
    for number in range(1, sum(free) + 1):
        refusal = cells.dedicated_cpu_refusal(there, number, policy, emulator=True)
        assert (refusal is None) is (number <= most)
    assert cells.dedicated_cpu_refusal(there, most, policy) is None


def test_the_emulator_counts_among_dedicated_cpus() -> None:
    own = guest(own=8, policy=DEDICATED)
    assert cells.refusal(HOST, own) is None
    assert cells.refusal(HOST, own, emulator=True) == Reason(ReasonKind.PCPUS, 9, 8)
    assert cells.refusal(HOST, guest(8), emulator=True) is None
    nothing = guest(1, 0, MIXED)
    assert cells.refusal(HOST, nothing) is None
    assert cells.refusal(HOST, nothing, emulator=True) == Reason(ReasonKind.EMULATOR, 1)


def packings(free: list[int], policy: CPUThreadPolicy) -> set[int]:
    """Return the possible numbers of CPUs, by trying every way to take threads."""
    found = set()
    for taken in itertools.product(*(range(n + 1) for n in free)):
        used = [n for n in taken if n]
        if policy is REQUIRE:
            # Each core gives the same number of threads; some may stay unused.
            if len({*used}) == 1 and max(used) > 1:
                found |= set(range(1, sum(used) + 1))
        else:
            found.add(sum(used))
    return found


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.sampled_from((PREFER, REQUIRE)),
    st.integers(1, 12),
)
def test_counting_finds_what_trying_finds(
    free: list[int], policy: CPUThreadPolicy, number: int
) -> None:
    refusal = cells.dedicated_cpu_refusal(with_free(*free, threads=3), number, policy)
    assert (refusal is None) is (number in packings(free, policy))


@pytest.mark.parametrize("why", ReasonKind)
def test_every_reason_is_told_with_its_numbers(why: ReasonKind) -> None:
    message = str(Reason(why, 17, 13))
    assert ("17" in message) is ("{wanted}" in why.value)
    assert ("13" in message) is ("{there}" in why.value)
    assert "{" not in message
