# SPDX-License-Identifier: Apache-2.0

"""Every touch of disk or host, as it happens.

The recorder does not know os_acc. It uses Python's own reports: audit events of
calls that change files, writes that reach the kernel, forks, and answers of the
helper's worker. Each touch is recorded before it happens; it leaves the state that the
next one finds, so that a kill before each covers every state in between as well. Calls
that change nothing are no touches: for an existing directory, and for a lock, which
ends with its holder. A transaction of the store touches the disk only if it changes
something: it writes a new file, and renames it.

A point is named by the privileged call in which it happens, by its process (the
client or the call's worker, which is a process of its own), and by its place there.
So it has the same name in each run, although calls for several devices run side by
side.
"""

from __future__ import annotations

import collections
import contextlib
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel as privsep_kernel
from os_acc.privsep import worker
from os_acc.privsep.outcome import CallResult
from os_acc.testing import FakeKernel
from os_acc.testing.nvme import NAMES

_CHANGES = frozenset(
    {
        *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link"),
        *("os.symlink", "os.truncate", "os.chmod", "os.chown", "os.utime"),
    }
)
#: NVMe admin commands that change nothing.
_ASKING = ("log", "identify")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Point(NamedTuple):
    """A place in a run at which it touches disk or host.

    :ivar call: the privileged call: its device, and its number; empty outside of
        calls.
    :ivar in_worker: whether it is in the call's worker, or in the client.
    :ivar place: counted from 1; 0: the call itself, before it begins.
    """

    call: str
    in_worker: bool
    place: int

    @property
    def device(self) -> str:
        """The device of the call."""
        return self.call.partition(",")[0]


class Recorder:
    """Reports each touch in this process and in its forks.

    Its hooks stay for good, so it is for processes that end with the run.

    :param directory: touches outside it are ignored.
    :param on_touch: called before a touch, in its process, with its description.
    :param on_call: called in the client before a privileged call, with a function
        that carries it out, and the files that this needs.
    """

    def __init__(
        self,
        directory: str,
        on_touch: Callable[[Point, str], None],
        on_call: Callable[[Point, Callable[[], object], Sequence[int]], None],
    ) -> None:
        self._directory = directory
        self._on_touch = on_touch
        self._on_call = on_call
        self._client = os.getpid()
        self._places: collections.Counter[tuple[int, str]] = collections.Counter()
        self._calls: collections.Counter[str] = collections.Counter()
        self._local = threading.local()

    def install(self, kernel: privsep_kernel.Kernel) -> None:
        """Watch this process, which uses this kernel, simulated or real."""
        if isinstance(kernel, FakeKernel):
            privsep_kernel.current = _WatchedFake(kernel.root, self)
        else:
            privsep_kernel.current = _Watched(self)
        worker.run = self._watch_calls(worker.run)
        sys.addaudithook(self._audit)

    def touch(self, what: str) -> None:
        """Report a touch that is about to happen."""
        if getattr(self._local, "quiet", False):
            return
        call, pid = getattr(self._local, "call", ""), os.getpid()
        self._places[pid, call] += 1
        point = Point(call, pid != self._client, self._places[pid, call])
        self._local.last = what
        with self.quiet():
            self._on_touch(point, what)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Ignore the touches of this thread within the context."""
        before = getattr(self._local, "quiet", False)
        self._local.quiet = True
        try:
            yield
        finally:
            self._local.quiet = before

    def _watch_calls(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def watched(
            addresses: Sequence[PciAddress],
            epoch: int,
            seconds: float,
            job: worker.Job,
            files: Sequence[int] = (),
            **more: Any,
        ) -> Any:
            def answered(index: int) -> CallResult:
                (result,) = worker._results(1, lambda _: job(index), None)
                self.touch(f"answer {result.outcome}")
                return result

            device = str(addresses[0])
            self._calls[device] += 1
            self._local.call = f"{device}, call {self._calls[device]}"
            try:
                with self.quiet():
                    self._on_call(
                        Point(self._local.call, False, 0),
                        lambda: run(addresses, epoch, seconds, job, files, **more),
                        files,
                    )
                return run(addresses, epoch, seconds, answered, files, **more)
            finally:
                self._local.call = ""

        return watched

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "os.fork":
            self.touch(event)
        elif event == "open":
            path, _mode, flags = args
            if isinstance(flags, int) and flags & _WRITING and self._is_ours(path):
                what = f"open {self._name(path)}"
                # A wait for the end of its reader opens a FIFO any number of times.
                if what != getattr(self._local, "last", "") or not _is_fifo(path):
                    self.touch(what)
        elif event == "os.mkdir" and os.path.isdir(args[0]):
            return
        elif event in _CHANGES and self._is_ours(args[0]):
            self.touch(f"{event} {self._name(args[0])}")

    def _is_ours(self, path: object) -> bool:
        return isinstance(path, str | bytes) and os.fsdecode(path).startswith(
            self._directory
        )

    def _name(self, path: str | bytes) -> str:
        return os.path.relpath(os.fsdecode(path), self._directory)


def _is_fifo(path: str | bytes) -> bool:
    return os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode)


class _Watched(privsep_kernel.Kernel):
    """A kernel that reports its calls, but not its own book-keeping."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def write(self, path: str, text: str) -> None:
        name = os.path.relpath(path, self.root)
        self._recorder.touch(f"echo {text.strip() or 'nothing'} > {name}")
        with self._recorder.quiet():
            super().write(path, text)

    def open_exclusive(self, path: str, device: str) -> int:
        with self._recorder.quiet():
            return super().open_exclusive(path, device)

    def ioctl(self, fd: int, request: int, argument: bytes) -> None:
        self._recorder.touch(f"ioctl {request:#x}")
        with self._recorder.quiet():
            super().ioctl(fd, request, argument)

    def open_disk(self, path: str, device: str, flags: int = 0) -> int:
        with self._recorder.quiet():
            return super().open_disk(path, device, flags)

    def open_controller(self, path: str, device: str) -> int:
        with self._recorder.quiet():
            return super().open_controller(path, device)

    def nvme_admin(
        self, fd: int, command: Callable[[int], bytes], size: int
    ) -> tuple[int, bytes]:
        opcode = command(1)[0]
        if opcode in NAMES and NAMES[opcode] not in _ASKING:
            self._recorder.touch(f"NVMe {NAMES[opcode]}")
        with self._recorder.quiet():
            return super().nvme_admin(fd, command, size)

    def read(self, path: str) -> str:
        with self._recorder.quiet():
            return super().read(path)

    def probe_vfio_group(self, group: int) -> int:
        with self._recorder.quiet():
            return super().probe_vfio_group(group)

    def probe_vfio_device(self, name: str) -> int:
        with self._recorder.quiet():
            return super().probe_vfio_device(name)

    def migration(self, group: int, name: str) -> tuple[int, int]:
        with self._recorder.quiet():
            return super().migration(group, name)


class _WatchedFake(_Watched, FakeKernel):
    """A simulated kernel that reports its calls as well."""

    def __init__(self, root: str, recorder: Recorder) -> None:
        _Watched.__init__(self, recorder)
        with recorder.quiet():
            FakeKernel.__init__(self, root)

    def write_medium(self, address: object, number: int, data: bytes) -> None:
        self._recorder.touch("a guest writes")
        with self._recorder.quiet():
            super().write_medium(address, number, data)
