# SPDX-License-Identifier: Apache-2.0

"""The servers whose guests end to start again, by thread.

Nova's ``destroy`` ends the guest of a deleted server, and also that of one which is
rebooted or rebuilt: there its accelerators stay. Both happen in one thread, and the
parameters do not differ. A mark counts for its thread and its request alone: another
thread may delete the server meanwhile, and a thread that was interrupted may serve
another request.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class Restarts(threading.local):
    """Marks of the current thread."""

    def __init__(self) -> None:
        super().__init__()
        #: The id of the request, by the UUID of the server.
        self._requests: dict[str, str] = {}

    def mark(self, context: Any, instance: Any) -> None:
        """Mark a server: its guest ends and starts again in this request."""
        # A thread serves one request at a time.
        self._requests = {instance.uuid: context.request_id}

    def has(self, context: Any, instance: Any) -> bool:
        """Return whether the server is marked in this thread and this request."""
        return bool(self._requests.get(instance.uuid) == context.request_id)

    def end(self) -> None:
        """Remove the mark."""
        self._requests = {}

    @contextlib.contextmanager
    def during(self, context: Any, instance: Any) -> Iterator[None]:
        """Mark a server for the duration of a block."""
        self.mark(context, instance)
        try:
            yield
        finally:
            self.end()
