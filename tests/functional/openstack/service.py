# SPDX-License-Identifier: Apache-2.0

"""A service's process: started, checked until it answers, ended by its id."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: Seconds in which a service has to answer; here a start takes about ten.
STARTING = 180.0


class Service:
    """One of OpenStack's services on a port of its own.

    :ivar url: its address, which a restart does not change.
    """

    def __init__(
        self,
        name: str,
        module: str,
        health: str,
        home: Path,
        environment: dict[str, str],
    ) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = home / f"{name}.log"
        self._module = module
        self._health = health
        self._requests = home / f"{name}.requests"
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.begin()
        self.await_start()

    def begin(self) -> None:
        """Start it without waiting."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.functional.openstack.serve",
                    self._module,
                    str(self.port),
                    str(self._requests),
                ],
                cwd=ROOT,
                env={**os.environ, **self._environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def await_start(self) -> None:
        """Wait until it answers."""
        assert self._process is not None
        limit = time.monotonic() + STARTING
        while not self._is_well():
            if self._process.poll() is not None or time.monotonic() > limit:
                self.kill()
                raise RuntimeError(f"{self.name} does not start: {self.told()}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it at once, in any state."""
        if self._process is not None:
            self._process.kill()
            # This also closes its standard input.
            self._process.communicate()
            self._process = None

    def restart(self) -> None:
        """Kill it and start it again on the same port."""
        self.kill()
        self.start()

    def requests(self) -> list[str]:
        """Return the requests so far: "method path range status"."""
        if not self._requests.exists():
            return []
        return self._requests.read_text().splitlines()

    def told(self) -> str:
        """Return the end of its log; empty if it was not started."""
        if not self.log.exists():
            return ""
        return self.log.read_text(errors="replace")[-4000:]

    def _is_well(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + self._health, timeout=10) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            # The list of versions has the status "300 Multiple Choices".
            return error.code == 300
        except OSError:
            return False


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
