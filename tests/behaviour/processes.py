# SPDX-License-Identifier: Apache-2.0

"""Other processes on the host: a second service, privileged helpers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from .library import Options

_CHECKOUT = Path(__file__).resolve().parents[2]
_PATIENCE = 240.0


class AnotherProcess:
    """A second service that uses the library; see :mod:`.another_process`.

    :param to: its standard input; ``of``: its standard output.
    :param wait: waits for its end and returns its exit status, as
    :attr:`subprocess.Popen.returncode`.
    """

    def __init__(self, to: IO[str], of: IO[str], wait: Callable[[], int]) -> None:
        self._to = to
        self._of = of
        self._wait = wait

    @classmethod
    def launch(cls) -> AnotherProcess:
        """Start a process with a new interpreter."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.behaviour.another_process"],
            cwd=_CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        return cls(process.stdin, process.stdout, lambda: process.wait(_PATIENCE))

    @classmethod
    def fork(cls, main: Callable[[IO[str], IO[str]], None]) -> AnotherProcess:
        """Fork one from this process, which has imported all modules.

        :param main: its main function, with its standard input and output.
        """
        (its_input, to), (of, its_output) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(to)
            os.close(of)
            try:
                with open(its_input) as input_, open(its_output, "w") as output:
                    main(input_, output)
            finally:
                os._exit(0)
        os.close(its_input)
        os.close(its_output)

        def wait() -> int:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        return cls(open(to, "w"), open(of), wait)

    def instruct(self, options: Options, request: Mapping[str, Any]) -> None:
        """Send it its options and its request."""
        self._say(json.dumps([options.dump(), request]))

    def wait_until_ready(self) -> None:
        """Wait until it is initialized."""
        assert self._of.readline() == "ready\n"

    def let_go_on(self) -> None:
        """Let it continue concurrently with this process."""
        self._say("go")

    def outcome(self) -> dict[str, Any]:
        outcome: dict[str, Any] = json.loads(self._of.readline())
        self._end()
        return outcome

    def wait_until_killed(self) -> None:
        """Let it continue to the point at which it dies."""
        self._say("go")
        assert self._end() == -signal.SIGKILL

    def _say(self, line: str) -> None:
        self._to.write(line + "\n")
        self._to.flush()

    def _end(self) -> int:
        status = self._wait()
        self._to.close()
        self._of.close()
        return status


def helpers(options: Options, context: str) -> frozenset[int]:
    """Return the processes that run a privileged context for this host."""
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            words = Path("/proc", entry, "cmdline").read_text().split("\0")
        except OSError:
            continue
        if (
            f"os_acc.privsep.{context}" in words
            and (options.root == "/" or options.root in words)
            and not words[0].endswith("sudo")
        ):
            found.add(int(entry))
    return frozenset(found)
