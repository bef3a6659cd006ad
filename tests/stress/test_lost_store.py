# SPDX-License-Identifier: Apache-2.0

"""A device that a consumer has goes to no other after a loss of the store.

The store is lost at every point at which a plug touches disk or host, with devices
of every kind in use, and plugs of every kind.
"""

from __future__ import annotations

import itertools
import os
import random
from typing import NamedTuple

import pytest

from os_acc.testing import Snapshot, TestHost
from tests import run_figures
from tests.stress import lost_store, processes
from tests.stress.lost_store import DEVICES, Holders, Kind, Loss, consumer
from tests.stress.recorder import Point, Recorder
from tests.stress.second_service import SecondService

RIVAL, OTHER = consumer(99), consumer(98)
#: The points of each plug are divided among so many shares.
SHARES = 24
#: The random moments are spread over parts, and these among so many shares.
PARTS, PART_SHARES = 40, 40
#: The store is lost at every n-th point, by the profile of Hypothesis.
_EVERY = {"stress": 1, "shrink": 1}
_SELDOM = 16
#: The number of random moments in a part, by the same profile.
_MOMENTS = {"stress": 25, "shrink": 25}
_FEW = 1
#: The approximate number of touches of a plug in the process of its service.
_TOUCHES = 60


class Trial(NamedTuple):
    """One loss of the store."""

    point: Point
    loss: Loss
    #: Whether the plugging service is the first to detect the loss.
    finds_out: bool


class Stage(NamedTuple):
    """A host on which every kind of device is in use.

    :ivar pristine: the host before anything was plugged.
    """

    bench: TestHost
    holders: Holders
    pristine: Snapshot


@pytest.fixture
def stage(place: str) -> Stage:
    bench = lost_store.build(os.path.join(place, "stage"))
    pristine = bench.kernel.snapshot()

    def fill() -> Holders:
        manager, holders = bench.start_here(), Holders()
        for number, (kind, (place, _free)) in enumerate(DEVICES.items()):
            assert holders.plug(manager, consumer(number), place, kind)
        return holders

    return Stage(bench, processes.result(fill), pristine)


@pytest.mark.parametrize(
    "has_it", [False, True], ids=["of a free one", "of one in use"]
)
@pytest.mark.parametrize("kind", Kind, ids=lambda each: each.name.lower())
@pytest.mark.parametrize("loss", Loss, ids=lambda each: each.name.lower())
def test_nothing_is_given_twice_wherever_a_plug_loses_the_store(
    request, stage, place, loss, kind, has_it, share
):
    wanted = DEVICES[kind][0 if has_it else 1]
    points = _record(stage, os.path.join(place, "recorded"), wanted, kind)
    profile = request.config.getoption("--hypothesis-profile")
    numbered = list(enumerate(points))[:: _EVERY.get(profile, _SELDOM)]
    trials = [
        Trial(point, loss, (number + list(Loss).index(loss)) % 2 == 1)
        for number, point in share.select(numbered, SHARES)
    ]

    def attempt(trial: Trial) -> str | None:
        number = trials.index(trial)
        bench = stage.bench.copy(os.path.join(place, f"{os.getpid()}-{number}"))
        ended = processes.call(lambda: _lose(stage, bench, trial, wanted, kind, number))
        bench.remove()
        return f"{trial}:\n{ended.why}" if ended.why else None

    troubles = processes.share_out(trials, attempt)
    run_figures.note(request.node, "stores lost at a point of a plug", len(trials))
    text = f"{len(troubles)} of {len(trials)} not survived, the first:\n"
    assert not troubles, text + troubles[0]


def _record(stage: Stage, directory: str, wanted: str, kind: Kind) -> list[Point]:
    bench = stage.bench.copy(directory)
    notes = os.path.join(directory, "points")

    def run() -> None:
        def note(point: Point, _what: str) -> None:
            with open(notes, "a", encoding="utf-8") as file:
                file.write(f"{point.call}\t{point.in_worker:d}\t{point.place}\n")

        manager = bench.start_here()
        recorder = Recorder(str(bench.directory), note, lambda _call, _go, _files: None)
        recorder.install(bench.kernel)
        lost_store.watch_transactions(recorder, lambda: False)
        stage.holders.plug(manager, RIVAL, wanted, kind)

    processes.result(run)
    with open(notes, encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    bench.remove()
    return [Point(call, inside == "1", int(number)) for call, inside, number in lines]


def _lose(
    stage: Stage, bench: TestHost, trial: Trial, wanted: str, kind: Kind, seed: int
) -> None:
    mark = os.path.join(bench.directory, "lost")
    holders, manager = stage.holders, bench.start_here()

    def strike(point: Point, _what: str) -> None:
        if point == trial.point:
            trial.loss.strike(bench, random.Random(seed))
            with open(mark, "w"):
                pass

    recorder = Recorder(str(bench.directory), strike, lambda _call, _go, _files: None)
    recorder.install(bench.kernel)
    lost_store.watch_transactions(
        recorder, lambda: not trial.finds_out and os.path.exists(mark)
    )
    holders.plug(manager, RIVAL, wanted, kind)
    assert os.path.exists(mark), "the point is not there any more"
    with recorder.quiet():
        lost_store.check(bench, manager, holders, stage.pristine)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=pytest.mark.share(PART_SHARES, part))
        for part in range(PARTS)
    ],
)
def test_nothing_is_given_twice_by_two_services_that_lose_the_store(
    request, stage, place, seed, part
):
    """Both plug, and the store is lost at a random moment."""
    profile = request.config.getoption("--hypothesis-profile")
    count = _MOMENTS.get(profile, _FEW)
    moments = range(part * count, (part + 1) * count)
    print(f"to have these moments again: --hypothesis-seed={seed}")

    def attempt(number: int) -> str | None:
        bench = stage.bench.copy(os.path.join(place, f"{os.getpid()}-{number}"))
        rng = random.Random(f"{seed}, {number}")
        ended = processes.call_with_all(lambda: _meet(stage, bench, rng))
        bench.remove()
        return f"moment {number}:\n{ended.why}" if ended.why else None

    troubles = processes.share_out(moments, attempt)
    run_figures.note(request.node, "stores lost at a random moment", len(moments))
    text = f"{len(troubles)} of {len(moments)} not survived, the first:\n"
    assert not troubles, text + troubles[0]


def _meet(stage: Stage, bench: TestHost, rng: random.Random) -> None:
    holders, loss = stage.holders, rng.choice(list(Loss))
    (mine, my_kind), (theirs, their_kind) = (
        (rng.choice(DEVICES[kind]), kind) for kind in rng.choices(list(Kind), k=2)
    )
    touches, at = itertools.count(1), rng.randrange(1, _TOUCHES)

    def strike(point: Point, _what: str) -> None:
        if not point.in_worker and next(touches) == at:
            loss.strike(bench, rng)

    with SecondService.running() as second:
        manager = bench.start_here()
        wanted = lost_store.request_for(manager, theirs, their_kind)
        recorder = Recorder(
            str(bench.directory), strike, lambda _call, _go, _files: None
        )
        with second.at_work(bench, OTHER, wanted):
            recorder.install(bench.kernel)
            holders.plug(manager, RIVAL, mine, my_kind)
        if next(touches) <= at:
            loss.strike(bench, rng)
        with recorder.quiet():
            holders.given(OTHER, second.answer() or [])
            lost_store.check(bench, manager, holders, stage.pristine)
