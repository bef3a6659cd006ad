# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

from os_acc.host.pci import read_parents
from os_acc.objects.pci import PciAddress
from os_acc.testing import FakeKernel, hosts
from tests.unit.host.tree import Sysfs, address

PORT, SWITCH, GPU = "0000:16:00.0", "0000:17:00.0", "0000:19:00.0"


def parents(sysfs: Sysfs, *names: str) -> dict[str, str]:
    found = read_parents(sysfs.root, map(PciAddress.parse, names))
    return {str(one): str(other) for one, other in found.items()}


def placed(sysfs: Sysfs, *path: str) -> None:
    """Add a function at a place in the tree of devices."""
    directory = sysfs.path.joinpath("sys/devices", *path)
    directory.mkdir(parents=True, exist_ok=True)
    sysfs.link(sysfs.devices / path[-1], directory)


def test_what_is_right_above_is_found_and_a_root_bus_is_nothing(sysfs: Sysfs) -> None:
    placed(sysfs, "pci0000:16", PORT)
    placed(sysfs, "pci0000:16", PORT, SWITCH)
    placed(sysfs, "pci0000:16", PORT, SWITCH, GPU)
    assert parents(sysfs, PORT, SWITCH, GPU) == {SWITCH: PORT, GPU: SWITCH}


def test_a_host_bridge_may_be_a_platform_device(sysfs: Sysfs) -> None:
    placed(sysfs, "platform", "40000000.pcie", "pci0000:16", PORT, GPU)
    placed(sysfs, "platform", "40000000.pcie", "pci0000:16", PORT)
    assert parents(sysfs, PORT, GPU) == {GPU: PORT}


def test_an_endpoint_with_a_bus_of_its_own_is_above_what_is_on_that(
    tmp_path: Path,
) -> None:
    kernel = FakeKernel.build(tmp_path, hosts.vmd_host())
    vmd, port, disk = map(address, ("0000:00:0e.0", "10000:00:02.0", "10000:01:00.0"))
    found = read_parents(kernel.root, (vmd, port, disk))
    assert dict(found) == {port: vmd, disk: port}


def test_what_has_vanished_is_below_nothing(sysfs: Sysfs) -> None:
    assert parents(sysfs, GPU) == {}
