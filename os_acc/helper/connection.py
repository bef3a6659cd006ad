# SPDX-License-Identifier: Apache-2.0

"""The connection to the helper of a privileged context.

A helper is started by whoever needs it first, and in a thread that nobody has
to wait for. It may be killed, stopped, or slow, and privsep never finds out
about the last two: calls would time out one after the other, for ever. So
after a call without an answer the helper is *retired*. The next call starts
another one; what others have asked the old one before may still be answered.
With the last of these its connection is shut down, and it ends as soon as it
reads that. It is never signalled: it may be inside a write.

So two helpers may be at work for a while. What keeps them apart:

* a child of the old one that is at work holds its devices' locks: the new
  one answers "busy", and the lease waits;
* a call that the old one has not begun yet carries an older epoch than
  whatever was done meanwhile, and is refused; where nothing was done, its
  lease is still the claim that it stands on, and is settled later.

A helper whose threads are all at work looks like a silent one. It loses no
answer by being retired, and a fresh one has threads for those who wait; each
costs somebody a whole timeout, so they are few.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import socket
import struct
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

from oslo_config import cfg
from oslo_log import log
from oslo_privsep import comm, daemon

from os_acc import deadlines, exception, privsep

LOG = log.getLogger(__name__)

#: Seconds after which a start that has not ended is given up, by default.
START_SECONDS = 60.0
# The helper reads at once, however busy it is; only a stopped one lets its
# buffer fill up. Whoever sends holds a lock that others need.
_SEND_SECONDS = 2
_TIMEOUT = f"{comm.PrivsepTimeout.__module__}.{comm.PrivsepTimeout.__name__}"


class HelperRaised(Exception):
    """What the helper's own code raised; the message is its traceback."""


@dataclasses.dataclass(frozen=True, slots=True)
class PendingStart:
    """A start that is over, or under way."""

    over: futures.Future[None]
    until: float

    def wait(self, deadline: float) -> None:
        """Wait for its end.

        :raises HelperUnavailable: the helper does not start, or not in time.
        """
        try:
            self.over.result(max(0.0, min(deadline, self.until) - time.monotonic()))
        except futures.TimeoutError as error:
            raise exception.HelperUnavailable(
                "the privileged helper did not start in time"
            ) from error

    def given_up(self) -> bool:
        """Whether nobody waits for it any more."""
        return not self.over.done() and time.monotonic() >= self.until


