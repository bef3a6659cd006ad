# SPDX-License-Identifier: Apache-2.0

"""No kill and no refused system call lets a half image be taken for a whole one.

Each deed runs once to record its calls of the operating system: Python's profiler
reports each before it happens (sys.setprofile). Then the process is killed before
each of them; and each of them is refused once, as a file system may refuse it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from os_acc import exception
from os_acc.bitstreams.cache import Cache
from os_acc.objects.bitstream import Digest
from tests import run_figures
from tests.stress import processes
from tests.unit.bitstreams.fake_source import Place

PIECE = 4096
SIZE = PIECE + 5
CONTENTS = tuple(bytes([number]) * SIZE for number in range(3))
PLACE = Place(*CONTENTS, piece=PIECE)
FIRST, SECOND, THIRD = PLACE.all.values()
MUCH = 1 << 30

#: The errno of each call that fails for a reason outside its caller.
REFUSALS = {
    **dict.fromkeys(("mkdir", "posix_fallocate", "rename", "write"), errno.ENOSPC),
    **dict.fromkeys(("fsync", "ftruncate", "read", "readinto"), errno.EIO),
    **dict.fromkeys(("fstat", "lstat", "scandir", "stat", "statvfs"), errno.EIO),
    **dict.fromkeys(("remove", "rmdir", "unlink", "utime"), errno.EROFS),
    **dict.fromkeys(("flock", "lockf"), errno.ENOLCK),
    "open": errno.EMFILE,
}


# Calls that do not depend on the state of the operating system.
IDLE = frozenset({"_path_normpath", "fileno", "fspath", "getpid"})


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """One state directory; a cache has room for two images."""

    directory: str

    @property
    def images(self) -> str:
        return os.path.join(self.directory, "bitstreams")

    @property
    def cache(self) -> Cache:
        return Cache(self.directory, 2 * SIZE)

    def path(self, image: Any) -> str:
        return self.cache.path(image)

    def names(self) -> set[str]:
        with contextlib.suppress(FileNotFoundError):
            return set(os.listdir(self.images))
        return set()

    def copy(self, directory: str) -> State:
        if os.path.exists(self.directory):
            shutil.copytree(self.directory, directory)
        return State(directory)


def get(state: State, image: Any) -> bytes:
    with state.cache.fetched(PLACE, image, time.monotonic() + 60) as file:
        return file.read()


def use(state: State, image: Any) -> None:
    with state.cache.fetched(PLACE, image, time.monotonic() + 60):
        pass


def alter(state: State, image: Any) -> None:
    with open(state.path(image), "r+b") as file:
        file.write(b"?")


def fill(state: State, *images: Any) -> None:
    for moment, image in enumerate(images):
        use(state, image)
        os.utime(state.path(image), (moment, moment))


def fill_and_alter(state: State) -> None:
    fill(state, FIRST, SECOND)
    alter(state, FIRST)


def fill_and_truncate(state: State) -> None:
    fill(state, FIRST, SECOND)
    os.truncate(state.path(FIRST), PIECE)


def leave_a_download(state: State) -> None:
    fill(state, FIRST)

    def die(_done: int, _size: int | None) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def load() -> None:
        with state.cache.fetched(PLACE, SECOND, time.monotonic() + 60, die):
            pass

    assert processes.call(load).killed


@dataclasses.dataclass(frozen=True, slots=True)
class Deed:
    """An operation on a cache, and the preparation of the cache."""

    prepare: Callable[[State], object]
    act: Callable[[State], object]


DEEDS = {
    "fetch the first image": Deed(lambda state: None, lambda state: use(state, FIRST)),
    "use what is there": Deed(
        lambda state: fill(state, FIRST), lambda state: use(state, FIRST)
    ),
    "fetch, and evict another": Deed(
        lambda state: fill(state, FIRST, SECOND), lambda state: use(state, THIRD)
    ),
    "fetch what is too short": Deed(fill_and_truncate, lambda state: use(state, FIRST)),
    "forget what was altered": Deed(
        fill_and_alter,
        lambda state: state.cache.verify(Digest.of(FIRST), time.monotonic() + 60),
    ),
    "prune": Deed(
        lambda state: fill(state, FIRST, SECOND),
        lambda state: state.cache.prune(0, time.monotonic() + 60),
    ),
    "fetch beside what a killed one has left": Deed(
        leave_a_download, lambda state: use(state, THIRD)
    ),
}


class Steps:
    """The calls of the operating system that this thread makes."""

    def __init__(self, at: int = 0, act: Callable[[], object] = lambda: None) -> None:
        self._at = at
        self._act = act
        self.seen: list[str] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        sys.setprofile(self._told)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _told(self, _frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or called.__name__ in IDLE:
            return
        owner = type(getattr(called, "__self__", None)).__name__
        module = getattr(called, "__module__", None)
        if module in ("posix", "fcntl", "_io", "io") or owner == "FileIO":
            self.seen.append(called.__name__)
            if len(self.seen) == self._at:
                self._act()


@pytest.fixture(params=DEEDS)
def deed(request: pytest.FixtureRequest) -> Deed:
    return DEEDS[request.param]


@pytest.fixture
def prepared(deed: Deed, place: str) -> State:
    state = State(os.path.join(place, "prepared"))
    deed.prepare(state)
    return state


def recorded(deed: Deed, prepared: State) -> list[str]:
    """Return the calls of one run."""

    def run() -> list[str]:
        steps = Steps()
        with steps.watched():
            deed.act(state)
        return steps.seen

    state = prepared.copy(f"{prepared.directory}-recorded")
    return list(processes.result(run))


def check(state: State, prepared: State) -> None:
    """Check that only whole images are taken for images, and all can be fetched."""
    before = prepared.names()
    for name in state.names():
        digest = Digest.of_file_name(name)
        assert digest or name.startswith("."), f"{name} was left"
        if digest is None or name in before:
            continue
        with open(os.path.join(state.images, name), "rb") as file:
            hashed = digest.new()
            hashed.update(file.read())
        assert hashed.hexdigest() == digest.value, f"{name} is not what it says"
    for image in (FIRST, SECOND, THIRD):
        state.cache.verify(Digest.of(image), time.monotonic() + 60)
        assert get(state, image) == PLACE.contents[image.id]
    state.cache.prune(MUCH, time.monotonic() + 60)
    assert len(state.names()) == 2
    assert all(map(Digest.of_file_name, state.names())), "a download was left"


def test_a_kill_anywhere_leaves_no_half_image(deed, prepared, request):
    calls = recorded(deed, prepared)

    def attempt(number: int) -> str | None:
        state = prepared.copy(f"{prepared.directory}-{number}")

        def run() -> None:
            with Steps(number, lambda: os.kill(os.getpid(), signal.SIGKILL)).watched():
                deed.act(state)

        assert processes.call(run).killed
        return told(number, calls, lambda: check(state, prepared), state)

    troubles = processes.share_out(range(1, len(calls) + 1), attempt)
    run_figures.note(request.node, "cache: kills survived", len(calls) - len(troubles))
    assert not troubles, f"{len(troubles)} not survived, the first:\n{troubles[0]}"


def test_a_refusal_anywhere_is_an_error_of_ours_or_none(deed, prepared, request):
    calls = recorded(deed, prepared)

    def attempt(number: int) -> str | None:
        name = calls[number - 1]
        state = prepared.copy(f"{prepared.directory}-{number}")

        def refuse() -> None:
            raise OSError(REFUSALS[name], os.strerror(REFUSALS[name]))

        def run() -> None:
            with (
                contextlib.suppress(exception.OsAccError),
                Steps(number, refuse).watched(),
            ):
                deed.act(state)
            if name not in ("unlink", "remove"):
                left = {each for each in state.names() if each.startswith(".")}
                assert left <= prepared.names(), "a download was left at once"
            check(state, prepared)

        return told(number, calls, run, state)

    places = [each for each, name in enumerate(calls, start=1) if name in REFUSALS]
    troubles = processes.share_out(places, attempt)
    run_figures.note(
        request.node, "cache: refusals survived", len(places) - len(troubles)
    )
    assert places
    assert not troubles, f"{len(troubles)} not survived, the first:\n{troubles[0]}"


def told(
    number: int, calls: list[str], function: Callable[[], object], state: State
) -> str | None:
    """Run a function in a child; return its trouble with the number of the call."""
    ended = processes.call(function)
    shutil.rmtree(state.directory, ignore_errors=True)
    if not ended.trouble:
        return None
    return f"call {number}, {calls[number - 1]}, of {calls}:\n{ended.trouble}"
