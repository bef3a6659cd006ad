# SPDX-License-Identifier: Apache-2.0

"""A helper that ends, fails or goes silent in a call is replaced."""

import _thread
import os
import signal
import socket
import threading
import time

import pytest
from oslo_privsep import comm

from os_acc import deadlines, exception, privsep
from os_acc.helper import connection
from os_acc.privsep import holders

PATIENCE = 30.0


class Channel(comm.ClientChannel):
    """A channel to a helper that the test simulates."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        super().__init__(ours)
        self.helper = comm.ServerChannel(self.theirs)

    def reply(self, *reply: object) -> None:
        """Answer the next call."""
        number, _call = next(self.helper)
        self.helper.send((number, reply))


@pytest.fixture
def channels(monkeypatch):
    """Record every channel that is opened, in order."""
    opened: list[Channel] = []

    def connect():
        opened.append(Channel())
        return opened[-1]

    monkeypatch.setattr(privsep.inspect, "client_mode", True)
    monkeypatch.setattr(privsep.inspect, "channel", None)
    monkeypatch.setattr(privsep.inspect, "connect", connect)
    monkeypatch.setattr(connection, "_SEND_SECONDS", 1)
    yield opened
    for channel in opened:
        channel.theirs.close()


@pytest.fixture
def link(channels, monkeypatch) -> connection.Connection:
    monkeypatch.setattr(deadlines, "ANSWER", 0.0)
    link = connection.Connection(privsep.inspect)
    link.start().wait(time.monotonic() + PATIENCE)
    return link


class Call(threading.Thread):
    """A call and its outcome."""

    def __init__(self, link, seconds=PATIENCE, argument=()) -> None:
        super().__init__(daemon=True)
        self._link, self._seconds, self._argument = link, seconds, argument
        self.answer: object = None
        self.start()

    def run(self) -> None:
        try:
            request = holders.HoldersRequest(self._argument)
            limit = int(self._seconds * 1000)
            self.answer = self._link.ask(holders.holders, limit, request)
        except exception.OsAccError as error:
            self.answer = error

    def outcome(self) -> object:
        self.join(PATIENCE)
        assert not self.is_alive()
        return self.answer


def has_ended(channel: Channel) -> bool:
    """Return whether the helper reads the end of its requests."""
    channel.theirs.settimeout(PATIENCE)
    for _call in channel.helper:
        pass
    return True


def test_what_the_helper_answers_is_returned(link, channels):
    call = Call(link)
    channels[0].reply(comm.Message.RET.value, ("ok", 0, ()))
    assert call.outcome() == ("ok", 0, ())
    assert privsep.inspect.channel is channels[0]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("builtins.KeyError", ("nobody",)),
        ("builtins.OSError", (11, "Resource temporarily unavailable")),
        ("no.such.module.Error", ()),
        ("builtins.UnicodeDecodeError", ("too few",)),
        ("oslo_privsep.daemon.FailedToDropPrivileges", ()),
    ],
)
def test_what_the_helpers_code_raises_is_one_typed_error(
    link, channels, name, arguments
):
    call = Call(link)
    channels[0].reply(comm.Message.ERR.value, name, arguments, "Traceback: line 7\n")
    error = call.outcome()
    assert isinstance(error, exception.HelperLost)
    assert error.retryable
    assert name in str(error)
    assert "line 7" in str(error.__cause__)
    # The helper has answered: nothing is wrong with its process.
    assert privsep.inspect.channel is channels[0]


@pytest.mark.parametrize("reply", [(comm.Message.PONG.value, ""), (99, "", "", "")])
def test_an_answer_of_another_kind_is_none(link, channels, reply):
    call = Call(link)
    channels[0].reply(*reply)
    assert "unknown kind of answer" in str(call.outcome())


def test_a_helper_that_ends_in_a_call_is_told_at_once_and_replaced(link, channels):
    call = Call(link)
    next(channels[0].helper)
    channels[0].theirs.close()
    error = call.outcome()
    assert isinstance(error, exception.HelperLost)
    assert isinstance(error.__cause__, OSError)
    link.start().wait(time.monotonic() + PATIENCE)
    assert privsep.inspect.channel is channels[1]


def test_a_silent_helper_costs_one_timeout_and_is_replaced(link, channels):
    error = Call(link, seconds=0.05).outcome()
    assert isinstance(error, exception.HelperLost)
    assert "does not answer" in str(error)
    assert isinstance(error.__cause__, comm.PrivsepTimeout)
    link.start().wait(time.monotonic() + PATIENCE)
    again = Call(link)
    channels[1].reply(comm.Message.RET.value, "served")
    assert again.outcome() == "served"
    # If it goes on, it finds that its client has closed the channel.
    assert has_ended(channels[0])


def test_a_slow_helper_still_answers_those_who_wait_for_it(link, channels):
    slow = Call(link)
    number, _ = next(channels[0].helper)
    late = Call(link, seconds=0.05)
    assert isinstance(late.outcome(), exception.HelperLost)
    link.start().wait(time.monotonic() + PATIENCE)
    assert len(channels) == 2
    channels[0].helper.send((number, (comm.Message.RET.value, "slow")))
    assert slow.outcome() == "slow"
    assert has_ended(channels[0])


def test_many_who_get_no_answer_start_one_helper(link, channels):
    calls = [Call(link, seconds=0.05) for _ in range(8)]
    assert {type(call.outcome()) for call in calls} == {exception.HelperLost}
    for start in [link.start() for _ in range(8)]:
        start.wait(time.monotonic() + PATIENCE)
    assert len(channels) == 2


def test_a_helper_that_reads_nothing_lets_no_sender_wait(link, channels):
    """A stopped helper's socket is full, and the blocked sender has the lock."""
    waiting = Call(link)
    sending = Call(link, argument="x" * (1 << 22))
    for call in (sending, waiting):
        assert isinstance(call.outcome(), exception.HelperLost)
    link.start().wait(time.monotonic() + PATIENCE)
    assert privsep.inspect.channel is channels[1]


