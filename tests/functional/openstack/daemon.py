# SPDX-License-Identifier: Apache-2.0

"""A program of its own beside OpenStack's WSGI services, ended by its process id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

#: Seconds until a condition has to be true; here it takes about ten.
PATIENCE = 300.0


class Daemon:
    """A running program with a log, the leader of a process group.

    It ends with its parent process.

    :param environment: variables that add to those of this process and override them.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._name, self._log = name, log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig=TERM", *command],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def log(self) -> str:
        """Return its output so far."""
        return self._log.read_text(errors="replace")

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true.

        :raises RuntimeError: the program has ended, or the time has.
        """
        limit = time.monotonic() + PATIENCE
        while not condition():
            if self._process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"{self._name} is not ready:\n{self.log()[-8000:]}")
            time.sleep(0.1)

    def end(self) -> None:
        """Kill it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
