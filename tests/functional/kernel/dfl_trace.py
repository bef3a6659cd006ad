# SPDX-License-Identifier: Apache-2.0

"""Record the words that the DFL driver pushes into an FPGA, inside the kernel.

A register keeps only the last word. Therefore a probe is set on the instruction
of fme_mgr_write() that stores each of them (``FME_PR_DATA``, offset 0x18):
Documentation/trace/kprobetrace.rst.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from . import kernel_modules, sysfs

_TRACING = Path("/sys/kernel/tracing")
_PROBES = _TRACING / "kprobe_events"
_OURS = _TRACING / "instances" / "dfl"
_FUNCTION, _MODULE = "fme_mgr_write", "dfl-fme-mgr"
_STORE = re.compile(r"^ *([0-9a-f]+):\s+mov +%(r\w+),0x18\(%r\w+\)$", re.MULTILINE)
# Documentation/trace/kprobes.rst.
_OPTIMIZATION = Path("/proc/sys/debug/kprobes-optimization")
_OVERRUN = re.compile(r"^overrun: (\d+)$", re.MULTILINE)
#: The buffer of each CPU; a word takes about 50 bytes.
_KIBIBYTES = "8192"


class Pushed:
    """The pushed payload of all cards."""

    def payload(self) -> bytes:
        """Return the bytes of all words so far.

        :raises LookupError: the kernel has lost some.
        """
        stats = [each.read_text() for each in _OURS.glob("per_cpu/cpu*/stats")]
        lost = sum(int(count) for each in stats for count in _OVERRUN.findall(each))
        if lost:
            raise LookupError(f"{lost} words were not recorded")
        found = re.findall(r" word=0x([0-9a-f]+)", (_OURS / "trace").read_text())
        words = [int(word, 16) for word in found]
        return struct.pack(f"<{len(words)}I", *words)


@contextlib.contextmanager
def recorded() -> Iterator[Pushed]:
    """Record pushed words until the end of the block."""
    offset, register = _instruction()
    place = f"{_MODULE.replace('-', '_')}:{_FUNCTION}+{offset:#x}"
    # Linux 6.1 has stood still while it patched a jump into the busy loop.
    sysfs.store(_OPTIMIZATION, "0")
    sysfs.store(_PROBES, f"p:dfl/word {place} word=%{register}:x32")
    _OURS.mkdir()
    try:
        sysfs.store(_OURS / "buffer_size_kb", _KIBIBYTES)
        sysfs.store(_OURS / "events/dfl/word/enable", "1")
        yield Pushed()
    finally:
        sysfs.store(_OURS / "events/dfl/word/enable", "0")
        _OURS.rmdir()
        sysfs.store(_PROBES, "-:dfl/word")


def _instruction() -> tuple[int, str]:
    """Return the instruction's offset in the function, and the register of the word."""
    listing = subprocess.run(
        ["objdump", "--disassemble=" + _FUNCTION, "--no-show-raw-insn", _module()],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    begin = re.search(rf"^([0-9a-f]+) <{_FUNCTION}>:", listing, re.MULTILINE)
    stores = _STORE.findall(listing)
    if begin is None or len(stores) != 1:
        raise LookupError(f"{len(stores)} stores to FME_PR_DATA in {_FUNCTION}")
    ((address, register),) = stores
    return int(address, 16) - int(begin[1], 16), register.removeprefix("r")


def _module() -> str:
    return os.fspath(kernel_modules.module(_MODULE, os.uname().release))
