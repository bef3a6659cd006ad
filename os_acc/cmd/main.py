# SPDX-License-Identifier: Apache-2.0

"""The entry point ``os-acc``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from os_acc.cmd.app import OsAcc


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``os-acc``; its exit status: 0, 1 (it failed) or 2 (wrong usage)."""
    return OsAcc().run(list(sys.argv[1:] if argv is None else argv))
