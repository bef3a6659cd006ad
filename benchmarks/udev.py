# SPDX-License-Identifier: Apache-2.0

"""Measure discovery against pyudev, which calls libudev.

libudev reads only ``/sys``. Therefore both run in a mount namespace of their own,
with the tree of a fake host as ``/sys`` and with the records that systemd-udevd
would have written about each of its functions.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from benchmarks import discovery, host, machine, measure, rows, udev_facts
from benchmarks.plan import Benchmark, Incomplete, Plan, scratch
from benchmarks.rows import Aim, Row
from os_acc.testing import FakeKernel

NAME = "pyudev"
FACTS, NAMES = "scan, against all facts", "scan, against names alone"
_SIZES = (16, 64, 256, 1024, 4096)
_AIM_AT = 1024
#: Ten times as fast.
_AIM = Aim(0.1)
_RECORDS = "run/udev/data"
# A record of systemd-udevd about a PCI function, as on any host.
_RECORD = """\
I:1874532
E:ID_PCI_CLASS_FROM_DATABASE=Processing accelerators
E:ID_PCI_SUBCLASS_FROM_DATABASE=Processing accelerators
E:ID_VENDOR_FROM_DATABASE=Xilinx Corporation
V:1
"""


def measured(plan: Plan) -> Iterator[Row]:
    """Yield rows for hosts of each size, each in a child of its own."""
    for size in plan.sizes(*_SIZES):
        with scratch() as directory:
            root = os.path.join(directory, "host")
            FakeKernel.build(root, host.of(size))
            _as_udev_wants_it(root)
            output = os.path.join(directory, "rows.json")
            _in_namespace(root, size, plan.times(11), output)
            (place,) = rows.load(output)
            yield from place.rows


def _as_udev_wants_it(root: str) -> None:
    """Add the files that only udev needs: ``uevent``, and udevd's records."""
    os.makedirs(os.path.join(root, _RECORDS))
    devices = os.path.join(root, "sys/bus/pci/devices")
    for address in os.listdir(devices):
        _write(os.path.join(root, _RECORDS, f"+pci:{address}"), _RECORD)
        path = os.path.join(devices, address)
        _write(os.path.join(path, "uevent"), _uevent(path, address))


def _uevent(path: str, address: str) -> str:
    """See pci_uevent() in drivers/pci/pci-driver.c, dev_uevent() in drivers/base."""

    def number(name: str) -> int:
        with open(os.path.join(path, name), encoding="ascii") as file:
            return int(file.read(), 16)

    lines = [
        f"PCI_CLASS={number('class'):04X}",
        f"PCI_ID={number('vendor'):04X}:{number('device'):04X}",
        f"PCI_SUBSYS_ID={number('subsystem_vendor'):04X}"
        f":{number('subsystem_device'):04X}",
        f"PCI_SLOT_NAME={address}",
    ]
    driver = os.path.join(path, "driver")
    if os.path.islink(driver):
        lines.insert(0, f"DRIVER={os.path.basename(os.readlink(driver))}")
    with open(os.path.join(path, "modalias"), encoding="ascii") as file:
        lines.append(f"MODALIAS={file.read().strip()}")
    return "".join(f"{line}\n" for line in lines)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _in_namespace(root: str, size: int, repetitions: int, output: str) -> None:
    # An ordinary user gets a mount namespace together with a user namespace.
    private = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    ended = subprocess.run(
        [
            *private,
            *(sys.executable, "-m", __name__, root, str(size)),
            *(str(repetitions), output),
        ],
        # libudev rejects a /sys that is not sysfs.
        env=os.environ | {"SYSTEMD_DEVICE_VERIFY_SYSFS": "0"},
        check=False,
    )
    if ended.returncode:
        raise Incomplete(f"{NAME}: the child ended with {ended.returncode}")


def _child(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("size", type=int)
    parser.add_argument("repetitions", type=int)
    parser.add_argument("output")
    options = parser.parse_args(argv)
    for name in ("sys", "run/udev"):
        target = os.path.join("/", name)
        if name == "run/udev":
            _make_place(target)
        source = os.path.join(options.root, name)
        subprocess.run(["mount", "--bind", source, target], check=True)
    found = tuple(
        _row(options.root, options.size, options.repetitions, case)
        for case in (FACTS, NAMES)
    )
    rows.save(options.output, [rows.Place("host", machine.facts(), found)])


def _make_place(target: str) -> None:
    if os.path.isdir(target):
        return
    # A host without udevd has no record directory: this child covers /run.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    os.makedirs(target)


def _row(root: str, size: int, repetitions: int, case: str) -> Row:
    subject = discovery.scanning(root, size)
    floor = udev_facts.facts_work if case == FACTS else udev_facts.names_work
    pairs = measure.paired(subject, floor(subject.run()), repetitions)
    return measure.row(
        pairs,
        benchmark=NAME,
        case=case,
        size=size,
        things="functions",
        floor_is="pyudev, the same facts" if case == FACTS else "pyudev, names alone",
        aim=_AIM if case == FACTS and size == _AIM_AT else None,
    )


def _cases(plan: Plan) -> set[tuple[str, int]]:
    return {(case, size) for case in (FACTS, NAMES) for size in plan.sizes(*_SIZES)}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(measured(plan)), _cases)

if __name__ == "__main__":
    _child(sys.argv[1:])
