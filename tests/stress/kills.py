# SPDX-License-Identifier: Apache-2.0

"""Kills of a client, its worker or both, at any point."""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from os_acc.testing import TestHost
from tests.stress import processes
from tests.stress.recorder import Point, Recorder


class Way(enum.Enum):
    """The processes that a kill hits."""

    CLIENT = "the client"
    WORKER = "the helper's worker"
    GROUP = "both"
    #: The worker waits until the recovery has been tried.
    ORPHAN = "the client, its worker goes on after the recovery"
    #: The call was queued, and runs after the recovery.
    QUEUED = "the client, its call starts after the recovery"


class Trial(NamedTuple):
    """One kill."""

    way: Way
    point: Point


def trials_at(point: Point) -> list[Trial]:
    """Return the possible kills at a point."""
    if point.place == 0:
        ways = [Way.QUEUED]
    elif point.in_worker:
        ways = [Way.WORKER, Way.GROUP, Way.ORPHAN]
    else:
        ways = [Way.CLIENT]
    return [Trial(way, point) for way in ways]


def record(bench: TestHost) -> None:
    """Record the points of this process, for :func:`recorded`."""
    Recorder(
        str(bench.directory),
        lambda point, what: _note(bench, point, what),
        lambda point, _go, _files: _note(bench, point, "the call"),
    ).install(bench.kernel)


def recorded(bench: TestHost) -> dict[Point, str]:
    """Return the points that were recorded or passed, with their operations."""
    with open(_path(bench, "points"), encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    return {
        Point(call, in_worker == "1", int(place)): what
        for call, in_worker, place, what in lines
    }


def install(bench: TestHost, trial: Trial) -> None:
    """Kill this process, its worker or both at a point; record those before."""
    client = os.getpid()

    def at_touch(point: Point, what: str) -> None:
        _note(bench, point, what)
        if point != trial.point:
            return
        os.close(os.open(_path(bench, "reached"), os.O_CREAT | os.O_WRONLY))
        match trial.way:
            case Way.GROUP:
                os.killpg(0, signal.SIGKILL)
            case Way.ORPHAN:
                os.kill(client, signal.SIGKILL)
                _wait(bench)
            case _:
                os.kill(os.getpid(), signal.SIGKILL)

    def at_call(
        point: Point, carry_out: Callable[[], object], files: Sequence[int]
    ) -> None:
        _note(bench, point, "the call")
        if point != trial.point:
            return
        os.close(os.open(_path(bench, "reached"), os.O_CREAT | os.O_WRONLY))
        if os.fork() == 0:
            try:
                processes.close_files(files)
                _wait(bench)
                carry_out()
            finally:
                os._exit(0)
        os.kill(client, signal.SIGKILL)

    if trial.way in (Way.ORPHAN, Way.QUEUED):
        os.mkfifo(_path(bench, "gate"))
    Recorder(str(bench.directory), at_touch, at_call).install(bench.kernel)


def was_reached(bench: TestHost) -> bool:
    """Return whether the point of the kill was reached."""
    return os.path.exists(_path(bench, "reached"))


def go_on(bench: TestHost) -> None:
    """Resume the processes that outlived the client, and wait for their end."""
    gate = os.open(_path(bench, "gate"), os.O_RDWR | os.O_CREAT)
    try:
        processes.reap()
    finally:
        os.close(gate)


def _note(bench: TestHost, point: Point, what: str) -> None:
    line = f"{point.call}\t{point.in_worker:d}\t{point.place}\t{what}\n"
    with open(_path(bench, "points"), "a", encoding="utf-8") as file:
        file.write(line)


def _wait(bench: TestHost) -> None:
    os.close(os.open(_path(bench, "gate"), os.O_RDONLY))


def _path(bench: TestHost, name: str) -> str:
    return os.path.join(bench.directory, name)
