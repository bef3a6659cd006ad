# SPDX-License-Identifier: Apache-2.0

"""A client of QEMU's machine protocol, for the hypervisor or an inner guest.

Specification: ``docs/interop/qmp-spec.txt`` of QEMU.
"""

from __future__ import annotations

import itertools
import json
import os
import select
from typing import Any, Protocol

#: The timeout of one answer or event in seconds, on a slow, emulated machine.
DEADLINE = 120.0


class QmpError(Exception):
    """QEMU has rejected a command or has ended."""


class Monitor(Protocol):
    """The monitor of a QEMU."""

    def execute(self, command: str, **arguments: object) -> Any:
        """Run a command and return its result."""


def human(monitor: Monitor, command: str) -> str:
    """Run a command of QEMU's monitor for humans."""
    text: str = monitor.execute("human-monitor-command", **{"command-line": command})
    return text


class Qmp:
    """One connection, over any descriptor that can be read and written."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        self._ids = itertools.count(os.getpid() << 16)

    def negotiate(self) -> None:
        """Leave the negotiation mode; harmless on a connection used before."""
        identity = self._send("qmp_capabilities", {})
        self._receive(lambda message: message.get("id") == identity)

    def execute(self, command: str, **arguments: object) -> Any:
        """Run a command and return its result.

        :raises QmpError: QEMU answered with an error.
        """
        identity = self._send(command, arguments)
        answer = self._receive(lambda message: message.get("id") == identity)
        if "error" in answer:
            raise QmpError(f"{command}: {answer['error']['desc']}")
        return answer["return"]

    def forget_events(self) -> None:
        self._events.clear()

    def wait_event(self, name: str, **data: object) -> dict[str, Any]:
        """Wait for an event whose data contain ``data``; return the first one."""

        def wanted(event: dict[str, Any]) -> bool:
            found = event.get("data", {})
            return event.get("event") == name and data.items() <= found.items()

        earlier = next(filter(wanted, self._events), None)
        return self._receive(wanted) if earlier is None else earlier

    def close(self) -> None:
        os.close(self._fd)

    def _send(self, command: str, arguments: dict[str, object]) -> int:
        identity = next(self._ids)
        message = {"execute": command, "arguments": arguments, "id": identity}
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]
        return identity

    def _receive(self, wanted: Any) -> dict[str, Any]:
        while True:
            message = self._next_message()
            if wanted(message):
                return message
            if "event" in message:
                self._events.append(message)

    def _next_message(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([self._fd], [], [], DEADLINE)
            data = os.read(self._fd, 65536) if readable else b""
            if not data:
                raise QmpError("QEMU is gone or silent")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message
