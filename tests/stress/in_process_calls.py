# SPDX-License-Identifier: Apache-2.0

"""Privileged calls without a child process, for checks after a recovery.

A worker of the helper is a fork of the calling process. For a process as big as
pytest's the fork costs ten times as much as the work. Killed, struck and recovered
calls have real workers; the checks after them may have threads, which take the same
locks, do the same writes, and are given up at the same deadline.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent import futures
from typing import TypeAlias

import pytest

from os_acc import deadlines
from os_acc.privsep import worker
from os_acc.privsep.outcome import CallResult

Started: TypeAlias = tuple[list[CallResult], futures.Future[None]]


@contextlib.contextmanager
def for_workers() -> Iterator[None]:
    """Carry out each privileged call of this process in a thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_begin", _begin)
        patch.setattr(worker, "_answers", _answers)
        yield


def _begin(results: worker.Results, *_others: object) -> Started:
    answers: list[CallResult] = []
    return answers, deadlines.begin(lambda: answers.extend(results()))


def _answers(started: Started, count: int, deadline: float) -> tuple[CallResult, ...]:
    answers, ended = started
    left = max(0.0, deadline - time.monotonic())
    _, late = futures.wait([ended], left)
    return worker._complete(list(answers), count, not late)
