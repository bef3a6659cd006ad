# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.privsep import kernel
from os_acc.testing.privileged import privileged_here
from tests.unit.fpga_host import FpgaHost


class Untouchable(kernel.Kernel):
    """A kernel that fails the test on every access."""

    def path(self, *parts: str) -> str:
        raise AssertionError(f"{parts} reached the kernel")

    def write(self, path: str, text: str) -> None:
        raise AssertionError(f"{path} was written")

    def read(self, path: str) -> str:
        raise AssertionError(f"{path} was read")

    def open_exclusive(self, path: str, device: str) -> int:
        raise AssertionError(f"{path} was opened")

    def ioctl(self, fd: int, request: int, argument: bytes) -> None:
        raise AssertionError(f"{request} was asked for")

    def probe_vfio_group(self, group: int) -> int:
        raise AssertionError(f"group {group} was opened")


@pytest.fixture(scope="module")
def untouchable() -> Iterator[None]:
    """Run privileged code in this process, with a kernel that rejects every access."""
    before, kernel.current = kernel.current, Untouchable()
    with privileged_here():
        yield
    kernel.current = before


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FpgaHost]:
    """Return a host with cards that privileged code in this process can program."""
    with FpgaHost(tmp_path) as host:
        yield host
