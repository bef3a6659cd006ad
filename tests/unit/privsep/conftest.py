# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from os_acc.privsep import kernel
from os_acc.testing import FakeKernel, HostSpec, hosts
from os_acc.testing.helper import privileged_here
from tests.unit.fpga_host import FpgaHost
from tests.unit.privsep.nvme_drives import DATA, OTHER_VF, PF, VF


class Untouchable(kernel.Kernel):
    """A kernel that fails the test on every access."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"a call of {name}() reached the kernel")


@pytest.fixture(scope="module")
def untouchable() -> Iterator[None]:
    """Run privileged code in this process, with a kernel that rejects every access."""
    before, kernel.current = kernel.current, Untouchable()
    with privileged_here():
        yield
    kernel.current = before


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FpgaHost]:
    """Return a host with cards that privileged code in this process can program."""
    with FpgaHost(tmp_path) as host:
        yield host


@pytest.fixture
def with_vfs(tmp_path: Path) -> Iterator[FakeKernel]:
    """Yield a host whose VFs 0 and 1 have the namespaces 2 and 3."""
    drive = hosts.nvme_sriov("0000:41", 0, private=((2,), (3,)))
    kernel = FakeKernel.build(tmp_path, HostSpec((drive,)))
    with kernel.installed():
        pf = kernel.path("sys/bus/pci/devices", str(PF))
        kernel.write(f"{pf}/sriov_drivers_autoprobe", "0")
        kernel.write(f"{pf}/sriov_numvfs", "4")
        for address, number in ((PF, 1), (VF, 2), (OTHER_VF, 3)):
            kernel.write_medium(address, number, DATA)
        yield kernel
