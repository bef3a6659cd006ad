# SPDX-License-Identifier: Apache-2.0

"""A card whose VFs are vGPUs of NVIDIA's driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.nvidia import CURRENT

BUS = "0000:41"
PF = f"{BUS}:00.0"
VFS = tuple(f"{BUS}:00.{number}" for number in (4, 5, 6, 7))
HALF, WHOLE = 1154, 1155


def tagged(*vfs: str, kind: int = HALF) -> list[str]:
    return [f'{{"address": "{each}", "vgpu_type": "{kind}"}}' for each in vfs]


def type_of(host: TestHost, vf: str) -> int:
    path = Path(host.root, "sys/bus/pci/devices", vf, CURRENT)
    return int(path.read_text())


def set_type(host: TestHost, vf: str, kind: int) -> None:
    """Set a type as another tool does."""
    path = Path(host.root, "sys/bus/pci/devices", vf, CURRENT)
    host.kernel.write(str(path), f"{kind}\n")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    """Return a host with the card, whose VFs are all tagged with a type."""
    spec = HostSpec((hosts.vgpu_card(BUS),))
    with TestHost(tmp_path, spec, device_spec=tagged(*VFS)) as host:
        yield host
