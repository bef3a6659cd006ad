# SPDX-License-Identifier: Apache-2.0

"""A model of Nova's claim has the quirks that the exact fit does not have."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc import exception
from os_acc.numa.fit.networks import NO_NETWORKS
from os_acc.numa.fit.question import DevicePool, DeviceRequest, Question
from os_acc.numa.fit.search import fit_to_host
from os_acc.objects.numa import InstanceNUMATopology, NUMAPolicy
from tests.unit.numa import cases, quirks
from tests.unit.numa.nova_claim import fit_as_nova
from tests.unit.numa.quirks import QUIRKS

every_quirk = pytest.mark.parametrize("quirk", QUIRKS.values(), ids=QUIRKS)


@every_quirk
def test_the_truth_is_another_than_nova_s(quirk: quirks.Quirk) -> None:
    assert quirk.exact != quirk.nova
    found = fit_to_host(quirk.question)
    assert (found.cells if found.fits else None) == quirk.exact


@every_quirk
def test_with_the_quirk_the_answer_is_nova_s(quirk: quirks.Quirk) -> None:
    assert fit_as_nova(quirk.question) == quirk.nova


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_one_cell_and_one_kind_of_device_have_no_quirk(seed: int) -> None:
    """No state leaks between cells, and no request takes another's devices."""
    question = cases.question(random.Random(seed), most_guest=1)
    cell = dataclasses.replace(question.guest.cells[0], pagesize=None)
    plain = dataclasses.replace(
        question,
        guest=dataclasses.replace(question.guest, cells=(cell,)),
        # Without limits, Nova does not check networks.
        networks=question.networks if question.limits else NO_NETWORKS,
        requests=tuple(
            DeviceRequest(request.name, request.count, request.pools, request.policy)
            for request in question.requests[:1]
        ),
    )
    found = fit_to_host(plain)
    assert fit_as_nova(plain) == (found.cells if found.fits else None)


def test_a_guest_without_cells_may_have_any_device() -> None:
    quirk = QUIRKS["a request takes what only a later one can use"]
    question = dataclasses.replace(quirk.question, guest=InstanceNUMATopology())
    assert fit_as_nova(question) == ()
    thrice = (*question.requests, *question.requests)
    assert fit_as_nova(dataclasses.replace(question, requests=thrice)) is None


def test_the_budget_is_how_often_cells_are_held_against_one_another() -> None:
    host = quirks.host(*(quirks.host_cell(number, 1) for number in range(8)))
    cells = [quirks.guest_cell(own=1)] * 4
    far = DeviceRequest("any:x:0", 1, frozenset({quirks.VF}), NUMAPolicy.REQUIRED)
    pools = (DevicePool(quirks.VF, None, 1),)
    question = Question(host, quirks.guest(*cells), pools=pools, requests=(far,))
    assert fit_as_nova(question, budget=8 * 7 * 6 * 5 * 4) is None
    with pytest.raises(exception.FitUndecided, match="4 of 8 cells"):
        fit_as_nova(question, budget=8 * 7 * 6 * 5 * 4 - 1)
    assert not fit_to_host(question).fits