def test_a_start_that_hangs_is_given_up_for_another(channels, monkeypatch):
    gate = threading.Event()
    connect = privsep.inspect.connect

    def hang_first():
        monkeypatch.setattr(privsep.inspect, "connect", connect)
        gate.wait(PATIENCE)
        return connect()

    monkeypatch.setattr(privsep.inspect, "connect", hang_first)
    link = connection.Connection(privsep.inspect, start_timeout=0.05)
    with pytest.raises(exception.HelperUnavailable, match="in time"):
        link.start().wait(time.monotonic() + PATIENCE)
    link._start_timeout = PATIENCE
    link.start().wait(time.monotonic() + PATIENCE)
    used = privsep.inspect.channel
    assert used is channels[0]
    gate.set()
    # The start that comes too late is refused, and changes nothing.
    while len(channels) < 2:
        time.sleep(0.001)
    assert has_ended(channels[1])
    assert privsep.inspect.channel is used


def test_a_failed_start_is_forgotten_once_the_helper_runs(channels, monkeypatch):
    """Each node of a process has a connection of its own to the same helper."""

    def refuse() -> None:
        raise FileNotFoundError("sudo")

    late = connection.Connection(privsep.inspect)
    with monkeypatch.context() as failing:
        failing.setattr(privsep.inspect, "connect", refuse)
        with pytest.raises(exception.HelperUnavailable):
            late.start().wait(time.monotonic() + PATIENCE)
    other = connection.Connection(privsep.inspect)
    other.start().wait(time.monotonic() + PATIENCE)
    late.start().wait(time.monotonic() + PATIENCE)
    assert len(channels) == 1


def no_more_threads(monkeypatch, allowed):
    """Let only so many threads start."""
    start, left = _thread.start_new_thread, [None] * allowed

    def limited(*arguments):
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        return start(*arguments)

    monkeypatch.setattr(_thread, "start_new_thread", limited)
    # privsep starts a thread of its own by this function.
    monkeypatch.setattr(threading, "_start_new_thread", limited)


@pytest.mark.parametrize("allowed", [0, 1, 2], ids=["start", "reader", "watch"])
def test_a_start_without_a_thread_fails_at_once_and_is_tried_again(
    channels, monkeypatch, allowed
):
    link = connection.Connection(privsep.inspect)
    with monkeypatch.context() as limited:
        no_more_threads(limited, allowed)
        start = link.start()
        with pytest.raises(exception.HelperUnavailable, match="new thread"):
            start.wait(time.monotonic() + PATIENCE)
    # The helpers of the failed start have ended: they would never be used.
    assert all(has_ended(channel) for channel in channels)
    link.start().wait(time.monotonic() + PATIENCE)
    assert privsep.inspect.channel is channels[-1]


def test_a_forked_child_leaves_the_helper_to_its_parent(link, channels):
    """The child keeps no end of the channel open, and shuts down none."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(int(PATIENCE))
            os.close(writable)
            os.read(readable, 1)
        finally:
            os._exit(0)
    os.close(readable)
    call = Call(link)
    channels[0].reply(comm.Message.RET.value, "mine")
    assert call.outcome() == "mine"
    channels[0].writer.writesock.shutdown(socket.SHUT_RDWR)
    channels[0].writer.writesock.close()
    try:
        assert has_ended(channels[0])
    finally:
        os.close(writable)
        os.waitpid(pid, 0)


def test_a_start_that_fails_in_an_unforeseen_way_ends_at_once(monkeypatch):
    """The caller gets the error, and does not wait for a thread that has ended."""

    def connect():
        raise LookupError("unforeseen")

    monkeypatch.setattr(privsep.inspect, "client_mode", True)
    monkeypatch.setattr(privsep.inspect, "channel", None)
    monkeypatch.setattr(privsep.inspect, "connect", connect)
    start = connection.Connection(privsep.inspect, PATIENCE).start()
    with pytest.raises(exception.HelperUnavailable, match="unforeseen"):
        start.wait(time.monotonic() + PATIENCE)
