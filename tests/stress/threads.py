# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""Privileged calls without a child, for what only shows that all is well again.

A worker of the helper is a fork of the process that it is called in. Of one
as big as pytest's that costs ten times what the worker does. What is being
killed, struck or recovered has real workers; what comes after that may have
threads, which take the same locks, do the same writes, and are given up at
the same deadline.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent import futures

import pytest

from os_acc import unending
from os_acc.privsep import worker
from os_acc.privsep.outcome import Outcome, Result


@contextlib.contextmanager
def for_workers() -> Iterator[None]:
    """Let each privileged call of this process be carried out in a thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_in_child", _in_thread)
        yield


def _in_thread(
    count: int, deadline: float, job: worker.Job, _locks: Sequence[int]
) -> tuple[Result, ...]:
    answers: list[Result] = []
    ended = unending.begin(_work, count, job, answers)
    left = max(0.0, deadline - time.monotonic())
    _, late = futures.wait([ended], left)
    return worker._complete(list(answers), count, not late)


def _work(count: int, job: worker.Job, answers: list[Result]) -> None:
    for index in range(count):
        answers.append(worker._outcome(job, index))
        if answers[-1].outcome != Outcome.OK:
            return
