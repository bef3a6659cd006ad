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

"""The entry point ``os-acc``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from os_acc.cmd.app import OsAcc


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``os-acc``; its exit status: 0, 1 (it failed) or 2 (wrong usage)."""
    return OsAcc().run(list(sys.argv[1:] if argv is None else argv))
