# SPDX-License-Identifier: Apache-2.0

"""Boot the virtual machine, measure in it, and save its results.

``python -m benchmarks.kernel [--short] --output rows.json``, as root.
"""

from __future__ import annotations

import argparse
import compileall
import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine, rows
from benchmarks.kernel import devices
from tests.functional.kernel import kernels, lane

RESULTS = lane.CHECKOUT / "build" / "kernel-benchmarks"
_LOG, _ROWS = "benchmarks.log", "rows.json"
_CROWDS = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernel", allow_abbrev=False
    )
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--output", required=True, type=Path)
    options = parser.parse_args(argv)
    lane.end_when_told()
    with lane.exclusively(RESULTS):
        compileall.compile_dir(lane.CHECKOUT / "benchmarks", quiet=2)
        attempt = lane.boot(kernels.installed(), _job(options.short))
        if attempt.status != 0:
            print(lane.console_tail(RESULTS))
            print(f"kernel benchmarks: no result; see {_LOG} in {RESULTS}")
            return attempt.status or lane.NO_RESULT
        (place,) = rows.load(RESULTS / _ROWS)
    facts = {**place.facts, "machine": f"{_emulator()} on {_host()}"}
    rows.save(options.output, [dataclasses.replace(place, facts=facts)])
    return 0


def _job(short: bool) -> lane.Job:
    inside = (sys.executable, "-W", "ignore", "-m", "benchmarks.kernel.inside")
    return lane.Job(
        name="kernel benchmarks",
        results=RESULTS,
        disks=(devices.DISK,),
        devices=devices.qemu_options(RESULTS, 1 if short else _CROWDS),
        script=(
            *inside,
            *(["--short"] if short else []),
            *(str(RESULTS / _LOG), str(RESULTS / _ROWS)),
        ),
        log=_LOG,
        arguments=devices.ARGUMENTS,
    )


def _emulator() -> str:
    ended = subprocess.run(
        ["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True
    )
    return f"QEMU {ended.stdout.split()[3]} (software emulation)"


def _host() -> str:
    facts = machine.facts()
    return f"{facts['processor']}, {facts['cores']} cores"


if __name__ == "__main__":
    sys.exit(main())
