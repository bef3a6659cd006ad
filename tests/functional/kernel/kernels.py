# SPDX-License-Identifier: Apache-2.0

"""The kernels of the lane, each with the QEMU that boots it.

``installed`` is the newest kernel of ``/boot`` with the QEMU of ``PATH``. ``backports``
is the newer pair of :mod:`.backports`, unpacked below ``build``, and ``iommufd`` the
same pair with the modules of :mod:`.iommufd`. A full run boots all; a share boots one,
the next share the next one.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.shares import Share

from . import backports


class Unavailable(Exception):
    """A kernel, or a part that it needs, is not available."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, and the emulator that boots it.

    :ivar name: its name on the command line, and in the mark ``kernel`` of a test.
    :ivar image: the file that QEMU loads, ``vmlinuz-<release>``.
    :ivar root: the folder that contains ``lib/modules/<release>`` and ``usr/src``.
    :ivar emulator: the program that starts QEMU.
    :ivar has_nic: whether that QEMU emulates a network card with VFs (since 8.0).
    :ivar has_iommufd: whether guests get devices through iommufd, not by their groups.
    """

    name: str
    image: Path
    emulator: Path
    root: Path = Path("/")
    has_nic: bool = False
    has_iommufd: bool = False

    @property
    def release(self) -> str:
        """Return the release, as ``uname -r`` prints it."""
        return self.image.name.removeprefix("vmlinuz-")

    @property
    def series(self) -> str:
        """Return the first two numbers of the release."""
        return ".".join(self.release.split(".")[:2])

    @property
    def headers(self) -> Path:
        """Return the folder against which modules are built."""
        return self.root / "lib" / "modules" / self.release / "build"

    @property
    def source(self) -> Path:
        """Return the archive of the kernel's source."""
        return self.root / "usr" / "src" / f"linux-source-{self.series}.tar.xz"


def installed() -> Kernel:
    """Return the newest installed kernel.

    :raises Unavailable: none is installed, or no QEMU.
    """
    image, emulator = _newest(Path("/boot")), shutil.which("qemu-system-x86_64")
    if image is None:
        raise Unavailable("no /boot/vmlinuz-*; install linux-image-amd64")
    if emulator is None:
        raise Unavailable("no qemu-system-x86_64; install qemu-system-x86")
    return Kernel("installed", image, Path(emulator))


def newer() -> Kernel:
    """Return the kernel of the backports; download it, if this has not been done.

    :raises Unavailable: a package could not be downloaded or unpacked.
    """
    try:
        root = backports.unpacked()
    except backports.DownloadFailed as error:
        raise Unavailable(str(error)) from error
    image = _newest(root / "boot")
    if image is None:
        raise Unavailable(f"no vmlinuz-* in {root}/boot")
    return Kernel("backports", image, root / backports.EMULATOR, root, has_nic=True)


def with_iommufd() -> Kernel:
    """Return the kernel of the backports, to boot with the modules of :mod:`.iommufd`.

    :raises Unavailable: a package could not be downloaded or unpacked.
    """
    return dataclasses.replace(newer(), name="iommufd", has_iommufd=True)


#: How each kernel is found, by its name on the command line.
KERNELS: dict[str, Callable[[], Kernel]] = {
    "installed": installed,
    "iommufd": with_iommufd,
    "backports": newer,
}


def of(share: Share) -> Sequence[str]:
    """Return the names of a run's kernels: all of a full run, one of a share."""
    return share.select(list(KERNELS), len(KERNELS))


def runs(test: pytest.Item, name: str) -> bool:
    """Return whether a kernel runs a test: its mark ``kernel`` names no other one.

    :raises pytest.UsageError: the mark names no kernel that exists.
    """
    mark = test.get_closest_marker("kernel")
    if mark is None:
        return True
    if not set(mark.args) <= set(KERNELS):
        raise pytest.UsageError(f"{test.nodeid}: no kernel {mark.args}")
    return name in mark.args


def _newest(folder: Path) -> Path | None:
    def version(image: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", image.name)]

    return max(folder.glob("vmlinuz-*"), key=version, default=None)