class Connection:
    """A privileged context of this process, and the helper that serves it.

    :param start_timeout: seconds after which a start is given up.
    """

    def __init__(
        self, context: privsep.Context, start_timeout: float = START_SECONDS
    ) -> None:
        self._context = context
        self._start_timeout = start_timeout
        self._start: PendingStart | None = None

    def start(self) -> PendingStart:
        """The start of the helper: over, under way, or begun now."""
        with self._context.guard:
            start = self._start
            if not (
                start is None
                or start.given_up()
                or (start.over.done() and not self._runs())
            ):
                return start
            until = time.monotonic() + self._start_timeout
            start = self._start = PendingStart(futures.Future(), until)
        # Not under the guard: a thread may take a while to start.
        self._begin(start)
        return start

    def ask(
        self, entrypoint: Callable[..., Any], seconds: float, args: tuple[object, ...]
    ) -> Any:
        """What an entry point answers.

        :raises HelperLost: the helper ended, went silent, or has failed.
        """
        if not self._context.client_mode:
            return entrypoint(*args)
        channel = self._context.channel
        if channel is None:
            raise exception.HelperLost("the privileged helper was given up")
        try:
            return _answer(channel.send_recv(_call(entrypoint, args), seconds))
        except comm.PrivsepTimeout as error:
            self._retire(channel)
            raise exception.HelperLost(
                "the privileged helper does not answer",
                hint="what it was asked to do may still happen; try again",
            ) from error
        except OSError as error:
            # What was sent in part can be followed by nothing that makes sense.
            self._retire(channel)
            _shut(channel)
            raise exception.HelperLost(
                f"the privileged helper ended during a call: {error}"
            ) from error
        except HelperRaised as error:
            raise exception.HelperLost(
                f"the privileged helper failed: {str(error).splitlines()[-1]}",
                hint="this is a fault of os_acc: report it",
            ) from error
        finally:
            if channel is not self._context.channel and not channel.outstanding_msgs:
                _shut(channel)

    def _runs(self) -> bool:
        channel = self._context.channel
        return not self._context.client_mode or (
            channel is not None and channel.running
        )

    def _retire(self, channel: comm.ClientChannel) -> None:
        with self._context.guard:
            if self._context.channel is channel:
                self._context.channel = None
                LOG.warning("the next call starts another %s", self._context.pypath)

    def _begin(self, start: PendingStart) -> None:
        try:
            deadlines.start(functools.partial(self._run, start))
        except exception.DeviceStuck as error:
            self._fail(start, error)

    def _run(self, start: PendingStart) -> None:
        try:
            if not self._runs():
                self._use(start, self._context.connect())
        # ValueError: a helper_command with a quotation mark that nobody closes.
        # RuntimeError: no more threads for privsep's own; DeviceStuck: for ours.
        except (
            exception.DeviceStuck,
            OSError,
            ValueError,
            RuntimeError,
            cfg.Error,
            daemon.FailedToDropPrivileges,
        ) as error:
            self._fail(start, error)
        else:
            start.over.set_result(None)

    def _fail(self, start: PendingStart, error: Exception) -> None:
        failure = exception.HelperUnavailable(
            f"the privileged helper {self._context.pypath} does not start: {error}"
        )
        failure.__cause__ = error
        if exception.is_exhaustion(error) or isinstance(error, BlockingIOError):
            failure.set_exhausted()
        start.over.set_exception(failure)

    def _use(self, start: PendingStart, channel: daemon.RootwrapClientChannel) -> None:
        _limit_sending(channel)
        try:
            deadlines.start(functools.partial(_watch, channel))
        except exception.DeviceStuck:
            _shut(channel)
            raise
        with self._context.guard:
            if start is self._start and not self._runs():
                self._context.channel = channel
                return
        # Too late: another one has been started meanwhile.
        _shut(channel)


def _call(
    entrypoint: Callable[..., Any], args: tuple[object, ...]
) -> tuple[object, ...]:
    # privsep makes an entry point of a function as partial(wrapper, function).
    function = getattr(entrypoint, "args", (entrypoint,))[0]
    name = f"{function.__module__}.{function.__name__}"
    return (comm.Message.CALL.value, name, args, {})


def _answer(reply: tuple[Any, ...]) -> Any:
    """As privsep does it, which makes exceptions of any class out of a reply."""
    kind, value, *rest = reply
    if kind == comm.Message.RET.value:
        return value
    if kind == comm.Message.ERR.value and value == _TIMEOUT:
        raise comm.PrivsepTimeout()
    if kind == comm.Message.ERR.value:
        arguments, traceback = (*rest, "", "")[:2]
        raise HelperRaised(f"{traceback}\n{value}{arguments}")
    raise HelperRaised(f"an unknown answer: {kind}")


def _limit_sending(channel: comm.ClientChannel) -> None:
    channel.writer.writesock.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0)
    )


def _shut(channel: comm.ClientChannel) -> None:
    """Let the helper find the end of the connection, whenever it reads."""
    with contextlib.suppress(OSError):
        channel.writer.writesock.shutdown(socket.SHUT_RDWR)


def _watch(channel: comm.ClientChannel) -> None:
    """Tell those who wait for an answer that none will come any more.

    privsep's reader does so at the end of the stream. A helper that is killed
    before it has read what it was sent resets the connection instead: then
    the reader dies without a word, and the channel still counts as running.
    """
    channel.reader_thread.join()
    with channel.lock:
        channel.running = False
        for waiting in channel.outstanding_msgs.values():
            waiting.set_exception(OSError("the connection to the helper was reset"))
