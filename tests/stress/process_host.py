# SPDX-License-Identifier: Apache-2.0

"""A host whose services are processes, with real helpers of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from os_acc import deadlines, exception, native_threads, privsep
from os_acc.attach.manager import Manager
from os_acc.testing import (
    HostSpec,
    Snapshot,
    TestHost,
    WriteOutcome,
    hosts,
    uuid_of,
)
from tests.run_figures import counts
from tests.stress import processes
from tests.stress.simulated_host import request

#: Cards of one function each.
CARDS = tuple(f"0000:{number:02x}:00.0" for number in range(0x10, 0x28))
#: A card of two functions, which go together.
GPU, AUDIO = "0000:08:00.0", "0000:08:00.1"

_OPTIONS: Mapping[str, object] = {
    "plug_timeout": 60.0,
    "unplug_timeout": 60.0,
    "initialize_timeout": 60.0,
    "write_timeout": 20.0,
}
#: For newly started programs; they find os_acc as an installed package.
PYTHON = (sys.executable, "-P")
_PATIENCE = 60.0
_POLL = 0.01
# A busy machine may delay a process for so many seconds.
_LATE = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """The result of a call, and how long the caller waited.

    :ivar error: the name of the class that was raised.
    :ivar text: its message.
    """

    value: Any
    error: str
    text: str
    seconds: float


def attempt(call: Callable[[], Any]) -> Attempt:
    """Call the library; any error of another type fails the test."""
    began = time.monotonic()
    try:
        value = call()
    except exception.OsAccError as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        name = type(error).__name__
        busy = exception.StateReason.BUSY
        if isinstance(error, exception.StateUnavailable) and error.reason is busy:
            name = f"{name}:{busy}"
        return Attempt(None, name, text, time.monotonic() - began)
    return Attempt(value, "", "", time.monotonic() - began)


def check_in_time(
    tried: Attempt, timeout: float, going_back: float | None = None
) -> None:
    """Check that the caller waited no longer than the documentation says.

    :param going_back: ``write_timeout``, for a plug that failed.
    """
    bound = timeout + deadlines.GRACE + _LATE
    if going_back is not None:
        bound += going_back + deadlines.GRACE
    assert tried.seconds <= bound, tried


def plug(manager: Manager, number: int, *cards: str) -> list[str]:
    """Plug cards for an instance; return the addresses of the entries."""
    selected, specs = request(manager, cards)
    entries = manager.plug({"uuid": uuid_of(number)}, selected, specs)
    return [entry["pci_id"] for entry in entries]


def unplug(manager: Manager, number: int) -> int:
    """Unplug all accelerators of an instance."""
    return manager.unplug({"uuid": uuid_of(number)})


class ProcessHost(TestHost):
    """A host with cards of one function, and a GPU; its services are processes.

    :param build: False: the directory has the host already.
    """

    def __init__(self, directory: str, *, build: bool = True) -> None:
        cards = tuple(hosts.fpga(card.removesuffix(":00.0")) for card in CARDS)
        spec = HostSpec((*hosts.gpu("0000:08"), *cards)) if build else None
        super().__init__(directory, spec, node_name="host", **_OPTIONS)

    def configure(self, *program: str, threads: int = 64, **options: object) -> str:
        """Write a configuration file for services; return its path.

        :param program: their helper; empty: one on this host.
        """
        name = f"{time.monotonic_ns()}.conf"
        command = shlex.join(program)
        return self.write_config(
            name, helper_command=command, threads=threads, **options
        )

    def serve(self, config: str, *, inspects: bool = False) -> Manager:
        """Start a service in this process, its privileged writes in a helper.

        :param inspects: whether the context that only reads has a helper, too.
        """
        inspecting = (privsep.inspect,) if inspects else ()
        return self.start_with_helpers(config, (privsep.base, *inspecting))

    def service(
        self, action: Callable[[Manager], object], **options: Any
    ) -> processes.Child:
        """Start a process that starts a service, and calls it."""
        config = self.configure(**options)
        return processes.Child(lambda: action(self.serve(config)))

    def run(self, action: Callable[[Manager], object], **options: Any) -> Any:
        """Return the result of a process that starts a service, and calls it."""
        return outcome(self.service(action, **options))

    def _start_again(self) -> Manager:
        # A child of a process with greenlets, as a helper in here forks, has none.
        if native_threads.is_needed():
            return self.serve(self.configure())
        return self.start_here()

    def recover(self) -> list[tuple[str, str]]:
        """Start a service after a crash; return card and state of each lease."""

        def leases() -> list[tuple[str, str]]:
            store = self._start_again().store
            return [(str(each.address), each.state.value) for each in store.leases()]

        return processes.result(leases)

    def check_whole(self, pristine: Snapshot) -> None:
        """Check that all leases are released, and that the next plug is served."""

        def unplug_all() -> None:
            manager = self._start_again()
            leases = manager.store.leases()
            places = [str(each) for lease in leases for each in lease.members]
            assert len(places) == len(set(places)), "a device is leased twice"
            for consumer in {lease.consumer for lease in leases}:
                manager.unplug({"uuid": consumer})
            assert manager.store.leases() == ()
            assert self.kernel.snapshot() == pristine
            assert plug(manager, 99, GPU, CARDS[0]) == [GPU, CARDS[0]]
            assert unplug(manager, 99) == 2
            assert self.kernel.snapshot() == pristine

        processes.result(unplug_all)

    def blocked(self) -> list[int]:
        """Return the processes whose writes had to wait, in order."""
        return [
            write.pid
            for write in self.kernel.writes()
            if write.outcome == WriteOutcome.BLOCKED
        ]

    def helpers(self, context: str = "base") -> frozenset[int]:
        """Return the running helpers of this host, without their workers."""
        found = {pid for pid in _processes() if self._is_helper(pid, context)}
        return frozenset(pid for pid in found if parent(pid) not in found)

    def _is_helper(self, pid: int, context: str) -> bool:
        words = _read(pid, "cmdline").split("\0")
        return self.root in words and f"os_acc.privsep.{context}" in words


@pytest.fixture
def host(place: str) -> Iterator[ProcessHost]:
    """Return a host; end all its processes after the test."""
    host = ProcessHost(place)
    processes.become_reaper()
    yield host
    for pid in host.helpers() | host.helpers("inspect"):
        os.kill(pid, signal.SIGCONT)
    host.kernel.lift()
    processes.reap()


@pytest.fixture
def pristine(host: ProcessHost) -> Snapshot:
    """Return the host as it was when it was built."""
    return host.kernel.snapshot()


survived = counts("process scenarios survived")
outcome = processes.outcome


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, or fail."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition does not hold in time"
        time.sleep(_POLL)


def parent(pid: int) -> int:
    """Return the parent of a process; 0 if it has ended."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("PPid:"):
            return int(line.split()[1])
    return 0


def state_of(pid: int) -> str:
    """Return ``R``, ``S``, ``T``, ...; empty if it has ended (proc_pid_stat(5))."""
    return _read(pid, "stat").rpartition(") ")[2][:1]


def _processes() -> Iterable[int]:
    return map(int, filter(str.isdigit, os.listdir("/proc")))


def _read(pid: int, name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""
