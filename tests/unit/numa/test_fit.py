# SPDX-License-Identifier: Apache-2.0

"""A guest fits exactly where trying every permutation finds an assignment."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc import exception
from os_acc.numa.fit import DeviceRequest, Fit, Question, fit_to_host, ordered
from os_acc.numa.nearest import DevicePool
from os_acc.objects.numa import (
    CPUPolicy,
    InstanceNUMACell,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    NUMACell,
    NUMANetworkInfo,
    NUMAPolicy,
    NUMATopology,
)
from tests.unit.numa import cases, oracle
from tests.unit.numa.nova_claim import fit_as_nova
from tests.unit.numa.quirks import QUIRKS

seeds = st.integers(0, 2**32)
patient = settings(deadline=None)


def drawn(seed: int) -> Question:
    return cases.question(random.Random(seed), most_host=6)


# -- any host, any guest ---------------------------------------------------------


@patient
@given(seeds)
def test_the_answer_is_the_first_of_all_there_are(seed):
    question = drawn(seed)
    found = fit_to_host(question)
    first = next(oracle.answers(question), None)
    assert (found.cells if found.fits else None) == first


@patient
@given(seeds)
def test_all_that_a_cell_of_the_host_refuses_is_told(seed):
    question = drawn(seed)
    named = {
        (each.host_cell, each.guest_cell) for each in fit_to_host(question).refusals
    }
    for host in question.host.cells:
        for place, cell in enumerate(question.guest.cells):
            alone = dataclasses.replace(
                question,
                host=NUMATopology((host,)),
                guest=InstanceNUMATopology(
                    (cell,),
                    question.guest.emulator_threads_isolated and not place,
                ),
            )
            goes = next(oracle.ways(alone), None) is not None
            assert goes is ((host.id, place) not in named)


# -- single guests ----------------------------------------------------------------


def host(number: int, **networks_of: list[int]) -> NUMATopology:
    """Return a host with empty cells of four shared CPUs, two cells per socket."""
    return NUMATopology(
        tuple(
            NUMACell(
                cell,
                cpuset=frozenset(range(cell * 4, cell * 4 + 4)),
                memory=1024,
                socket=cell // 2,
                network_info=NUMANetworkInfo(
                    frozenset(name for name, at in networks_of.items() if cell in at)
                ),
            )
            for cell in range(number)
        )
    )


def guest(*cpus: int) -> InstanceNUMATopology:
    return InstanceNUMATopology(
        tuple(InstanceNUMACell(frozenset(range(n)), memory=256) for n in cpus)
    )


def physnets(*names: str) -> InstanceNUMANetworks:
    return InstanceNUMANetworks(frozenset(names))


def test_each_guest_cell_has_a_host_cell_of_its_own():
    assert fit_to_host(Question(host(2), guest(1, 1))).cells == (0, 1)
    assert fit_to_host(Question(host(2), guest(1, 1, 1))) == Fit(False)
    assert fit_to_host(Question(host(2), guest(*[1] * 500))) == Fit(False)
    assert fit_to_host(Question(NUMATopology(), guest(1, 1))) == Fit(False)
    large = fit_to_host(Question(host(2), guest(1, 5)))
    assert not large.fits
    assert [str(each) for each in large.refusals] == [
        "guest cell 1 does not fit host cell 0: "
        "5 shared CPUs are requested, but it has 4",
        "guest cell 1 does not fit host cell 1: "
        "5 shared CPUs are requested, but it has 4",
    ]
    assert all("shared CPUs" in each.reason for each in large.refusals)


def test_a_guest_without_cells_may_be_anywhere():
    far = DeviceRequest("r", 1, frozenset({"gpu"}), NUMAPolicy.REQUIRED)
    question = Question(
        host(2, a=[0]),
        InstanceNUMATopology(),
        networks=physnets("a"),
        pools=(DevicePool("gpu", None, 1),),
        requests=(far,),
    )
    assert fit_to_host(question) == Fit(True)
    more = dataclasses.replace(far, name="s")
    assert fit_to_host(dataclasses.replace(question, requests=(far, more))) == Fit(
        False
    )


# -- bounds -----------------------------------------------------------------------


def test_a_host_may_have_many_cells():
    bare = tuple(NUMACell(number) for number in range(100, 140))
    many = NUMATopology((*bare, *host(64).cells))
    assert fit_to_host(Question(many, guest(4))).cells == (0,)
    assert fit_to_host(Question(many, guest(*[4] * 64))).cells == tuple(range(64))
    assert not fit_to_host(Question(many, guest(*[4] * 65))).fits


def test_the_budget_is_how_many_sets_are_tried():
    """The guest needs both devices, which are on the last cell of the order."""
    requests = tuple(
        DeviceRequest(name, 1, frozenset({"a", "b"}), NUMAPolicy.REQUIRED)
        for name in ("first", "second")
    )
    pools = (DevicePool("a", 1, 1), DevicePool("b", 0, 1), DevicePool("c", 2, 9))
    question = Question(host(3), guest(1, 1), pools=pools, requests=requests)
    # None, one and two cells; (2, 0) and (2, 1) have one device each.
    assert fit_to_host(question, budget=6).cells == (0, 1)
    with pytest.raises(exception.FitUndecided, match="5 sets") as caught:
        fit_to_host(question, budget=5)
    assert not caught.value.retryable
    assert caught.value.elsewhere
    assert caught.value.hint
    nowhere = dataclasses.replace(question, pools=(DevicePool("gpu", None, 1),))
    # The first check excludes every assignment.
    assert fit_to_host(nowhere, budget=1) == Fit(False)


@pytest.mark.parametrize("seed", range(8))
def test_a_large_host_is_decided_within_the_budget(seed):
    """Each network is on few cells, devices are scattered, all policies are used."""
    dice = random.Random(seed)
    names = [f"n{at}" for at in range(24)]
    everywhere = range(16)
    topology = host(16, **{name: dice.sample(everywhere, 2) for name in names})
    pools = tuple(
        DevicePool(f"p{at}", dice.choice(everywhere), dice.randint(1, 4))
        for at in range(32)
    )
    requests = tuple(
        DeviceRequest(
            f"r{at}",
            dice.randint(1, 6),
            frozenset(pool.name for pool in dice.sample(pools, 8)),
            dice.choice((NUMAPolicy.REQUIRED, NUMAPolicy.SOCKET, NUMAPolicy.LEGACY)),
        )
        for at in range(10)
    )
    verdicts = set()
    for wanted, times in ((2, 1), (8, 1), (24, 1), (24, 4)):
        question = Question(
            topology,
            guest(*[1] * 8),
            networks=physnets(*names[:wanted]),
            pools=pools,
            requests=tuple(
                dataclasses.replace(each, count=each.count * times) for each in requests
            ),
        )
        found = fit_to_host(question)
        verdicts.add(found.fits)
        if found.fits:
            assert oracle.has_networks(question, found.cells)
            assert oracle.all_served(topology, found.cells, pools, question.requests)
    assert verdicts == {True, False}


every_quirk = pytest.mark.parametrize("quirk", QUIRKS.values(), ids=QUIRKS)


@every_quirk
def test_the_truth_is_another_than_nova_s(quirk):
    assert quirk.exact != quirk.nova
    found = fit_to_host(quirk.question)
    assert (found.cells if found.fits else None) == quirk.exact


@every_quirk
def test_with_the_quirk_the_answer_is_nova_s(quirk):
    assert fit_as_nova(quirk.question) == quirk.nova


# -- the order of host cells: Nova's, spread or packed ------------------------------


def cell(number: int, free: int = 8, sharing: int = 0, memory: int = 0) -> NUMACell:
    """Return a cell with free dedicated CPUs, and ``sharing`` shared CPUs in use."""
    return NUMACell(
        number,
        pcpuset=frozenset(range(8)),
        pinned_cpus=frozenset(range(8 - free)),
        memory=1024,
        memory_usage=memory,
        cpu_usage=sharing,
    )


HOST = (
    cell(0, free=4, sharing=2, memory=0),
    cell(1, free=8, sharing=3, memory=512),
    cell(2, free=8, sharing=2, memory=256),
    cell(3, free=2, sharing=0, memory=256),
)
POOLS = (DevicePool("a", 1, 2), DevicePool("b", 3, 1), DevicePool("c", 3, 2))
REQUEST = DeviceRequest("r", 1, frozenset({"a"}))


@pytest.mark.parametrize(
    ("policy", "spread", "packed"),
    [
        (CPUPolicy.SHARED, [3, 0, 2, 1], [1, 2, 0, 3]),
        (CPUPolicy.DEDICATED, [2, 1, 0, 3], [3, 0, 1, 2]),
        (CPUPolicy.MIXED, [2, 1, 0, 3], [3, 0, 1, 2]),
    ],
)
def test_cpus_come_before_memory(policy, spread, packed):
    guest = InstanceNUMATopology((InstanceNUMACell(cpu_policy=policy),))
    for pack, expected in ((False, spread), (True, packed)):
        question = Question(NUMATopology(HOST), guest, pack=pack)
        assert [each.id for each in ordered(question)] == expected


@pytest.mark.parametrize(
    ("requests", "spread", "packed"),
    [
        ((REQUEST,), [3, 1, 0, 2], [3, 1, 2, 0]),
        ((), [0, 2, 1, 3], [2, 0, 1, 3]),
    ],
)
def test_cells_with_devices_are_for_those_who_want_some(requests, spread, packed):
    guest = InstanceNUMATopology((InstanceNUMACell(),))
    for pack, expected in ((False, spread), (True, packed)):
        question = Question(
            NUMATopology(HOST), guest, pools=POOLS, requests=requests, pack=pack
        )
        assert [each.id for each in ordered(question)] == expected


@pytest.mark.parametrize("number", [0, 4, 5])
def test_where_there_is_no_choice_there_is_no_order(number):
    guest = InstanceNUMATopology((InstanceNUMACell(),) * number)
    assert ordered(Question(NUMATopology(HOST), guest, pools=POOLS)) == HOST
