# SPDX-License-Identifier: Apache-2.0

"""Another process, which runs a second service on the same host.

One process serves many encounters: a fork for each would cost more than the work of
the two services.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any, Self

from os_acc import exception
from os_acc.testing import TestHost
from tests.stress import processes
from tests.stress.simulated_host import simulated_host

_READY = "ready"


class SecondService:
    """The process of the second service.

    :param channel: this process's end of the pipe to it.
    """

    def __init__(self, channel: connection.Connection) -> None:
        self._channel = channel
        self._answer: tuple[list[Any] | None, str] = None, ""

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Self]:
        """Start the process, and end it with the context."""
        ours, its = connection.Pipe()

        def work() -> None:
            # Otherwise it would never read the end of the pipe.
            ours.close()
            _serve(its)

        child = processes.Child(work)
        its.close()
        try:
            yield cls(ours)
        finally:
            ours.close()
            ended = child.wait()
            assert not ended.trouble, ended.trouble

    @contextlib.contextmanager
    def at_work(self, bench: TestHost, consumer: str, request: Any) -> Iterator[None]:
        """Let its service plug, or unplug if there is no request.

        The block of the context runs at the same time.
        """
        where = str(bench.directory), bench.options["device_spec"]
        self._channel.send((*where, consumer, request))
        # Its service has started.
        message = self._channel.recv()
        assert message == _READY, message
        try:
            yield
        finally:
            self._answer = self._channel.recv()

    def answer(self) -> list[Any] | None:
        """Return the entries of its plug."""
        entries, trouble = self._answer
        assert not trouble, trouble
        return entries


def _serve(channel: connection.Connection) -> None:
    while True:
        try:
            directory, device_spec, consumer, request = channel.recv()
        except EOFError:
            return
        try:
            bench = simulated_host(directory, device_spec=device_spec)
            answer = _work(channel, bench, consumer, request), ""
        except BaseException:  # noqa: BLE001 - reported to the parent
            answer = None, traceback.format_exc()
        channel.send(answer)


def _work(
    channel: connection.Connection, bench: TestHost, consumer: str, request: Any
) -> list[Any] | None:
    manager = bench.start_here()
    channel.send(_READY)
    try:
        if request is None:
            manager.unplug({"uuid": consumer})
            return None
        return manager.plug({"uuid": consumer}, *request)
    except exception.OsAccError:
        return None
