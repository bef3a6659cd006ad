# SPDX-License-Identifier: Apache-2.0

"""Clients inside the kernel: some open a disk exclusively, and leave no other trace."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .nvme_media import wait_until

_CONFIGFS = Path("/sys/kernel/config")


@contextlib.contextmanager
def journal(node: str) -> Iterator[None]:
    """Mount an ext4 file system whose journal is on a disk (mke2fs(8), -J device)."""
    with tempfile.TemporaryDirectory() as directory:
        image = _image(directory, 40)
        _run("mke2fs", "-q", "-F", "-O", "journal_dev", "-b", "4096", node)
        _run(
            "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", f"-Jdevice={node}", image
        )
        with _mounted(directory, image, "loop"):
            yield


@contextlib.contextmanager
def log(node: str) -> Iterator[None]:
    """Mount an XFS file system whose log is on a disk (mkfs.xfs(8), -l logdev)."""
    with tempfile.TemporaryDirectory() as directory:
        image = _image(directory, 400)
        size = f"-llogdev={node},size=16m"
        _run("mkfs.xfs", "-q", "-f", "--unsupported", size, image)
        with _mounted(directory, image, f"loop,logdev={node}"):
            yield


@contextlib.contextmanager
def target(node: str) -> Iterator[None]:
    """Make a disk the backend of an LIO target (target_core_iblock.c)."""
    with _target(node, "iblock", f"udev_path={node}"):
        yield


@contextlib.contextmanager
def _target(node: str, kind: str, parameter: str) -> Iterator[None]:
    _run("modprobe", "--all", "target_core_mod", f"target_core_{kind}")
    _mount_configfs()
    # The driver of files calls itself fileio.
    adapter = _CONFIGFS / f"target/core/{kind.replace('file', 'fileio')}_0"
    backend = adapter / "disk"
    backend.mkdir(parents=True)
    (backend / "control").write_text(parameter)
    (backend / "enable").write_text("1")
    try:
        yield
    finally:
        backend.rmdir()
        adapter.rmdir()


@contextlib.contextmanager
def target_on_partition(node: str) -> Iterator[None]:
    """Make a partition of a disk the backend of an LIO target."""
    # One entry of a DOS partition table: 16 MiB from 1 MiB on.
    entry = struct.pack("<B3xB3xII", 0, 0x83, 2048, 32768)
    reread = ("blockdev", "--rereadpt", node)
    for table in ((entry.ljust(64, b"\0") + b"\x55\xaa"), bytes(66)):
        fd = os.open(node, os.O_WRONLY | os.O_SYNC)
        os.pwrite(fd, bytes(446) + table, 0)
        os.close(fd)
        # The kernel may still read the table that was there before: EBUSY.
        wait_until(lambda: subprocess.run(reread, check=False).returncode == 0)
        if table.endswith(b"\xaa"):
            wait_until(lambda: os.path.exists(f"{node}p1"))
            with target(f"{node}p1"):
                yield


@contextlib.contextmanager
def loop_device(node: str) -> Iterator[None]:
    """Make a loop device of a disk, which it does not claim."""
    _run("modprobe", "loop")
    made = subprocess.check_output(("losetup", "-f", "--show", node), text=True)
    try:
        yield
    finally:
        _run("losetup", "-d", made.strip())


@contextlib.contextmanager
def nvme_target(node: str) -> Iterator[None]:
    """Export a disk as an NVMe namespace (nvmet), which does not claim it."""
    _run("modprobe", "nvmet")
    _mount_configfs()
    subsystem = _CONFIGFS / "nvmet/subsystems/nqn.2014-08.org.example:disk"
    namespace = subsystem / "namespaces/1"
    subsystem.mkdir()
    namespace.mkdir()
    (namespace / "device_path").write_text(node)
    (namespace / "enable").write_text("1")
    try:
        yield
    finally:
        (namespace / "enable").write_text("0")
        namespace.rmdir()
        subsystem.rmdir()


@contextlib.contextmanager
def file_target(node: str) -> Iterator[None]:
    """Make a disk the file of an LIO target (target_core_file.c): no claim."""
    with _target(node, "file", f"fd_dev_name={node}"):
        yield


def _image(directory: str, mebibytes: int) -> str:
    path = os.path.join(directory, "image")
    with open(path, "wb") as file:
        file.truncate(mebibytes << 20)
    return path


@contextlib.contextmanager
def _mounted(directory: str, image: str, options: str) -> Iterator[None]:
    _run("modprobe", "loop")
    place = os.path.join(directory, "mounted")
    os.mkdir(place)
    _run("mount", "-o", options, image, place)
    try:
        Path(place, "file").write_text("data of the host")
        yield
        # It still works.
        Path(place, "file").write_text("more of it")
        os.sync()
    finally:
        _run("umount", place)


def _mount_configfs() -> None:
    if not os.path.ismount(_CONFIGFS):
        _run("mount", "-t", "configfs", "configfs", str(_CONFIGFS))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
