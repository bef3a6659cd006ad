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
from oslo_config import cfg

from os_acc import deadlines, exception, privsep, service
from os_acc.attach.manager import Manager
from os_acc.objects.lease import Owner
from os_acc.privsep import kernel as privsep_kernel
from os_acc.testing import (
    FakeKernel,
    HostSpec,
    Snapshot,
    WriteOutcome,
    helper,
    hosts,
    uuid_of,
)
from os_acc.testing.demo import compute
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
_TEXT = """\
[os_acc]
state_path = {state}
device_spec = {{"address": "*:*:*.*"}}
node_name = host
{options}
[os_acc_base]
helper_command = {command} --config-file {path}
thread_pool_size = {threads}
[os_acc_inspect]
helper_command = {command} --config-file {path}
"""
#: For programs that are started anew; they find os_acc as an installed one.
PYTHON = (sys.executable, "-P")
_PATIENCE = 60.0
_POLL = 0.01
# Seconds that a busy machine may take to let somebody go on.
_LATE = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """What came of a call, and how long the caller waited.

    :ivar error: the name of the class that was raised, and its message.
    """

    value: Any
    error: str
    text: str
    seconds: float


def attempt(call: Callable[[], Any]) -> Attempt:
    """Call the library; anything but a typed error fails the test."""
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
    """Nobody waits longer than the documentation says.

    :param going_back: ``write_timeout``, for a plug that failed.
    """
    bound = timeout + deadlines.GRACE + _LATE
    if going_back is not None:
        bound += going_back + deadlines.GRACE
    assert tried.seconds <= bound, tried


def plug(manager: Manager, number: int, *cards: str) -> list[str]:
    """Plug cards for an instance; their addresses as they were returned."""
    selected, specs = request(manager, cards)
    entries = manager.plug({"uuid": uuid_of(number)}, selected, specs)
    return [entry["pci_id"] for entry in entries]


def unplug(manager: Manager, number: int) -> int:
    """Unplug all that an instance has."""
    return manager.unplug({"uuid": uuid_of(number)})


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """One simulated host, its state, and what services on it do."""

    directory: str

    @property
    def root(self) -> str:
        return os.path.join(self.directory, "host")

    @property
    def state(self) -> str:
        return os.path.join(self.directory, "state")

    @property
    def kernel(self) -> FakeKernel:
        return FakeKernel(self.root)

    def build(self) -> Snapshot:
        """Make it in an empty directory; as it is before anything is plugged."""
        cards = tuple(hosts.fpga(card.removesuffix(":00.0")) for card in CARDS)
        spec = HostSpec((*hosts.gpu("0000:08"), *cards))
        return FakeKernel.build(self.root, spec).snapshot()

    def configure(self, *program: str, threads: int = 64, **options: object) -> str:
        """A configuration file for services.

        :param program: what is run as their helper; a fake host's by default.
        """
        path = os.path.join(self.directory, f"{time.monotonic_ns()}.conf")
        command = shlex.join(program) or helper.command(self.root)
        lines = (f"{key} = {value}" for key, value in {**_OPTIONS, **options}.items())
        text = _TEXT.format(
            state=self.state,
            options="\n".join(lines),
            command=command,
            path=path,
            threads=threads,
        )
        Path(path).write_text(text)
        return path

    def start(self, config: str, *, inspects: bool = False) -> Manager:
        """The library in this process, its privileged writes in a helper.

        :param inspects: whether the context that only looks has a helper, too.
        """
        compute.configure(config)
        privsep.base.set_client_mode(True)
        privsep.inspect.set_client_mode(inspects)
        if not inspects:
            privsep_kernel.current = self.kernel
        return service.build(cfg.CONF, self.root, Owner.NOVA)

    def service(
        self, action: Callable[[Manager], object], **options: Any
    ) -> processes.Child:
        """A process that starts the library and does something with it."""
        config = self.configure(**options)
        return processes.Child(lambda: action(self.start(config)))

    def run(self, action: Callable[[Manager], object], **options: Any) -> Any:
        """What a process returns that starts the library and does something."""
        return outcome(self.service(action, **options))

    def recover(self) -> list[tuple[str, str]]:
        """A start after a crash; the card and the state of each lease."""

        def leases() -> list[tuple[str, str]]:
            privsep_kernel.current = self.kernel
            compute.configure(self.configure())
            store = service.build(cfg.CONF, self.root, Owner.NOVA).store
            return [(str(each.address), each.state.value) for each in store.leases()]

        return outcome(processes.Child(leases))

    def check_whole(self, pristine: Snapshot) -> None:
        """All that is leased goes back; the next plug is served."""

        def unplug_all() -> None:
            privsep_kernel.current = self.kernel
            compute.configure(self.configure())
            manager = service.build(cfg.CONF, self.root, Owner.NOVA)
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

        outcome(processes.Child(unplug_all))

    def blocked(self) -> list[int]:
        """The processes whose writes had to wait, in that order."""
        return [
            write.pid
            for write in self.kernel.writes()
            if write.outcome == WriteOutcome.BLOCKED
        ]

    def helpers(self, context: str = "base") -> frozenset[int]:
        """The helpers of this host that run, without their workers."""
        found = {pid for pid in _processes() if self._is_helper(pid, context)}
        return frozenset(pid for pid in found if parent(pid) not in found)

    def _is_helper(self, pid: int, context: str) -> bool:
        words = _read(pid, "cmdline").split("\0")
        return self.root in words and f"os_acc.privsep.{context}" in words


@pytest.fixture
def host(place: str) -> Iterator[Host]:
    """An empty place for a host; in the end nothing of it runs any more."""
    host = Host(place)
    processes.become_reaper()
    yield host
    for pid in host.helpers() | host.helpers("inspect"):
        os.kill(pid, signal.SIGCONT)
    host.kernel.lift()
    processes.reap()


@pytest.fixture
def pristine(host: Host) -> Snapshot:
    """The host as it was when it was made."""
    return host.build()


survived = counts("process scenarios survived")


def outcome(child: processes.Child) -> Any:
    """What a process returned, which nobody has killed."""
    ended = child.wait()
    assert not ended.trouble, ended.trouble
    assert not ended.killed
    return ended.value


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that has to come."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(_POLL)


def parent(pid: int) -> int:
    """The parent of a process; 0 where it is gone."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("PPid:"):
            return int(line.split()[1])
    return 0


def state_of(pid: int) -> str:
    """``R``, ``S``, ``T``, ...; empty where it is gone (proc_pid_stat(5))."""
    return _read(pid, "stat").rpartition(") ")[2][:1]


def _processes() -> Iterable[int]:
    return map(int, filter(str.isdigit, os.listdir("/proc")))


def _read(pid: int, name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""
