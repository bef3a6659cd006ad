# SPDX-License-Identifier: Apache-2.0

"""Run one of OpenStack's services in a process: python -m ... <module> <port> <log>.

The log has a line for each request: method, path, Range, status. The process ends
with its standard input, so that it never outlives its parent process.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import waitress


class Recorded:
    """An application that logs its requests with their answers."""

    def __init__(self, application: WSGIApplication, path: str) -> None:
        self._application = application
        self._path = path
        self._lock = threading.Lock()

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        # Paste moves the beginning of the path to another variable.
        request_line = (
            environ["REQUEST_METHOD"],
            environ["PATH_INFO"],
            environ.get("HTTP_RANGE", "-"),
        )

        def started(status: str, *args: Any) -> Callable[[bytes], object]:
            with self._lock, open(self._path, "a") as log:
                log.write(f"{' '.join(request_line)} {status.partition(' ')[0]}\n")
            return start_response(status, *args)

        return self._application(environ, started)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    module, port, log = sys.argv[1:]
    # Keystone and Glance would parse the arguments as their own.
    del sys.argv[1:]
    application = importlib.import_module(module).application
    waitress.serve(
        Recorded(application, log),
        host="127.0.0.1",
        port=int(port),
        threads=20,
        # Each of many hosts keeps its own connection open. Beyond the limit of 100, one
        # more
        # would have to wait until another has been idle for two minutes.
        connection_limit=1000,
        asyncore_use_poll=True,
    )


if __name__ == "__main__":
    main()
