# SPDX-License-Identifier: Apache-2.0

"""Forked processes that run a function, pause on request, or are killed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from os_acc import exception


class Child:
    """A forked process that pauses where its function requests it, until released."""

    def __init__(self, function: Callable[[Callable[[], None]], object]) -> None:
        answer, self._report = os.pipe()
        self._gate, release = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(release)
            with contextlib.ExitStack() as last:
                last.callback(os._exit, 1)
                self._tell(self._outcome(function))
                os._exit(0)
        os.close(self._report)
        os.close(self._gate)
        self._answer = os.fdopen(answer)
        self._release = os.fdopen(release, "w")

    def _outcome(self, function: Callable[[Callable[[], None]], object]) -> str:
        try:
            return str(function(self._pause))
        except exception.OsAccError as error:
            return type(error).__name__

    def _pause(self) -> None:
        self._tell("paused")
        os.read(self._gate, 1)

    def _tell(self, text: str) -> None:
        os.write(self._report, f"{text}\n".encode())

    def hears(self) -> str:
        """Return the next line that the child reports; empty when it has ended."""
        return self._answer.readline().rstrip("\n")

    def goes_on(self) -> str:
        """Let the child run to its end, and return its outcome."""
        self._release.close()
        outcome = self.hears()
        self._end()
        return outcome

    def is_killed(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._release.close()
        self._end()

    def _end(self) -> None:
        self._answer.close()
        os.waitpid(self.pid, 0)


@pytest.fixture
def in_child() -> Callable[[Callable[[], object]], str]:
    """Return a function that runs another in a fork and returns its outcome as text."""

    def run(function: Callable[[], object]) -> str:
        return Child(lambda _: function()).goes_on()

    return run


@pytest.fixture
def paused_child() -> Callable[..., contextlib.AbstractContextManager[Child]]:
    """Return a function that forks a process, which calls ``pause`` and waits."""

    @contextlib.contextmanager
    def start(
        function: Callable[[Callable[[], None]], object],
    ) -> Iterator[Child]:
        child = Child(function)
        assert child.hears() == "paused"
        yield child

    return start
