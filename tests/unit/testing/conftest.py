# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc.testing import FakeKernel, hosts


class Attributes:
    """Writes and reads attributes as the library does, by short names."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel

    def device(self, address: str, name: str) -> str:
        return self.kernel.path("sys/bus/pci/devices", address, name)

    def set(self, address: str, name: str, text: str) -> None:
        self.kernel.write(self.device(address, name), text)

    def get(self, address: str, name: str) -> str:
        return self.kernel.read(self.device(address, name))

    def driver(self, name: str, attribute: str, address: str) -> None:
        path = self.kernel.path("sys/bus/pci/drivers", name, attribute)
        self.kernel.write(path, address)

    def unbind(self, address: str) -> None:
        self.set(address, "driver/unbind", address)

    def probe(self, address: str) -> None:
        self.kernel.write(self.kernel.path("sys/bus/pci/drivers_probe"), address)

    def to_vfio(self, address: str) -> None:
        self.set(address, "driver_override", "vfio-pci")
        if self.kernel.state(address).driver is not None:
            self.unbind(address)
        self.probe(address)


def in_child(job: Callable[[], None]) -> int:
    """Run a job in a forked process; return its exit code, or minus its signal."""
    return end_of(start(job))


def start(job: Callable[[], None]) -> int:
    """Run a job in a forked process; return its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            job()
            code = 0
        finally:
            os._exit(code)
    _running.add(pid)
    return pid


def end_of(pid: int) -> int:
    """Wait for a process; return its exit code, or minus its signal."""
    status = os.waitpid(pid, 0)[1]
    _running.discard(pid)
    return os.waitstatus_to_exitcode(status)


def end(pid: int) -> None:
    """Kill a process."""
    os.kill(pid, signal.SIGKILL)
    end_of(pid)


_running: set[int] = set()


@pytest.fixture(autouse=True)
def _no_process_stays():
    yield
    for pid in tuple(_running):
        end(pid)


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel.build(tmp_path, hosts.two_socket_host())


@pytest.fixture
def sysfs(kernel: FakeKernel) -> Attributes:
    return Attributes(kernel)
