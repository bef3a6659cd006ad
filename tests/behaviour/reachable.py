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


"""Let an ordinary user reach the Python that root runs.

A checkout, a virtual environment or the interpreter itself may lie in root's
home. In a machine that is thrown away, root can open the way to them.
"""

from __future__ import annotations

import stat
import subprocess
import sys
import tempfile
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]


def open_the_way() -> None:
    """Make all directories on the way to Python's files passable."""
    for goal in (_CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)):
        for directory in (*reversed(goal.resolve().parents), goal.resolve()):
            if not directory.stat().st_mode & stat.S_IXOTH:
                _make_passable(directory)


def _make_passable(directory: Path) -> None:
    # The file system below is the host's own, and is not to be changed.
    # /tmp is an overlay itself, and those cannot be stacked this way.
    above = Path(tempfile.mkdtemp(dir="/run", prefix="passable-"))
    above.chmod(0o711)
    (above / "upper").mkdir(mode=0o711)
    (above / "work").mkdir()
    layers = f"lowerdir={directory},upperdir={above}/upper,workdir={above}/work"
    subprocess.run(
        ["mount", "-t", "overlay", "-o", layers, "overlay", str(directory)], check=True
    )
    directory.chmod(directory.stat().st_mode | stat.S_IXOTH)
