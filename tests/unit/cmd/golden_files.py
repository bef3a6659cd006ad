# SPDX-License-Identifier: Apache-2.0

"""Output of commands, in files that the manual shows.

Run with OS_ACC_GOLDEN=1 to write them anew, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def expect(name: str, printed: str) -> None:
    """Compare output with this file."""
    path = GOLDEN / name
    if os.environ.get("OS_ACC_GOLDEN"):
        path.write_text(printed, encoding="utf-8")
    assert printed == path.read_text(encoding="utf-8")
