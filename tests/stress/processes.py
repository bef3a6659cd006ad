# SPDX-License-Identifier: Apache-2.0

"""Children that run a function, and may be killed while they do."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import logging
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")

# include/uapi/linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
# Seconds after which a child that has not ended notes where its threads are.
_HANGS = 300
_POLL = 0.005

# A scan of all inherited objects would cost a child more than its own work.
os.register_at_fork(after_in_child=gc.freeze)


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """The end of a child.

    :ivar value: the result of its function, if the function returned.
    :ivar trouble: the traceback of its exception; or empty.
    """

    killed: bool
    value: Any = None
    trouble: str = ""

    @property
    def why(self) -> str:
        """Why there is no result; or empty."""
        return "killed" if self.killed else self.trouble


def call(function: Callable[[], object]) -> Ended:
    """Run a function in a child of this process."""
    return Child(function).wait()


def result(function: Callable[[], object]) -> Any:
    """Run a function in a child of this process; return its result."""
    return outcome(Child(function))


def outcome(child: Child) -> Any:
    """Return the result of a process that was not killed."""
    ended = child.wait()
    assert not ended.why, ended.why
    return ended.value


def share_out(items: Sequence[_T], function: Callable[[_T], str | None]) -> list[str]:
    """Run a function for all items, on all processors; return the troubles."""
    count = len(os.sched_getaffinity(0))
    shares = [items[start::count] for start in range(count)]

    def work(share: Sequence[_T]) -> list[str]:
        become_reaper()
        return [trouble for item in share if (trouble := function(item))]

    children = [Child(lambda mine=share: work(mine)) for share in shares]
    troubles: list[str] = []
    for ended in [child.wait() for child in children]:
        troubles += ended.value or []
        troubles += [ended.trouble] if ended.trouble else []
        troubles += ["the runner was killed"] if ended.killed else []
    return troubles


def call_with_all(function: Callable[[], object]) -> Ended:
    """Do as :func:`call`, and wait for the processes that the child has left."""
    become_reaper()
    try:
        child = Child(function)
        ended = child.wait()
        reap(child.pid)
    finally:
        become_reaper(False)
    return ended


def become_reaper(wanted: bool = True) -> None:
    """Become the parent of orphans below, to notice their end."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def reap(group: int | None = None) -> None:
    """Wait until no child and no orphan is left, of a group or at all.

    One that leads a session of its own was left behind for as long as it is needed.
    """
    while children := [each for each in _children() if _is_awaited(each, group)]:
        ended = [each for each in children if os.waitpid(each, os.WNOHANG)[0]]
        # One that has not ended may be about to lead a session.
        time.sleep(0 if ended else _POLL)


def _is_awaited(child: int, group: int | None) -> bool:
    if group is not None:
        return os.getpgid(child) == group
    return os.getsid(child) == os.getsid(0)


def _children() -> list[int]:
    """Return the children of this process, of all its threads (proc(5))."""
    paths = Path("/proc/self/task").glob("*/children")
    return [int(each) for path in paths for each in path.read_text().split()]


def close_files(keep: Sequence[int] = ()) -> None:
    """Close all other files, so that no process waits for their end."""
    start = 3
    for fd in sorted(keep):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


class Child:
    """A child that runs a function, the leader of a group."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._readable, writable = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run(function, writable)
        os.close(writable)

    def kill(self) -> None:
        """Kill it, and none of its children."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> Ended:
        """Wait until it has ended."""
        with open(self._readable, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            killed = os.WTERMSIG(status) == signal.SIGKILL
            return Ended(killed, trouble="" if killed else f"status {status}")
        if not data:
            return Ended(False, trouble=f"no answer, status {status}")
        value, trouble = pickle.loads(data)
        return Ended(False, value, trouble)


def _run(function: Callable[[], object], writable: int) -> NoReturn:
    os.setpgid(0, 0)
    logging.disable(logging.CRITICAL)
    answer = pickle.dumps((None, "ended early"))
    stacks = _stacks_after(_HANGS)
    try:
        # A result that cannot be pickled is reported as well.
        answer = pickle.dumps((function(), ""))
    except BaseException:  # noqa: BLE001 - reported to the parent
        answer = pickle.dumps((None, "\n".join([traceback.format_exc(), *stacks])))
    finally:
        with open(writable, "wb") as pipe:
            pipe.write(answer)
        sys.stderr.flush()
        os._exit(0)


def _stacks_after(seconds: int) -> list[str]:
    """Return a list that gets the stack of each thread after this time.

    It uses a signal: faulthandler waits in a child for the parent's thread.
    """
    stacks: list[str] = []

    def note(_signal: int, _frame: object) -> None:
        stacks.extend(
            f"thread {thread} after {seconds} s:\n"
            + "".join(traceback.format_stack(frame))
            for thread, frame in sys._current_frames().items()
        )

    signal.signal(signal.SIGALRM, note)
    signal.alarm(seconds)
    return stacks
