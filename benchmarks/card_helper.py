# SPDX-License-Identifier: Apache-2.0

"""A privileged helper on a fake kernel whose FPGA cards accept any payload.

It differs from :mod:`os_acc.testing.helper` in one point: a card does not hash the
bitstream for the record of writes, which would distort the measurement.
"""

from __future__ import annotations

import ctypes
import shlex
import sys

from os_acc.testing import FakeKernel, helper
from os_acc.testing.dfl import function_of

_PIECE = 2**20
_HEAD = 16


class TakingKernel(FakeKernel):
    """A fake kernel that reads a payload once, as the driver does to copy it."""

    def _read(self, address: int, size: int) -> tuple[str, str]:
        piece = ctypes.create_string_buffer(min(size, _PIECE))
        for offset in range(0, size, _PIECE):
            ctypes.memmove(piece, address + offset, min(_PIECE, size - offset))
        return "not hashed", function_of(ctypes.string_at(address, min(size, _HEAD)))


def command(root: str, config_file: str) -> str:
    """Return the value of a context's option ``helper_command``."""
    words = [sys.executable, "-m", __name__, "--fake-root", root]
    return shlex.join([*words, "--config-file", config_file])


if __name__ == "__main__":
    helper.FakeKernel = TakingKernel  # type: ignore[attr-defined]
    helper.main()
