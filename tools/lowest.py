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


"""Turn every lower bound of a requirements file into a pin."""

from __future__ import annotations

import sys
from pathlib import Path


def pins(requirements: str) -> str:
    """The same requirements, each at the lowest version that it allows."""
    lines = (line.partition("#")[0].strip() for line in requirements.splitlines())
    return "".join(f"{line.replace('>=', '==')}\n" for line in lines if line)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(pins(source.read_text()))
