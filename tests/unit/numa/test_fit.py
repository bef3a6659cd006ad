# SPDX-License-Identifier: Apache-2.0

"""A guest fits exactly where trying every permutation finds an assignment."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc import exception
from os_acc.numa.fit import networks
from os_acc.numa.fit.devices import DevicePool, DeviceRequest, unserved
from os_acc.numa.fit.question import Question
from os_acc.numa.fit.reasons import ReasonKind
from os_acc.numa.fit.search import MAX_CELLS, Fit, Unmet, fit_to_host, lacking
from os_acc.objects.numa import (
    InstanceNUMACell,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    NUMACell,
    NUMANetworkInfo,
    NUMAPolicy,
    NUMATopology,
)
from tests.expected_errors import has
from tests.unit.numa import cases, oracle

seeds = st.integers(0, 2**32)
patient = settings(deadline=None)


def drawn(seed: int) -> Question:
    return cases.question(random.Random(seed), most_host=6)


# -- any host, any guest ---------------------------------------------------------


@patient
@given(seeds)
def test_the_answer_is_the_first_of_all_there_are(seed: int) -> None:
    question = drawn(seed)
    found = fit_to_host(question)
    first = next(oracle.answers(question), None)
    assert (found.cells if found.fits else None) == first
    unexplained = fit_to_host(question, explain=False)
    assert (unexplained.fits, unexplained.cells) == (found.fits, found.cells)
    assert unexplained.networks == networks.NO_NETWORKS


@patient
@given(seeds)
def test_a_refusal_names_what_cannot_be_met_and_nothing_that_could(seed: int) -> None:
    question = drawn(seed)
    found = fit_to_host(question)
    if found.fits:
        assert (found.unseated, found.networks, found.requests) == (
            (),
            networks.NO_NETWORKS,
            (),
        )
    elif found.unseated:
        assert_minimal(question, found)
    else:
        requests = [each for each in question.requests if each.name in found.requests]
        assert_cannot_be_met_together(question, found.networks, requests)


def assert_minimal(question: Question, found: Fit) -> None:
    """Assert that the unseated guest cells are a minimal conflict."""
    guest = question.guest
    for missing in (None, *found.unseated):
        # The emulator stays with the first cell, so no cell is removed.
        kept = [place for place in found.unseated if place != missing]
        allowed = {
            place: {
                cell.id
                for cell in question.host.cells
                if not any(
                    each.host_cell == cell.id and each.guest_cell == place
                    for each in found.refusals
                )
            }
            for place in range(len(guest.cells))
        }
        seated = all(
            len(group) <= len(set().union(*(allowed[place] for place in group)))
            for group in oracle.groups(kept)
        )
        assert seated is (missing is not None)


def assert_cannot_be_met_together(
    question: Question, unmet: InstanceNUMANetworks, requests: list[DeviceRequest]
) -> None:
    def possible(networks: InstanceNUMANetworks, some: list[DeviceRequest]) -> bool:
        asked = dataclasses.replace(question, networks=networks, requests=tuple(some))
        return next(oracle.answers(asked), None) is not None

    assert not possible(unmet, requests)
    for name in unmet.physnets:
        assert possible(
            dataclasses.replace(unmet, physnets=unmet.physnets - {name}), requests
        )
    if unmet.tunneled:
        assert possible(dataclasses.replace(unmet, tunneled=False), requests)
    for request in requests:
        rest = [each for each in requests if each is not request]
        assert possible(unmet, rest)


@patient
@given(seeds)
def test_all_that_a_cell_of_the_host_refuses_is_told(seed: int) -> None:
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


@patient
@given(seeds)
def test_devices_are_short_where_halls_condition_is_not_met(seed: int) -> None:
    dice = random.Random(seed)
    host = cases.topology(dice)
    pools = cases.device_pools(dice, host)
    requests = cases.device_requests(dice, pools)
    ids = [cell.id for cell in host.cells]
    chosen = dice.sample(ids, dice.randint(0, len(ids)))
    short = unserved(host, chosen, pools, requests)
    assert (not short) is oracle.all_served(host, chosen, pools, requests)
    for names in short:
        group = [each for each in requests if each.name in names]
        assert not oracle.all_served(host, chosen, pools, group)


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


def test_devices_and_networks_together_decide_where_a_guest_goes() -> None:
    question = Question(
        host(4, a=[1, 2]),
        guest(1),
        networks=physnets("a"),
        pools=(DevicePool("gpu", 2, 1), DevicePool("other", 1, 1)),
        requests=(
            DeviceRequest("r", 1, frozenset({"gpu"}), policy=NUMAPolicy.REQUIRED),
        ),
    )
    assert fit_to_host(question).cells == (2,)
    elsewhere = dataclasses.replace(question, networks=physnets("a", "b"))
    assert fit_to_host(elsewhere).cells == (2,)
    refused = fit_to_host(dataclasses.replace(question, host=host(4, a=[1, 3])))
    assert not refused.fits
    assert refused.networks == physnets("a")
    assert refused.requests == ("r",)


def test_what_only_the_host_lacks_is_told_alone() -> None:
    want = DeviceRequest("many", 3, frozenset({"gpu"}), NUMAPolicy.PREFERRED)
    few = DeviceRequest("few", 1, frozenset({"gpu"}), NUMAPolicy.PREFERRED)
    found = fit_to_host(
        Question(
            host(2, a=[0]),
            guest(1),
            networks=physnets("a"),
            pools=(DevicePool("gpu", 0, 2),),
            requests=(few, want),
        )
    )
    assert (found.networks, found.requests) == (physnets(), ("many",))


def test_alike_requests_want_as_much_as_one_that_wants_the_sum() -> None:
    gpu = frozenset({"few", "gpu"})
    alike = tuple(
        DeviceRequest(name, 1, gpu, NUMAPolicy.REQUIRED) for name in ("a", "b", "c")
    )
    question = Question(
        host(3),
        guest(1),
        pools=(DevicePool("few", 0, 1), DevicePool("gpu", 2, 2)),
        requests=alike[:2],
    )
    assert fit_to_host(question).cells == (2,)
    refused = fit_to_host(dataclasses.replace(question, requests=alike))
    assert refused.requests == ("a", "b", "c")
    more = dataclasses.replace(alike[0], name="more", count=2)
    refused = fit_to_host(dataclasses.replace(question, requests=(*alike, more)))
    # The request that is named last is kept.
    assert refused.requests == ("c", "more")


def test_cells_of_the_guest_that_have_too_few_seats_are_told() -> None:
    crowded = fit_to_host(Question(host(2), guest(1, 1, 1)))
    assert crowded.unseated == (0, 1, 2)
    assert not crowded.refusals
    assert fit_to_host(Question(host(2), guest(*[1] * 500))).unseated == (0, 1, 2)
    assert fit_to_host(Question(NUMATopology(), guest(1, 1))).unseated == (0,)
    large = fit_to_host(Question(host(2), guest(1, 5)))
    assert large.unseated == (1,)
    assert [str(each) for each in large.refusals] == [
        "guest cell 1 does not fit host cell 0: "
        "5 shared CPUs are requested, but it has 4",
        "guest cell 1 does not fit host cell 1: "
        "5 shared CPUs are requested, but it has 4",
    ]
    assert {each.reason.why for each in large.refusals} == {ReasonKind.CPUS}


def test_a_guest_without_cells_may_be_anywhere() -> None:
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
    other = dataclasses.replace(far, name="t")
    refused = fit_to_host(dataclasses.replace(question, requests=(far, more)))
    assert refused == Fit(False, requests=("r", "s"))
    # Any two of the requests conflict.
    thrice = dataclasses.replace(question, requests=(far, more, other))
    assert len(fit_to_host(thrice).requests) == 2
    assert fit_to_host(thrice, explain=False) == Fit(False)


def test_what_is_not_in_a_cell_is_told_cell_by_cell() -> None:
    gpu = frozenset({"gpu", "more"})
    question = Question(
        host(4, a=[2], b=[1, 2]),
        guest(1),
        networks=InstanceNUMANetworks(frozenset({"a", "b", "c"}), True),
        pools=(DevicePool("gpu", 3, 1), DevicePool("more", 2, 1)),
        requests=(
            DeviceRequest("far", 2, gpu, NUMAPolicy.SOCKET),
            DeviceRequest("near", 1, gpu, NUMAPolicy.REQUIRED),
            DeviceRequest("anywhere", 2, gpu, NUMAPolicy.PREFERRED),
        ),
    )
    assert [str(each) for each in lacking(question)] == [
        "host cell 0 does not reach network a, network b, devices for far, "
        "devices for near",
        "host cell 1 does not reach network a, devices for far, devices for near",
        "host cell 3 does not reach network a, network b",
    ]
    tunnels = NUMACell(4, network_info=NUMANetworkInfo(tunneled=True))
    elsewhere = dataclasses.replace(
        question, host=NUMATopology((*host(1).cells, tunnels)), requests=()
    )
    assert [str(each) for each in lacking(elsewhere)] == [
        "host cell 0 does not reach tunnelled networks"
    ]


@patient
@given(seeds)
def test_a_cell_that_lacks_nothing_could_have_each_thing_alone(seed: int) -> None:
    question = drawn(seed)
    named = {each.host_cell: each for each in lacking(question)}
    for cell in question.host.cells:
        lack = named.get(cell.id, Unmet(cell.id))
        for request in question.requests:
            served = oracle.all_served(
                question.host, [cell.id], question.pools, [request]
            )
            assert served is (request.name not in lack.requests)
        assert lack.networks == networks.not_carried(
            question.host, [cell.id], question.networks
        )


# -- bounds -----------------------------------------------------------------------


def test_a_host_may_have_more_cells_than_the_bound_if_few_can_carry_a_guest() -> None:
    bare = tuple(NUMACell(number) for number in range(100, 140))
    cells = host(MAX_CELLS).cells
    found = fit_to_host(Question(NUMATopology((*bare, *cells)), guest(4)))
    assert found.cells == (0,)
    large = Question(NUMATopology((*bare, *host(MAX_CELLS + 1).cells)), guest(4))
    with pytest.raises(
        exception.FitUndecided,
        check=has(reason=exception.FitReason.TOO_LARGE),
        match=f"{MAX_CELLS + 1} host cells",
    ) as caught:
        fit_to_host(large)
    refused = [each.host_cell for each in caught.value.refusals]
    assert refused == [cell.id for cell in bare]


def test_the_budget_is_how_many_ways_are_tried() -> None:
    question = Question(
        host(4),
        guest(1, 1),
        pools=(DevicePool("gpu", 3, 1),),
        requests=(
            DeviceRequest("r", 1, frozenset({"gpu"}), policy=NUMAPolicy.REQUIRED),
        ),
    )
    # Cells with devices come first in Nova's order, packed or not: one try is enough.
    assert fit_to_host(question, budget=1).cells == (3, 0)
    elsewhere = dataclasses.replace(
        question, pools=(*question.pools, DevicePool("other", 0, 5))
    )
    assert fit_to_host(elsewhere, budget=1).cells == (0, 3)
    apart = dataclasses.replace(
        elsewhere, pools=(*elsewhere.pools, DevicePool("more", 1, 5))
    )
    assert fit_to_host(apart, budget=2).cells == (0, 3)
    with pytest.raises(
        exception.FitUndecided,
        check=has(reason=exception.FitReason.TOO_HARD),
        match="1 placements",
    ) as caught:
        fit_to_host(apart, budget=1)
    assert not caught.value.retryable
    assert caught.value.refusals == ()
    full = NUMACell(9, socket=0)
    larger = dataclasses.replace(apart, host=NUMATopology((*apart.host.cells, full)))
    with pytest.raises(exception.FitUndecided) as caught:
        fit_to_host(larger, budget=1)
    assert {each.host_cell for each in caught.value.refusals} == {full.id}
    nowhere = dataclasses.replace(question, pools=(DevicePool("gpu", None, 1),))
    # The search detects without a further try that the last assignment is excluded.
    assert fit_to_host(nowhere, budget=1).requests == ("r",)


@pytest.mark.parametrize("seed", range(8))
def test_a_large_host_is_decided_within_few_ways(seed: int) -> None:
    """Each network is on few cells, devices are scattered, all policies are used."""
    dice = random.Random(seed)
    names = [f"n{at}" for at in range(24)]
    everywhere = range(MAX_CELLS)
    topology = host(MAX_CELLS, **{name: dice.sample(everywhere, 2) for name in names})
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
        found = fit_to_host(question, budget=40)
        verdicts.add(found.fits)
        if found.fits:
            assert oracle.has_networks(question, found.cells)
            assert oracle.all_served(topology, found.cells, pools, question.requests)
        else:
            assert_none_can_be_spared(question, found)
    assert verdicts == {True, False}


def assert_none_can_be_spared(question: Question, refused: Fit) -> None:
    """Assert that the refused requirements are a minimal conflict."""
    named = [each for each in question.requests if each.name in refused.requests]

    def fits(names: frozenset[str], requests: list[DeviceRequest]) -> bool:
        asked = dataclasses.replace(
            question,
            networks=InstanceNUMANetworks(names),
            requests=tuple(requests),
        )
        return fit_to_host(asked, explain=False).fits

    names = refused.networks.physnets
    assert not fits(names, named)
    assert all(fits(names - {name}, named) for name in names)
    assert all(
        fits(names, [each for each in named if each is not one]) for one in named
    )
