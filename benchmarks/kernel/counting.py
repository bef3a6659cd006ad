# SPDX-License-Identifier: Apache-2.0

"""Count the events of one call of the library, including its waits for the disk."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks import counting
from benchmarks.counting import Counted

_TRACING = Path("/sys/kernel/tracing")
_EVENTS = ("sys_enter_fsync", "sys_enter_fdatasync")
_COMM = Path("/proc/self/comm")
#: The name of this process during the count; the threads that it starts inherit it.
_NAME = "os-acc-counted"


@contextlib.contextmanager
def counting_syncs() -> Iterator[Counted]:
    """Count as :func:`benchmarks.counting.counting`, with fsync(2) and fdatasync(2)."""
    with counting.counting() as counted, _fsyncs(counted):
        yield counted


@contextlib.contextmanager
def _fsyncs(counted: Counted) -> Iterator[None]:
    """Count with the kernel's tracing (Documentation/trace/events.rst)."""
    if not (_TRACING / "trace").exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", _TRACING], check=True)
    events = [_TRACING / "events/syscalls" / name for name in _EVENTS]
    name = _COMM.read_text()
    _COMM.write_text(_NAME)
    for event in events:
        (event / "filter").write_text(f'comm == "{_NAME}"')
        (event / "enable").write_text("1")
    (_TRACING / "trace").write_text("")
    try:
        yield
    finally:
        for event in events:
            (event / "enable").write_text("0")
        _COMM.write_text(name)
    lines = (_TRACING / "trace").read_text().splitlines()
    counted.fsyncs = sum(not line.startswith("#") for line in lines)
