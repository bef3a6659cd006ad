# SPDX-License-Identifier: Apache-2.0

"""Another process, in which a second service on the same host is started.

One for many encounters: to fork anew for each would cost more than what the
two services do.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any, Self

from os_acc import exception
from tests.stress import processes
from tests.stress.simulated_host import Bench

_READY = "ready"


class Second:
    """The process.

    :param channel: the end of it that is ours.
    """

    def __init__(self, channel: connection.Connection) -> None:
        self._channel = channel
        self._answer: tuple[list[Any] | None, str] = None, ""

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Self]:
        """Start it, and let it end."""
        ours, its = connection.Pipe()

        def work() -> None:
            # Else it would never read that there is nobody any more.
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
    def at_work(self, bench: Bench, consumer: str, request: Any) -> Iterator[None]:
        """Let its service plug, or unplug where nothing is asked for.

        What is done within is done at the same time.
        """
        self._channel.send((bench, consumer, request))
        # Its service has started.
        told = self._channel.recv()
        assert told == _READY, told
        try:
            yield
        finally:
            self._answer = self._channel.recv()

    def answer(self) -> list[Any] | None:
        """What it was given, where it has plugged."""
        entries, trouble = self._answer
        assert not trouble, trouble
        return entries


def _serve(channel: connection.Connection) -> None:
    while True:
        try:
            bench, consumer, request = channel.recv()
        except EOFError:
            return
        try:
            answer = _work(channel, bench, consumer, request), ""
        except BaseException:  # noqa: BLE001 - told to the parent, whatever it is
            answer = None, traceback.format_exc()
        channel.send(answer)


def _work(
    channel: connection.Connection, bench: Bench, consumer: str, request: Any
) -> list[Any] | None:
    manager = bench.boot()
    channel.send(_READY)
    try:
        if request is None:
            manager.unplug({"uuid": consumer})
            return None
        return manager.plug({"uuid": consumer}, *request)
    except exception.OsAccError:
        return None
