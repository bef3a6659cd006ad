# SPDX-License-Identifier: Apache-2.0

"""A host cell fits a guest cell, or gives the reason why it does not."""

import dataclasses
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc.numa import cells
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

CORES = tuple(frozenset({n, n + 1}) for n in range(0, 8, 2))
#: Four cores of two threads, for both shared and dedicated CPUs.
HOST = NUMACell(
    0,
    frozenset(range(8)),
    frozenset(range(8)),
    memory=1024,
    siblings=CORES,
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


def says(refusal: str | None, found: str | None) -> bool:
    """Return whether a refusal has these words; None: there is no refusal."""
    return refusal is None if found is None else found in (refusal or "")


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
def test_pages_are_of_the_size_asked_for_and_whole_and_free(size, memory, found):
    cell = guest(1, memory=memory, pages=size)
    there = host(mempages=PAGES[::-1])
    assert cells.page_size(there, cell) == found
    refusal = cells.refusal(there, cell)
    assert refusal == (found if isinstance(found, str) else None)


@pytest.mark.parametrize(
    ("changes", "cell", "found"),
    [
        ({}, {"pages": PageSize.LARGE}, "no large pages"),
        ({}, {"pages": PageSize.ANY}, "no pages of a known size"),
        ({}, {"pages": PageSize.SMALL}, "no pages of a known size"),
        ({}, {"pages": 2048}, "no pages of 2048 KiB"),
        # Without a request, the pages are the smallest ones, which may be too large.
        ({"mempages": (LARGE,)}, {"memory": 3}, "3072 KiB are not a whole number"),
        # A guest with shared CPUs may overcommit memory, but not with itself.
        ({"mempages": PAGES}, {"memory": 1024}, None),
        ({"mempages": PAGES}, {"memory": 1025}, "pages for 1024 MiB are free"),
        ({"memory_usage": 256}, {"memory": 1024}, None),
        ({"memory_usage": 256}, {"memory": 1025}, "it has 1024 MiB"),
    ],
)
def test_memory_that_is_not_there_is_refused(changes, cell, found):
    assert says(cells.refusal(host(**changes), guest(1, **cell)), found)


@pytest.mark.parametrize("policy", [DEDICATED, MIXED])
def test_a_guest_with_dedicated_cpus_does_not_overcommit_memory(policy):
    for there, memory, free in (
        (host(mempages=PAGES), 512, "pages for 512 MiB are free"),
        (host(memory_usage=256), 768, "768 MiB are free"),
    ):
        fits = guest(own=1, policy=policy, memory=memory)
        assert cells.refusal(there, fits) is None
        more = dataclasses.replace(fits, memory=memory + 1)
        refusal = f"{memory + 1} MiB are requested, but {free}"
        assert cells.refusal(there, more) == refusal


# -- CPUs and limits ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "cell", "found"),
    [
        ({}, guest(8), None),
        ({}, guest(9), "9 shared CPUs are requested, but it has 8"),
        ({}, guest(own=8, policy=DEDICATED), None),
        ({}, guest(own=9, policy=DEDICATED), "9 dedicated CPUs are requested, but it"),
        ({}, guest(9, 1, MIXED), "9 shared CPUs are requested, but it has 8"),
        ({"pinned_cpus": {0}}, guest(own=8, policy=DEDICATED), "but 7 are free"),
        # The usage of shared CPUs is not counted.
        ({"pinned_cpus": {0}, "cpu_usage": 99}, guest(8), None),
        # A CPU outside every core cannot be dedicated.
        ({"siblings": CORES[:3]}, guest(own=7, policy=DEDICATED), "but 6 are free"),
    ],
)
def test_cpus_are_counted_by_their_kind(changes, cell, found):
    assert says(cells.refusal(host(**changes), cell), found)


@pytest.mark.parametrize(
    ("usage", "cell", "limits", "found"),
    [
        (
            (10, 0),
            guest(3),
            (1.5, 1.0),
            "13 CPUs would share its CPUs; the limit is 12",
        ),
        ((10, 0), guest(3, 1, MIXED), (1.5, 1.0), "13 CPUs would share"),
        ((9, 0), guest(3), (1.5, 1.0), None),
        ((10, 0), guest(3), None, None),
        # Only what is shared has a limit.
        ((99, 768), guest(own=3, policy=DEDICATED), (1.0, 0.5), None),
        ((0, 769), guest(1), (16.0, 1.0), "1025 MiB would be used; the limit is 1024"),
        ((0, 769), guest(1), (16.0, 1.25), None),
    ],
)
def test_overcommitment_has_a_limit(usage, cell, limits, found):
    there = host(cpu_usage=usage[0], memory_usage=usage[1])
    refusal = cells.refusal(there, cell, NUMALimits(*limits) if limits else None)
    assert says(refusal, found)


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        (
            guest(own=8, policy=DEDICATED),
            "9 dedicated CPUs are requested, but it has 8",
        ),
        (guest(8), None),
        (guest(1, 0, MIXED), "no dedicated CPU is left for the emulator's threads"),
    ],
)
def test_the_emulator_counts_among_dedicated_cpus(cell, found):
    assert cells.refusal(HOST, cell) is None
    assert says(cells.refusal(HOST, cell, emulator=True), found)


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
        ((2, 2, 1), 2, None, 5),
        # Whole sets of siblings only, and the same number from each core.
        ((2, 2, 1), 2, REQUIRE, 4),
        ((4, 3, 2), 4, REQUIRE, 6),
        # Only cores without a thread in use.
        ((2, 2, 1), 2, ISOLATE, 2),
        ((1, 1, 1), 1, ISOLATE, 3),
    ],
)
def test_as_many_cpus_can_be_dedicated_as_the_thread_policy_allows(
    free, threads, policy, most
):
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
def test_some_hosts_can_never_serve_a_thread_policy(there, policy, why):
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
def test_the_emulator_has_a_cpu_more(free, policy, most):
    there = with_free(*free)
    for number in range(1, sum(free) + 1):
        refusal = cells.dedicated_cpu_refusal(there, number, policy, emulator=True)
        assert (refusal is None) is (number <= most)
    assert cells.dedicated_cpu_refusal(there, most, policy) is None


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
def test_counting_finds_what_trying_finds(free, policy, number):
    refusal = cells.dedicated_cpu_refusal(with_free(*free, threads=3), number, policy)
    assert (refusal is None) is (number in packings(free, policy))
