# SPDX-License-Identifier: Apache-2.0

"""Nova and os_acc agree on the fit of a guest, its devices and its networks.

With its quirks, Nova's function runs unchanged. Without them, it runs on one
permutation at a time, with a new guest, always with limits that contain the
networks, and with Hall's condition in place of its check of devices.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from nova import objects
from nova.virt import hardware

from os_acc.numa import fit
from os_acc.numa.fit import DeviceRequest, Question, all_served, fit_to_host
from os_acc.objects.numa import NUMANetworkInfo
from tests.functional.nova import numa_objects
from tests.run_figures import note
from tests.unit.numa import cases, nova_claim, oracle, to_nova
from tests.unit.numa.quirks import QUIRKS

#: The cases of each kind: 10,000 in all.
CASES, SEEDS = 500, range(20)
seeds = pytest.mark.parametrize("seed", SEEDS)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    """Register Nova's objects, and silence its logging of each pinning."""
    objects.register_all()
    logging.getLogger(hardware.__name__).setLevel(logging.WARNING)


def drawn_cells(dice: random.Random, question: Question) -> list[int]:
    ids = [cell.id for cell in question.host.cells]
    return dice.sample(ids, dice.randint(0, min(4, len(ids))))


def case_of(seed: int, number: int, question: Question) -> str:
    return f"case {number} of seed {seed}: {question}"


# -- devices ---------------------------------------------------------------------


def filtered_by_nova(stats: Any, question: Question, chosen: list[int]) -> list[str]:
    (request,) = numa_objects.device_requests(question.requests)
    guest = [SimpleNamespace(id=cell) for cell in chosen]
    found = stats._filter_pools_for_numa_cells(stats.pools, request, guest)
    return [pool["name"] for pool in found]


@seeds
def test_the_same_pools_are_near_enough(seed, request):
    dice, counted = random.Random(seed), Counter[str]()
    for number in range(CASES):
        question = device_question(dice, requests=1)
        chosen = drawn_cells(dice, question)
        stats = numa_objects.device_stats(question.host, question.pools)
        theirs = filtered_by_nova(stats, question, chosen)
        ours = nova_claim.near_enough(
            question.host, chosen, question.pools, question.requests[0]
        )
        assert [pool.name for pool in ours] == theirs, case_of(seed, number, question)
        # The number of devices suffices exactly when os_acc allows as many.
        all_of_them = frozenset(pool.name for pool in question.pools)
        anyhow = DeviceRequest(
            "r", question.requests[0].count, all_of_them, question.requests[0].policy
        )
        served = all_served(question.host, chosen, question.pools, [anyhow])
        enough = sum(pool.count for pool in ours) >= anyhow.count
        assert enough is served, case_of(seed, number, question)
        counted[str(enough)] += 1
    assert min(counted["True"], counted["False"]) > CASES // 10
    note(request.node, "Nova agrees: pools near enough", CASES)


@seeds
def test_the_same_requests_are_served(seed, request):
    dice, counted = random.Random(seed), Counter[str]()
    for number in range(CASES):
        question = device_question(dice)
        chosen = drawn_cells(dice, question)
        guest = [objects.InstanceNUMACell(id=cell) for cell in chosen]
        theirs = numa_objects.device_stats(
            question.host, question.pools
        ).support_requests(numa_objects.device_requests(question.requests), None, guest)
        asked = (question.host, chosen, question.pools, question.requests)
        assert nova_claim.served_in_turn(*asked) is theirs, case_of(
            seed, number, question
        )
        exact = all_served(*asked)
        counted["served"] += theirs
        counted["refused"] += not theirs
        counted["refused, and could be served"] += exact and not theirs
        assert exact or not theirs, case_of(seed, number, question)
        if len(question.requests) == 1 and not nova_claim.also_matching(
            question.requests[0]
        ):
            assert exact is theirs, case_of(seed, number, question)
            counted["alone"] += 1
    assert counted["refused, and could be served"]
    assert min(counted[each] for each in ("served", "refused", "alone")) > CASES // 10
    note(request.node, "Nova agrees: requests served", CASES)


def device_question(dice: random.Random, requests: int = 0) -> Question:
    host = cases.topology(dice)
    pools = cases.device_pools(dice, host)
    asked = cases.device_requests(dice, pools)
    return Question(
        host,
        cases.guest(dice),
        pools=pools,
        requests=asked[:requests] if requests else asked,
    )


# -- networks --------------------------------------------------------------------


@seeds
def test_the_same_networks_are_carried(seed, request):
    dice, counted = random.Random(seed), Counter[bool]()
    for number in range(CASES):
        question = Question(
            cases.topology(dice),
            cases.guest(dice),
            networks=cases.guest_networks(dice),
        )
        chosen = drawn_cells(dice, question)
        host = numa_objects.host(question.host)
        for cell, ours in zip(host.cells, question.host.cells, strict=True):
            # A host without network information may lack the field.
            if ours.network_info == NUMANetworkInfo() and dice.random() < 0.5:
                delattr(cell, "_obj_network_metadata")
        theirs = hardware._numa_cells_support_network_metadata(
            host,
            [cell for cell in host.cells if cell.id in chosen],
            to_nova.networks_to_nova(question.networks, objects),
        )
        missing = fit.not_carried(question.host, chosen, question.networks)
        carried = missing == fit.NO_NETWORKS
        assert carried is theirs, case_of(seed, number, question)
        counted[theirs] += 1
    assert min(counted[True], counted[False]) > CASES // 10
    note(request.node, "Nova agrees: networks carried", CASES)


