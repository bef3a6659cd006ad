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


"""Check that every Python file begins with the licence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FIRST = '# Licensed under the Apache License, Version 2.0 (the "License"); you may\n'
LAST = "# under the License.\n"


def has_header(text: str) -> bool:
    """Whether the text begins with the licence, after a ``#!`` line if any."""
    if text.startswith("#!"):
        text = text.partition("\n")[2]
    return text.startswith(FIRST) and LAST in text


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = [Path(name) for name in listed.split("\0") if name]
    bare = [p for p in paths if p.exists() and not has_header(p.read_text())]
    for path in bare:
        print(f"{path}: no licence header", file=sys.stderr)
    print(f"{len(paths)} files, {len(bare)} without licence header")
    return 1 if bare or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
