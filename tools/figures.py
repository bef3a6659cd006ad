# SPDX-License-Identifier: Apache-2.0

"""Carry the figures of the last full runs into the manual.

``python tools/figures.py`` reads the figures that each lane has left in
``build/figures/<lane>.json``, and records the commit with them. It accepts
full runs that passed: tox passes ``--figures`` to lanes without arguments alone (the
kernel lane writes those of its newest kernel), and a run with ``--share`` marks its
figures as a part. A lane that has not run
since keeps the figures that the manual has of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
RUNS = TOP / "build" / "figures"
MANUAL = TOP / "doc" / "source" / "reference" / "figures.json"


def read_full_run(run: Path) -> dict[str, Any]:
    """Return the figures of a full run, with its commit.

    :raises ValueError: it was no full run, or its commit is unknown.
    """
    written = json.loads(run.read_text())
    if written.get("full") is not True:
        raise ValueError(f"{run}: not a full run that passed; run tox -e {run.stem}")
    if not written["commit"]:
        raise ValueError(f"{run}: the commit is unknown; run it in a git checkout")
    return {"commit": written["commit"], **written["figures"]}


def carry(runs: Path, manual: Path) -> list[str]:
    """Put the figures of all runs into the manual, or none of them.

    :returns: the carried figures, a line for each lane.
    :raises ValueError: one of them was no full run.
    """
    figures = json.loads(manual.read_text()) if manual.exists() else {}
    new = {run.stem: read_full_run(run) for run in sorted(runs.glob("*.json"))}
    text = json.dumps(figures | new, indent=1, sort_keys=True)
    manual.write_text(text + "\n")
    return [f"{lane}: {len(run) - 1} figures" for lane, run in new.items()]


if __name__ == "__main__":
    try:
        print("\n".join(carry(RUNS, MANUAL)))
    except ValueError as error:
        sys.exit(str(error))
