# SPDX-License-Identifier: Apache-2.0

"""Compare the privileges of a helper process with those in the manual."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path

from oslo_privsep import capabilities

from os_acc import privsep
from os_acc.helper import client
from tests.behaviour.processes import helpers
from tests.behaviour.real_host import RealHost

from . import lane

_MANUAL = lane.CHECKOUT / "doc/source/admin/privileges.rst"
_LAST = Path("/proc/sys/kernel/cap_last_cap")
CONTEXTS = ("base", "inspect", "image")
_PATIENCE = 60.0


def documented() -> dict[str, dict[str, str]]:
    """Return the facts of the manual's table for each context, by their names."""
    table = _MANUAL.read_text().partition(".. list-table::")[2]
    rows: list[list[str]] = []
    for line in table.splitlines():
        if match := re.fullmatch(r"   (\* -|  -) (.+)", line):
            if match[1] == "* -":
                rows.append([])
            rows[-1].append(match[2].strip("`"))
        elif line and not line.startswith(" "):
            break
    (_name, *contexts), *facts = rows
    return {
        context: {name: cells[index] for name, *cells in facts}
        for index, context in enumerate(contexts)
    }


def facts(host: RealHost, pid: int) -> dict[str, str]:
    """Return the same facts of a process."""
    status, directory, files = host.root_side.look_at(pid)
    return {
        **{name: _words({*status[name].split()}) for name in ("Uid", "Gid")},
        **{
            name: _capabilities(int(status[name], 16))
            for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd")
        },
        **{name: status[name] for name in ("NoNewPrivs", "Umask")},
        "Working directory": directory,
        "Open files": _words({re.sub(r":\[\d+\]$", "", file) for file in files}),
    }


def the_helper(host: RealHost, context: str) -> int:
    """Return the process that serves a context and has no worker now."""
    (pid,) = helpers(host.options, context)
    return pid


def are_as_documented(host: RealHost) -> None:
    """Compare all helpers of a host with the manual.

    The helper that programs FPGAs is started as by a plug that needs it.
    """
    client.Helper(_PATIENCE).start(time.monotonic() + _PATIENCE, [privsep.image])
    table = documented()
    assert set(table) == set(CONTEXTS)
    for context in CONTEXTS:
        assert facts(host, the_helper(host, context)) == table[context]


def _capabilities(mask: int) -> str:
    every = (1 << int(_LAST.read_text()) + 1) - 1
    if mask == every:
        return "all"
    names = (name for bit, name in capabilities.CAPS_BYVALUE.items() if mask >> bit & 1)
    return _words(names) or "none"


def _words(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))
