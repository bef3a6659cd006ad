# SPDX-License-Identifier: Apache-2.0

"""Give an ordinary user access to root's Python.

A checkout, a virtual environment or the interpreter itself may lie in root's home
directory. In a disposable machine root can make it accessible.
"""

from __future__ import annotations

import stat
import subprocess
import sys
import tempfile
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]


def open_the_way() -> None:
    """Make all parent directories of Python's files searchable."""
    for goal in (_CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)):
        for directory in (*reversed(goal.resolve().parents), goal.resolve()):
            if not directory.stat().st_mode & stat.S_IXOTH:
                _make_passable(directory)


def _make_passable(directory: Path) -> None:
    # The file system below is the host's own and must not change. /tmp is an overlay
    # itself, and overlays cannot be stacked this way.
    above = Path(tempfile.mkdtemp(dir="/run", prefix="passable-"))
    above.chmod(0o711)
    (above / "upper").mkdir(mode=0o711)
    (above / "work").mkdir()
    layers = f"lowerdir={directory},upperdir={above}/upper,workdir={above}/work"
    subprocess.run(
        ["mount", "-t", "overlay", "-o", layers, "overlay", str(directory)], check=True
    )
    directory.chmod(directory.stat().st_mode | stat.S_IXOTH)
