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


"""Other processes on the host: a second service, privileged helpers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .library import Options

_CHECKOUT = Path(__file__).resolve().parents[2]
_PATIENCE = 240.0


class AnotherProcess:
    """A second service that uses the library; see :mod:`.another_process`."""

    def __init__(self, options: Options, request: Mapping[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.behaviour.another_process"]
        self._process = subprocess.Popen(
            [*command, options.dump(), json.dumps(request)],
            cwd=_CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Wait until it is initialized."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def outcome(self) -> dict[str, Any]:
        """Let it go on, and tell what came of it."""
        text, _ = self._process.communicate("go\n", _PATIENCE)
        outcome: dict[str, Any] = json.loads(text.splitlines()[-1])
        return outcome

    def let_go_on(self) -> None:
        """Let it go on while this process does, too."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def wait_until_killed(self) -> None:
        """Let it go on to the point where it dies."""
        self._process.communicate("go\n", _PATIENCE)
        assert self._process.returncode == -signal.SIGKILL


def helpers(options: Options, context: str) -> frozenset[int]:
    """The processes that run a privileged context for this host."""
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
