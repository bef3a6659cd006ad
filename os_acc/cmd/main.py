# SPDX-License-Identifier: Apache-2.0

"""The entry point ``os-acc``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from os_acc.cmd.app import OsAcc


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``os-acc``; return 0, 1 (failure) or 2 (usage error)."""
    return OsAcc().run(list(sys.argv[1:] if argv is None else argv))
