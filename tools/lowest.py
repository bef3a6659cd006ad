# SPDX-License-Identifier: Apache-2.0

"""Turn every lower bound of a requirements file into a pin."""

from __future__ import annotations

import sys
from pathlib import Path


def pins(requirements: str) -> str:
    """Return the same requirements, each at the lowest version that it allows."""
    lines = (line.partition("#")[0].strip() for line in requirements.splitlines())
    return "".join(f"{line.replace('>=', '==')}\n" for line in lines if line)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(pins(source.read_text()))
