# SPDX-License-Identifier: Apache-2.0

"""A process of an ordinary user that runs scenarios one by one.

It is forked from pytest, which runs as root and performs the privileged actions of
the scenarios. The library runs as it does in Nova: without privileges, and with a
helper that sudo starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import select
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from tests.functional.kernel.accounts import OrdinaryUser

from . import another_process, interpreter_access, library
from .processes import AnotherProcess
from .real_host import SUDO, RealHost
from .root_side import RootSide

#: It may return figures by their names.
Job = Callable[[RealHost], Mapping[str, int] | None]
_PATIENCE = 600.0
_TIME_TO_END = 60.0
_PR_SET_DUMPABLE = 4


class ScenarioFailed(AssertionError):
    """A scenario has failed; the message is its traceback."""


class OrdinaryProcess:
    """Runs jobs on the real host as an ordinary user.

    :param jobs: the available jobs, selected by name.
    :param command: the command that starts helpers; empty: the library's default.
    :param spares: the number of other processes to prepare.
    """

    def __init__(
        self,
        user: OrdinaryUser,
        root_side: RootSide,
        jobs: Iterable[Job],
        command: str = SUDO,
        spares: int = 0,
    ) -> None:
        self._root_side = root_side
        self._pipe, theirs = multiprocessing.Pipe()
        interpreter_access.open_the_way()
        self._pid = os.fork()
        if self._pid == 0:
            self._pipe.close()
            _become(user)
            others = [AnotherProcess.fork(another_process.main) for _ in range(spares)]

            def host() -> RealHost:
                distant: Any = _Distant(theirs)
                state = user.home / "os_acc"
                return RealHost(root_side.places, state, distant, command, others)

            _serve(theirs, host, {job.__name__: job for job in jobs})
        theirs.close()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._pid

    def run(self, job: Job) -> Mapping[str, int]:
        """Run one job, and meanwhile its requests to root; return its figures.

        :raises ScenarioFailed: the job failed.
        """
        self._pipe.send(job.__name__)
        while True:
            if not self._pipe.poll(_PATIENCE):
                # Without the kill, each following job would wait as long.
                os.kill(self._pid, signal.SIGKILL)
                raise ScenarioFailed(f"{job.__name__} is silent")
            kind, *rest = self._pipe.recv()
            if kind == "failed":
                raise ScenarioFailed(f"\n{rest[0]}")
            if kind == "passed":
                return rest[0] or {}
            self._pipe.send(self._do(*rest))

    def close(self) -> None:
        """End the process, its helpers and its guest."""
        self._pipe.close()
        pidfd = os.pidfd_open(self._pid)
        if not select.select([pidfd], [], [], _TIME_TO_END)[0]:
            os.kill(self._pid, signal.SIGKILL)
        os.close(pidfd)
        os.waitpid(self._pid, 0)
        self._root_side.close()

    def _do(
        self, name: str, arguments: tuple[object, ...]
    ) -> tuple[Exception | None, object]:
        try:
            return None, getattr(self._root_side, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - raised again where it was asked
            return error, None


class _Distant:
    """A proxy of :class:`RootSide` over a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._turn = threading.Lock()

    def __getattr__(self, name: str) -> Callable[..., object]:
        def ask(*arguments: object) -> object:
            with self._turn:
                self._pipe.send(("root", name, arguments))
                error, value = self._pipe.recv()
            if error is not None:
                raise error
            return value

        return ask


def _become(user: OrdinaryUser) -> None:
    os.setgroups([])
    os.setgid(user.gid)
    os.setuid(user.uid)
    # After a change of user, /proc/self is inaccessible until an exec.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)
    os.environ.update(HOME=str(user.home), USER=user.name, LOGNAME=user.name)


def _serve(
    pipe: Connection, host: Callable[[], RealHost], jobs: dict[str, Job]
) -> None:
    with contextlib.suppress(EOFError):
        while True:
            job = jobs[pipe.recv()]
            try:
                with host() as under_test:
                    figures = job(under_test)
            except BaseException:  # noqa: BLE001 - the parent raises it
                pipe.send(("failed", traceback.format_exc()))
            else:
                pipe.send(("passed", figures))
    library.end()
    os._exit(0)
