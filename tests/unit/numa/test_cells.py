# SPDX-License-Identifier: Apache-2.0

"""A host cell fits a guest cell, or gives the reason why it does not."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc.numa.fit import cells
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
        (PageSize.SMALL, 513, "513 MiB are requested, but pages for 512 MiB are free"),
        (PageSize.LARGE, 512, 2048),
        (PageSize.LARGE, 1024, 1048576),
        (PageSize.LARGE, 514, "514 MiB are requested, but pages for 512 MiB are free"),
        (PageSize.LARGE, 3, "3072 KiB are not a whole number of pages of 2048 KiB"),
        (PageSize.ANY, 1024, 1048576),
        (PageSize.ANY, 2, 2048),
        (PageSize.ANY, 3, 4),
        (4, 512, 4),
        (2048, 512, 2048),
        (1048576, 512, "524288 KiB are not a whole number of pages of 1048576 KiB"),
        (1048576, 3072, "3072 MiB are requested, but pages for 2048 MiB are free"),
        (64, 512, "it has no pages of 64 KiB"),
    ],
)
def test_pages_are_of_the_size_asked_for_and_whole_and_free(
    size: int, memory: int, found: int | str
) -> None:
    cell = guest(1, memory=memory, pages=size)
    there = host(mempages=PAGES[::-1])
    assert cells.page_size(there, cell) == found
    refusal = cells.refusal(there, cell)
    assert refusal == (found if isinstance(found, str) else None)


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
    assert cells.refusal(HOST, guest(1, pages=size)) == text


@pytest.mark.parametrize(
    ("policy", "memory", "found"),
    [
        # A guest with shared CPUs may overcommit memory, but not with itself.
        (SHARED, 1024, None),
        (SHARED, 1025, "1025 MiB are requested, but pages for 1024 MiB are free"),
        (DEDICATED, 512, None),
        (DEDICATED, 513, "513 MiB are requested, but pages for 512 MiB are free"),
        (MIXED, 513, "513 MiB are requested, but pages for 512 MiB are free"),
    ],
)
def test_whoever_asks_for_no_size_gets_the_smallest(
    policy: CPUPolicy, memory: int, found: str | None
) -> None:
    cell = guest(own=policy is not SHARED, policy=policy, memory=memory)
    assert cells.refusal(host(mempages=PAGES), cell) == found


def test_the_smallest_pages_may_be_too_large() -> None:
    refusal = cells.refusal(host(mempages=(LARGE,)), guest(1, memory=3))
    assert refusal == "3072 KiB are not a whole number of pages of 2048 KiB"


@pytest.mark.parametrize(
    ("policy", "memory", "found"),
    [
        (SHARED, 1024, None),
        (SHARED, 1025, "1025 MiB are requested, but it has 1024 MiB"),
        (DEDICATED, 768, None),
        (DEDICATED, 769, "769 MiB are requested, but 768 MiB are free"),
        (MIXED, 769, "769 MiB are requested, but 768 MiB are free"),
    ],
)
def test_without_pages_memory_is_counted(
    policy: CPUPolicy, memory: int, found: str | None
) -> None:
    cell = guest(own=policy is not SHARED, policy=policy, memory=memory)
    assert cells.refusal(host(memory_usage=256), cell) == found


# -- CPUs and limits ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "cell", "found"),
    [
        ({}, guest(8), None),
        ({}, guest(9), "9 shared CPUs are requested, but it has 8"),
        ({}, guest(own=8, policy=DEDICATED), None),
        (
            {},
            guest(own=9, policy=DEDICATED),
            "9 dedicated CPUs are requested, but it has 8",
        ),
        ({}, guest(9, 1, MIXED), "9 shared CPUs are requested, but it has 8"),
        (
            {"pinned_cpus": frozenset({0})},
            guest(own=8, policy=DEDICATED),
            "8 dedicated CPUs are requested, but 7 are free",
        ),
        # The usage of shared CPUs is not counted.
        ({"pinned_cpus": frozenset({0}), "cpu_usage": 99}, guest(8), None),
        # A CPU outside every core cannot be dedicated.
        (
            {"siblings": HOST.siblings[:3]},
            guest(own=7, policy=DEDICATED),
            "7 dedicated CPUs are requested, but 6 are free",
        ),
    ],
)
def test_cpus_are_counted_by_their_kind(
    changes: dict[str, object], cell: InstanceNUMACell, found: str | None
) -> None:
    assert cells.refusal(host(**changes), cell) == found


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (SHARED, "13 CPUs would share its CPUs; the limit is 12"),
        (MIXED, "13 CPUs would share its CPUs; the limit is 12"),
        (DEDICATED, None),
    ],
)
def test_only_what_is_shared_has_a_limit(policy: CPUPolicy, found: str | None) -> None:
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
    assert (
        cells.refusal(there, guest(1), limits)
        == "1025 MiB would be used; the limit is 1024 MiB"
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
            assert re.findall(r"\d+", refusal) == [str(number), str(most)]


@pytest.mark.parametrize(
    ("there", "policy", "why"),
    [
        (with_free(1, 1, threads=1), REQUIRE, "one thread each"),
        (with_free(1, 1), REQUIRE, "on siblings"),
        (with_free(1, 1), ISOLATE, "whole cores"),
        (
            dataclasses.replace(with_free(2, 2), cpuset=frozenset()),
            ISOLATE,
            "several threads",
        ),
        (host(siblings=()), PREFER, "dedicated CPUs"),
        (host(siblings=()), REQUIRE, "one thread each"),
        (host(siblings=()), ISOLATE, "whole cores"),
    ],
)
def test_some_hosts_can_never_serve_a_thread_policy(
    there: NUMACell, policy: CPUThreadPolicy, why: str
) -> None:
    refusal = cells.dedicated_cpu_refusal(there, 1, policy)
    assert refusal is not None
    assert why in refusal


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
    assert (
        cells.refusal(HOST, own, emulator=True)
        == "9 dedicated CPUs are requested, but it has 8"
    )
    assert cells.refusal(HOST, guest(8), emulator=True) is None
    nothing = guest(1, 0, MIXED)
    assert cells.refusal(HOST, nothing) is None
    assert (
        cells.refusal(HOST, nothing, emulator=True)
        == "no dedicated CPU is left for the emulator's threads"
    )


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
