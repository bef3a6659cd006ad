# SPDX-License-Identifier: Apache-2.0

"""The kernel's log, as something to wait on."""

from __future__ import annotations

import os
import select

#: Seconds a message may take.
DEADLINE = 120.0


class KernelLog:
    """What the kernel logs from now on (``/dev/kmsg``)."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_END)

    def wait_for(self, *words: str) -> str:
        """The first record that contains all of ``words``.

        :raises TimeoutError: there was none.
        """
        while select.select([self._fd], [], [], DEADLINE)[0]:
            record = os.read(self._fd, 8192).decode("utf-8", "replace")
            if all(word in record for word in words):
                return record
        raise TimeoutError(f"the kernel did not log {words}")

    def close(self) -> None:
        """Close the log."""
        os.close(self._fd)