# -- the whole fit ---------------------------------------------------------------


def ids_of(topology: Any) -> tuple[int, ...] | None:
    return topology and tuple(cell.id for cell in topology.cells)


def asked_of_nova(question: Question, stats: Any) -> tuple[int, ...] | None:
    """Return Nova's answer for a new guest."""
    return ids_of(fitted_by_nova(question, stats, numa_objects.limits(question)))


def fitted_by_nova(question: Question, stats: Any, limits: Any) -> Any:
    """Return the guest's cells after Nova's fit; None: they do not fit."""
    with mock.patch.object(
        hardware.CONF.compute,
        "packing_host_numa_cells_allocation_strategy",
        question.pack,
        create=True,
    ):
        return hardware.numa_fit_instance_to_host(
            numa_objects.host(question.host),
            numa_objects.guest(question.guest),
            None,
            limits,
            numa_objects.device_requests(question.requests),
            stats,
        )


@seeds
def test_with_its_quirks_nova_s_answer_is_the_same(seed, request):
    dice, counted = random.Random(seed), Counter[str]()
    for number in range(CASES):
        question = cases.question(dice)
        stats = numa_objects.device_stats(question.host, question.pools)
        theirs = asked_of_nova(question, stats)
        assert nova_claim.fit_as_nova(question) == theirs, case_of(
            seed, number, question
        )
        counted["fits"] += theirs is not None
        counted["does not fit"] += theirs is None
        exact = fit_to_host(question)
        counted["quirks"] += (exact.cells if exact.fits else None) != theirs
    assert counted["quirks"]
    assert min(counted["fits"], counted["does not fit"]) > CASES // 10
    note(request.node, "Nova agrees: guests fitted, with its quirks", CASES)


@pytest.mark.parametrize("quirk", QUIRKS.values(), ids=QUIRKS)
def test_nova_has_each_quirk(quirk, request):
    question = quirk.question
    stats = numa_objects.device_stats(question.host, question.pools)
    assert asked_of_nova(question, stats) == quirk.nova
    assert nova_without_leaks(question) == quirk.exact
    note(request.node, "Nova's quirks", 1)


def test_nova_may_pin_a_cell_to_the_cpus_of_another_or_to_none():
    """Therefore os_acc's verdict does not name the CPUs."""
    question = QUIRKS[
        "the emulator has no CPU where the verdict is of another cell"
    ].question
    stats = numa_objects.device_stats(question.host, question.pools)
    first, _second, third = fitted_by_nova(question, stats, None).cells
    there = question.host.cell(first.id)
    assert there is not None
    assert there.pcpuset.isdisjoint(first.cpu_pinning.values())
    assert third.pcpuset
    assert third.cpu_pinning is None


class ExactStats:
    """Devices that report to Nova whether all requests can be met at once."""

    def __init__(self, question: Question) -> None:
        self.pools = [numa_objects.pool_of(pool) for pool in question.pools]
        self._question = question

    def support_requests(self, requests: Any, mapping: Any, cells: Any) -> bool:
        question, chosen = self._question, [cell.id for cell in cells]
        return oracle.all_served(
            question.host, chosen, question.pools, question.requests
        )


def nova_without_leaks(question: Question) -> tuple[int, ...] | None:
    """Return the first permutation, in Nova's order, that Nova itself accepts alone."""
    orders: list[list[Any]] = []
    permutations: list[Any] = []

    def instead(cells: list[Any], number: int) -> list[Any]:
        orders.append(cells)
        # By id, because each call has objects of its own.
        return [[_by_id(cells, each) for each in ids] for ids in permutations]

    def asked() -> tuple[int, ...] | None:
        limits = numa_objects.limits_with_networks(question)
        return ids_of(fitted_by_nova(question, ExactStats(question), limits))

    patched = SimpleNamespace(permutations=instead, chain=itertools.chain)
    with mock.patch.object(hardware, "itertools", patched):
        asked()
        if not orders:
            return None
        ids = [cell.id for cell in orders[0]]
        for chosen in itertools.permutations(ids, len(question.guest.cells)):
            permutations = [chosen]
            if found := asked():
                return found
    return None


def _by_id(cells: list[Any], number: int) -> Any:
    return next(cell for cell in cells if cell.id == number)


@seeds
def test_without_its_quirks_nova_s_answer_is_the_exact_one(seed, request):
    dice, counted = random.Random(seed), Counter[bool]()
    for number in range(CASES):
        question = cases.question(dice, most_host=4, most_guest=3)
        theirs = nova_without_leaks(question)
        found = fit_to_host(question)
        assert (found.cells if found.fits else None) == theirs, case_of(
            seed, number, question
        )
        counted[found.fits] += 1
    assert min(counted[True], counted[False]) > CASES // 10
    note(request.node, "Nova agrees: guests fitted, without its quirks", CASES)
