# SPDX-License-Identifier: Apache-2.0

"""The machine of a measurement."""

from __future__ import annotations

import os
import platform
import sqlite3


def facts() -> dict[str, str]:
    """Return the facts that a reader needs to compare figures."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
