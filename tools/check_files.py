# SPDX-License-Identifier: Apache-2.0

"""Check that every Python file begins with the licence, and is short enough."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"
LINES = 500
#: Exempt: operators and callers look for all errors in one place.
ONE_LIST = Path("os_acc/exception.py")


def has_header(text: str) -> bool:
    """Return whether the text begins with the licence, after a ``#!`` line if any."""
    if text.startswith("#!"):
        text = text.partition("\n")[2]
    return text.startswith(LICENCE)


def faults(path: Path) -> Iterator[str]:
    """Yield the faults of a file."""
    text = path.read_text()
    if not has_header(text):
        yield "no licence header"
    if (lines := text.count("\n")) > LINES and path != ONE_LIST:
        yield f"{lines} lines, of {LINES} at most"


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = [
        path for name in listed.split("\0") if name and (path := Path(name)).exists()
    ]
    found = [f"{path}: {each}" for path in paths for each in faults(path)]
    for each in found:
        print(each, file=sys.stderr)
    print(f"{len(paths)} files, {len(found)} faults")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
