# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Carry the figures of the last runs into the manual.

``python tools/figures.py``, after the lanes of which the figures are: each
leaves its own in ``build/figures/<lane>.json``. A lane that has not run since
keeps the figures that the manual has of it.
"""

from __future__ import annotations

import json
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
RUNS = TOP / "build" / "figures"
MANUAL = TOP / "doc" / "source" / "reference" / "figures.json"


def main() -> None:
    figures = json.loads(MANUAL.read_text()) if MANUAL.exists() else {}
    for run in sorted(RUNS.glob("*.json")):
        figures[run.stem] = json.loads(run.read_text())
        print(f"{run.stem}: {len(figures[run.stem])} figures")
    MANUAL.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
