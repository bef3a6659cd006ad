# SPDX-License-Identifier: Apache-2.0

"""The media of the machine's NVMe drives, as its hypervisor has them, and nodes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from . import lane, sysfs
from .writing_guest import DATA

SECONDS = 60.0


def disk(image: str) -> Path:
    return lane.RESULTS / f"{image}.img"


def holds_data(image: str) -> bool:
    return DATA in disk(image).read_bytes()


def digest(image: str) -> str:
    """Return a digest of all bytes of a namespace."""
    return hashlib.sha256(disk(image).read_bytes()).hexdigest()


def write_data(node: str) -> None:
    """Fill the ends and the middle of a disk with a guest's data."""
    block = DATA * 4096
    fd = os.open(node, os.O_WRONLY | os.O_SYNC)
    try:
        size = os.lseek(fd, 0, os.SEEK_END)
        for at in (0, size // 2, size - len(block)):
            os.pwrite(fd, block, at)
    finally:
        os.close(fd)


def fill(vf: str, nsid: int) -> None:
    """Fill the disk of a VF without a driver with a guest's data."""
    sysfs.rebind(vf, "nvme")
    write_data(node_of(vf, nsid))
    sysfs.unbind(vf)
    sysfs.write(vf, "driver_override", "\n")


def node_of(function: str, nsid: int) -> str:
    """Return the node of a namespace, once the driver has found it."""
    found: list[str] = []

    def is_there() -> bool:
        for path in (sysfs.DEVICES / function).glob("nvme/nvme*/nvme*n*"):
            with contextlib.suppress(FileNotFoundError):
                if int((path / "nsid").read_text()) == nsid:
                    head = path.name.split("c")[0] + "n" + path.name.split("n")[-1]
                    name = path.name if "c" not in path.name else head
                    if os.path.exists(f"/dev/{name}"):
                        found.append(f"/dev/{name}")
        return bool(found)

    wait_until(is_there)
    return found[0]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for the kernel.

    :raises AssertionError: the condition has not become true.
    """
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
