# SPDX-License-Identifier: Apache-2.0

"""Touches of disk or host by a forked process, and its kill before one of them.

A touch is a write to the kernel, a commit of the store, a change of a file of the
host, or a call of the plugin's ``prepare`` or ``release``, before and after it. Each
touch leaves the state that the next one finds: kills before each cover every state.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import mmap
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from os_acc.attach.manager import Manager
from os_acc.objects.device import AttachHandle
from os_acc.plugins import base
from os_acc.testing.conformance.common import Around, RuleBroken, Step, interposed
from os_acc.testing.kernel import FakeKernel

_NUMBER: Final = struct.Struct("=qq")
_SIZE: Final = 4096
_CHANGES: Final = frozenset(
    {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink"}
)
_WRITES: Final = os.O_WRONLY | os.O_TRUNC | os.O_EXCL
#: Calls of the kernel that keep their own records in files of the host.
_OF_KERNEL: Final = (
    *("write", "ioctl", "open_exclusive", "read", "probe_vfio_group"),
    *("probe_vfio_device", "open_disk", "open_controller", "migration"),
)


class Touches:
    """The touches of a forked process and its workers, counted in shared memory.

    :param target: the touch before which they are killed, counted from 1; 0: none.
    :param kernel: of the simulated host; None: on a real host only the commits of the
        store and the calls of the plugin are touches.
    """

    def __init__(
        self,
        manager: Manager,
        plugin: str,
        target: int = 0,
        kernel: FakeKernel | None = None,
    ) -> None:
        self._manager, self._plugin = manager, plugin
        self._target, self._kernel = target, kernel
        self._shared = mmap.mmap(-1, _SIZE)
        self._local = threading.local()

    @property
    def count(self) -> int:
        """The number of touches so far."""
        number, _length = _NUMBER.unpack_from(self._shared)
        return int(number)

    @property
    def last(self) -> str:
        """The last touch, or the error of the process."""
        _number, length = _NUMBER.unpack_from(self._shared)
        start = _NUMBER.size
        return self._shared[start : start + length].decode("utf-8", "replace")

    def run(self, job: Callable[[], None]) -> bool:
        """Run a job in a forked process; return whether it was killed.

        :raises RuleBroken: the job failed by itself.
        """
        pid = os.fork()
        if pid == 0:
            self._child(job)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            return True
        if os.WEXITSTATUS(status):
            raise RuleBroken(f"a plug and an unplug succeed, not: {self.last}")
        return False

    def _child(self, job: Callable[[], None]) -> NoReturn:
        # A garbage collection of all that was inherited would copy it.
        gc.disable()
        os.setpgid(0, 0)
        logging.disable(logging.CRITICAL)
        code = 1
        try:
            self._watch()
            with self._watched_plugin():
                job()
            code = 0
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            self._note(self.count, repr(error))
        finally:
            os._exit(code)

    def touch(self, what: str) -> None:
        """Count a touch that is about to happen; die instead if it is the target."""
        if getattr(self._local, "quiet", False):
            return
        number = self.count + 1
        self._note(number, what)
        if number == self._target:
            os.killpg(0, signal.SIGKILL)

    def _note(self, number: int, what: str) -> None:
        text = what.encode()[: _SIZE - _NUMBER.size]
        self._shared[_NUMBER.size : _NUMBER.size + len(text)] = text
        _NUMBER.pack_into(self._shared, 0, number, len(text))

    # -- in the forked process -------------------------------------------------

    def _watch(self) -> None:
        """Watch this process; its hooks stay for good."""
        if self._kernel is not None:
            calls: dict[str, Any] = vars(self._kernel)
            for name in _OF_KERNEL:
                calls[name] = self._quietly(name, getattr(self._kernel, name))
        sys.addaudithook(self._audit)

    def _quietly(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            if name == "write":
                path = os.path.relpath(args[0], self._manager.root)
                self.touch(f"write of {args[1].strip()!r} to {path}")
            elif name == "ioctl":
                self.touch(f"ioctl {args[1]:#x}")
            before = getattr(self._local, "quiet", False)
            self._local.quiet = True
            try:
                return call(*args)
            finally:
                self._local.quiet = before

        return watched

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "os.rename" and os.fsdecode(args[1]).endswith("/os_acc.sqlite"):
            self.touch("a commit of the store")
        elif self._kernel is None:
            return
        elif event == "open":
            path, _mode, flags = args
            if isinstance(flags, int) and flags & _WRITES and self._is_ours(path):
                self.touch(f"open of {os.path.basename(os.fsdecode(path))}")
        elif event in _CHANGES and self._is_ours(args[0]):
            self.touch(f"{event} of {os.path.basename(os.fsdecode(args[0]))}")

    def _is_ours(self, path: object) -> bool:
        root = self._manager.root
        return (
            isinstance(path, str | bytes)
            and os.fsdecode(path).startswith(f"{root}/")
            and not os.fsdecode(path).startswith(f"{root}/.kernel/")
        )

    @contextlib.contextmanager
    def _watched_plugin(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for method in ("prepare", "release"):
                around = self._around(method)
                stack.enter_context(
                    interposed(self._manager, self._plugin, method, around)
                )
            yield

    def _around(self, method: str) -> Around:
        def call(real: Step, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
            self.touch(f"the call of {method}()")
            real(handle, steps)
            self.touch(f"the return of {method}()")

        return call
