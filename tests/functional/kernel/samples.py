# SPDX-License-Identifier: Apache-2.0

"""Load the kernel's sample parents of mediated devices, which the lane has built."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from .kernel_modules import SAMPLES, module


def load(name: str, loaded: bool) -> None:
    """Load or unload a sample.

    :raises subprocess.CalledProcessError: the kernel refuses it.
    """
    built = str(module(name, os.uname().release))
    subprocess.run(["insmod", built] if loaded else ["rmmod", name], check=True)


@contextlib.contextmanager
def loaded() -> Iterator[None]:
    """Have all samples."""
    # vfio is loaded; the samples need the bus of mediated devices.
    subprocess.run(["modprobe", "--all", "mdev", "vfio_iommu_type1"], check=True)
    for name in SAMPLES:
        load(name, True)
    yield
    for name in SAMPLES:
        load(name, False)
