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


"""A process of an ordinary user's, in which scenarios run one by one.

It is forked from pytest, which is root, and asks that for what only root can
do. So the library runs as it does below Nova: it has no privileges, and its
helper is started by sudo.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from . import library
from .host import Places
from .real_host import RealHost
from .root_side import RootSide

Job = Callable[[RealHost], None]
_PATIENCE = 300.0
_PR_SET_DUMPABLE = 4


class ScenarioFailed(AssertionError):
    """A scenario has failed; the message is its traceback."""


class OrdinaryProcess:
    """Runs jobs on the real host as an ordinary user.

    :param jobs: what it can be asked to run, by name.
    """

    def __init__(
        self,
        uid: int,
        home: Path,
        places: Places,
        root_side: RootSide,
        jobs: dict[str, Job],
    ) -> None:
        self._root_side = root_side
        self._pipe, theirs = multiprocessing.Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._pipe.close()
            _become(uid, home)
            _serve(theirs, places, home, jobs)
        theirs.close()

    def run(self, name: str) -> None:
        """Run one job; do meanwhile what it asks root for.

        :raises ScenarioFailed: it failed.
        """
        self._pipe.send(name)
        while True:
            if not self._pipe.poll(_PATIENCE):
                raise ScenarioFailed(f"{name} is silent")
            kind, *rest = self._pipe.recv()
            if kind == "failed":
                raise ScenarioFailed(f"\n{rest[0]}")
            if kind == "passed":
                return
            self._pipe.send(self._do(*rest))

    def close(self) -> None:
        """End the process."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._root_side.let_go()

    def _do(self, name: str, arguments: tuple[object, ...]) -> Exception | None:
        try:
            getattr(self._root_side, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - raised again where it was asked
            return error
        return None


class _Distant:
    """:class:`RootSide`, at the other end of a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._turn = threading.Lock()

    def __getattr__(self, name: str) -> Callable[..., None]:
        def ask(*arguments: object) -> None:
            with self._turn:
                self._pipe.send(("root", name, arguments))
                error: Exception | None = self._pipe.recv()
            if error is not None:
                raise error

        return ask


def _become(uid: int, home: Path) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    # Whoever changes users loses its own /proc/self, unless it starts afresh.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)
    os.environ.update(HOME=str(home), USER=home.name, LOGNAME=home.name)


def _serve(pipe: Connection, places: Places, home: Path, jobs: dict[str, Job]) -> None:
    root_side: Any = _Distant(pipe)
    with contextlib.suppress(EOFError):
        while True:
            name = pipe.recv()
            try:
                with RealHost(places, home / "os_acc", root_side) as host:
                    jobs[name](host)
            except BaseException:  # noqa: BLE001 - the parent raises it
                pipe.send(("failed", traceback.format_exc()))
            else:
                pipe.send(("passed",))
    library.end()
    os._exit(0)
