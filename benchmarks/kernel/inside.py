# SPDX-License-Identifier: Apache-2.0

"""Prepare the virtual machine and measure in it, as root."""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import cycles, machine, phases, rows
from benchmarks.kernel import devices, plugging, sysfs_discovery
from benchmarks.kernel.library import Library
from benchmarks.kernel.writes import Recorder
from tests.functional.kernel import inside, lane, sysfs

_MODULES = ("virtio_blk", "ext4")
_MOUNT = Path("/var/tmp/disk")
_SIZES = (64, 256, 1024)
_SETTLED_SECONDS = 60.0
_PHASES = "real-plug-phases"


def _mounted_disk() -> Path:
    """Mount a file system on a disk of its own, where a sync has an effect."""
    subprocess.run(["modprobe", "--all", *_MODULES], check=True)
    (disk,) = (
        block.name
        for block in Path("/sys/block").iterdir()
        if (block / "serial").exists()
        and (block / "serial").read_text().strip() == devices.SERIAL
    )
    _MOUNT.mkdir()
    subprocess.run(["mkfs.ext4", "-q", f"/dev/{disk}"], check=True)
    subprocess.run(["mount", f"/dev/{disk}", _MOUNT], check=True)
    return _MOUNT


def _pfs() -> tuple[str, list[str]]:
    """Return the card with four VFs, and those with many; each with its driver."""
    found = sorted(
        each.name
        for each in sysfs.DEVICES.iterdir()
        if (each / "sriov_totalvfs").exists()
    )
    deadline = time.monotonic() + _SETTLED_SECONDS
    while not all(sysfs.driver(each) for each in found):
        assert time.monotonic() < deadline, "nvme does not take its controllers"
        time.sleep(0.1)
    few = [each for each in found if sysfs.read(each, "sriov_totalvfs") == "4"]
    (small,) = few
    return small, [each for each in found if each != small]


def _numvfs(pf: str, repetitions: int) -> list[float]:
    """Return the seconds of each creation of four VFs."""
    sysfs.write(pf, "sriov_drivers_autoprobe", "0")
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        sysfs.write(pf, "sriov_numvfs", "4")
        seconds.append(time.perf_counter() - start)
        assert len(sysfs.virtual_functions(pf)) == 4
        sysfs.write(pf, "sriov_numvfs", "0")
    return seconds


def _measured(short: bool) -> Iterator[rows.Row]:
    small, crowds = _pfs()
    made = _numvfs(small, 3)
    state = _mounted_disk()
    _say("measuring plug and unplug")
    library = Library(small, state / "os_acc")
    library.start(helper=False)
    recorder = Recorder(Path("/var/tmp/writes"))
    scripts = {size: plugging.record(library, recorder, size) for size in cycles.SIZES}
    library.start(helper=True)
    bench = plugging.Bench(library, scripts)
    yield from plugging.TABLE.rows(bench, 3 if short else 15)
    yield from plugging.write_rows(bench.writes | {"sriov_numvfs": made})
    yield from phases.rows(_PHASES, library, 3 if short else 9)
    _say("measuring discovery")
    yield from sysfs_discovery.rows(crowds, _SIZES[:1] if short else _SIZES)


def _say(text: str) -> None:
    print(f"{time.monotonic():6.0f} s: {text}", flush=True)


def _measure(short: bool, output: Path) -> int:
    inside.prepare(output.parent, lane.FILES_TAG)
    found = []
    for row in _measured(short):
        _say(f"{row.benchmark}, {row.case}, {row.size} {row.things}: {row.median:.4f}")
        found.append(row)
    rows.save(output, [rows.Place("virtual machine", machine.facts(), tuple(found))])
    return 0


def main() -> None:
    """Measure between the markers of beginning and end that the lane expects."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    parser.add_argument("log", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    log = os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # The helper's own imports warn of code outside this project.
    os.environ["PYTHONWARNINGS"] = "ignore"
    inside.report(
        options.output.parent, lambda: _measure(options.short, options.output)
    )


if __name__ == "__main__":
    main()
