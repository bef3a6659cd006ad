# SPDX-License-Identifier: Apache-2.0

"""Wait for messages of the kernel's log."""

from __future__ import annotations

import os
import select

#: The timeout of a message in seconds.
DEADLINE = 120.0


class KernelLog:
    """The kernel's log from now on (``/dev/kmsg``)."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_END)

    def wait_for(self, *words: str) -> str:
        """Return the first record that contains all of ``words``.

        :raises TimeoutError: none has appeared.
        """
        while select.select([self._fd], [], [], DEADLINE)[0]:
            record = os.read(self._fd, 8192).decode("utf-8", "replace")
            if all(word in record for word in words):
                return record
        raise TimeoutError(f"the kernel did not log {words}")

    def close(self) -> None:
        os.close(self._fd)
