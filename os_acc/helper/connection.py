# SPDX-License-Identifier: Apache-2.0

"""The connection to the helper of a privileged context.

The root process itself is in :mod:`os_acc.privsep.root_process`.

The first caller starts a helper, in a thread for which no caller has to wait. A
helper may be killed, stopped, or slow, and privsep detects only the first: calls
would time out one after the other, forever. So after a call without an answer the
helper is *retired*. The next call starts another one; the old one may still answer
its outstanding calls. After the last of these its connection is shut down, and the
helper ends as soon as it reads the end of the stream. It is never signalled: it may
be inside a write.

Two helpers may therefore run for a while. Two mechanisms separate them:

* a child of the old one that is still running holds its devices' locks: the new
  one answers "busy", and the lease waits;
* a call that the old one has not begun yet carries an older epoch than any later
  operation, and is refused; without a later operation, its lease still authorizes
  it, and is settled later.

A helper whose threads are all busy looks like a silent one. Retiring it loses no
answer, and a new one has threads for the waiting callers. Each retirement costs a
caller an entire timeout, so it is rare.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import socket
import struct
import sys
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

from oslo_config import cfg
from oslo_log import log
from oslo_privsep import comm, daemon

from os_acc import deadlines, exception, privsep
from os_acc.privsep.request import Request

LOG = log.getLogger(__name__)

#: Default number of seconds after which an unfinished start is given up.
START_SECONDS = 60.0
# The helper reads at once, however busy it is; only a stopped one lets its
# buffer fill up. The sender holds a lock that other threads need.
_SEND_SECONDS = 2
_TIMEOUT = f"{comm.PrivsepTimeout.__module__}.{comm.PrivsepTimeout.__name__}"


class HelperRaised(Exception):
    """The helper's own code raised an exception; the message is its traceback."""


@dataclasses.dataclass(frozen=True, slots=True)
class PendingStart:
    """A start, finished or in progress."""

    over: futures.Future[None]
    until: float

    def wait(self, deadline: float) -> None:
        """Wait for the start to finish.

        :raises HelperUnavailable: the helper does not start, or not in time.
        """
        try:
            self.over.result(max(0.0, min(deadline, self.until) - time.monotonic()))
        except futures.TimeoutError as error:
            raise exception.HelperUnavailable(
                "the privileged helper did not start in time"
            ) from error


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
        """Return the helper's start: finished, in progress, or begun now."""
        with self._context.guard:
            start, now = self._start, time.monotonic()
            if start is not None and not start.over.done() and now < start.until:
                return start
            start = PendingStart(futures.Future(), now + self._start_timeout)
            self._start = start
            # Another connection may have started the helper.
            if self._runs():
                start.over.set_result(None)
                return start
        # Outside the guard: starting a thread may take a while.
        try:
            deadlines.start(functools.partial(self._run, start))
        except exception.DeviceStuck as error:
            self._fail(start, error)
        return start

    def ask(
        self,
        entrypoint: Callable[..., Any],
        milliseconds: int,
        request: Request | None = None,
    ) -> Any:
        """Call an entry point, and return its answer.

        :param milliseconds: time limit for the kernel.
        :raises HelperLost: the helper ended, went silent, or has failed.
        """
        args = () if request is None else request.values()
        if not self._context.client_mode:
            return entrypoint(*args)
        channel = self._context.channel
        if channel is None:
            raise exception.HelperLost(
                "the connection to the privileged helper is closed"
            )
        # The helper's own deadline is earlier, so that its answer can arrive.
        seconds = milliseconds / 1000 + deadlines.ANSWER
        try:
            return _answer(channel.send_recv(_call(entrypoint, args), seconds))
        except comm.PrivsepTimeout as error:
            self._retire(channel)
            raise exception.HelperLost(
                "the privileged helper does not answer",
                hint="the requested step may still be carried out; retry",
            ) from error
        except OSError as error:
            # The stream is unusable after a partial message.
            self._retire(channel)
            _shut(channel)
            raise exception.HelperLost(
                f"the privileged helper ended during a call: {error}"
            ) from error
        except HelperRaised as error:
            raise exception.HelperLost(
                f"the privileged helper failed: {str(error).splitlines()[-1]}",
                hint="if os_acc was upgraded or downgraded while the service ran, "
                "restart the service; otherwise report a defect of os_acc",
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
                LOG.warning(
                    "lost the helper %s: the next call starts another one",
                    self._context.pypath,
                )

    def _run(self, start: PendingStart) -> None:
        try:
            if not self._runs():
                self._use(start, self._context.connect())
        # ValueError: helper_command has an unclosed quotation mark.
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
        finally:
            # An error that is not foreseen ends the wait as well.
            if not start.over.done():
                self._fail(start, sys.exc_info()[1])

    def _fail(self, start: PendingStart, error: BaseException | None) -> None:
        failure = exception.HelperUnavailable(
            f"cannot start the privileged helper {self._context.pypath}: {error}"
        )
        failure.__cause__ = error
        if exception.is_exhaustion(error) or isinstance(error, BlockingIOError):
            failure.set_exhausted()
        start.over.set_exception(failure)

    def _use(self, start: PendingStart, channel: daemon.RootwrapClientChannel) -> None:
        # In seconds and microseconds.
        limit = struct.pack("ll", _SEND_SECONDS, 0)
        channel.writer.writesock.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit
        )
        try:
            deadlines.start(functools.partial(_watch, channel))
        except exception.DeviceStuck:
            _shut(channel)
            raise
        with self._context.guard:
            if start is self._start and not self._runs():
                self._context.channel = channel
                return
        # Too late: another helper has been started meanwhile.
        _shut(channel)


def _call(
    entrypoint: Callable[..., Any], args: tuple[object, ...]
) -> tuple[object, ...]:
    # privsep wraps an entry point's function as partial(wrapper, function).
    function = getattr(entrypoint, "args", (entrypoint,))[0]
    name = f"{function.__module__}.{function.__name__}"
    return (comm.Message.CALL.value, name, args, {})


def _answer(reply: tuple[Any, ...]) -> Any:
    """Return a reply's value; unlike privsep, raise no exceptions by class name."""
    kind, value, *rest = reply
    if kind == comm.Message.RET.value:
        return value
    if kind == comm.Message.ERR.value and value == _TIMEOUT:
        raise comm.PrivsepTimeout()
    if kind == comm.Message.ERR.value:
        arguments, traceback = (*rest, "", "")[:2]
        raise HelperRaised(f"{traceback}\n{value}{arguments}")
    raise HelperRaised(f"unknown kind of answer: {kind}")


def _shut(channel: comm.ClientChannel) -> None:
    """Shut the connection down; the helper ends when it reads the end."""
    with contextlib.suppress(OSError):
        channel.writer.writesock.shutdown(socket.SHUT_RDWR)


def _watch(channel: comm.ClientChannel) -> None:
    """Fail all outstanding calls once the reader thread has ended.

    privsep's reader does so at the end of the stream. But a helper that is
    killed before it has read its input resets the connection: the reader then
    ends silently, and the channel still counts as running.
    """
    channel.reader_thread.join()
    with channel.lock:
        channel.running = False
        for waiting in channel.outstanding_msgs.values():
            waiting.set_exception(OSError("the connection to the helper was reset"))
