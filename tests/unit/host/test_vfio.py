# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from os_acc.exception import HostStepFailed, StepReason
from os_acc.host.pci import scan
from os_acc.host.vfio import (
    denylisted,
    leaves_group_viable,
    require_drivers,
)
from os_acc.objects.vfio_driver import is_vfio_driver
from tests.expected_errors import has
from tests.unit.host.tree import Sysfs, address


def test_vfio_is_ready_once_its_driver_is_there(sysfs: Sysfs) -> None:
    with pytest.raises(
        HostStepFailed, check=has(reason=StepReason.VFIO), match="modprobe"
    ):
        require_drivers(sysfs.root, ("vfio-pci",))
    (sysfs.path / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
    require_drivers(sysfs.root, ("vfio-pci",))


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("vfio-pci", True),
        ("mlx5_vfio_pci", True),
        ("nvgrace-gpu-vfio-pci", True),
        ("nvme", False),
        ("vfioish", False),
        (None, False),
    ],
)
def test_variants_of_vfio_are_known_by_their_name(
    driver: str | None, expected: bool
) -> None:
    assert is_vfio_driver(driver) is expected


@pytest.mark.parametrize(
    ("driver", "viable"),
    [(None, True), ("vfio-pci", True), ("pcieport", True), ("nvme", False)],
)
def test_a_sibling_on_a_host_driver_keeps_the_group_from_a_guest(
    driver: str | None, viable: bool
) -> None:
    assert leaves_group_viable(driver) is viable


@pytest.mark.parametrize(
    ("vendor", "product", "parameter", "expected"),
    [
        (0x8086, 0x37C8, "N", True),
        (0x8086, 0x37C9, None, True),
        (0x8086, 0x0CFE, "N", True),
        (0x8086, 0x37C8, "Y", False),
        (0x8086, 0x4940, "N", False),
        (0x1AF4, 0x37C8, "N", False),
    ],
)
def test_the_denylist_holds_unless_it_is_switched_off(
    sysfs: Sysfs, vendor: int, product: int, parameter: str | None, expected: bool
) -> None:
    sysfs.function(ids=(vendor, product, 0, 0))
    if parameter is not None:
        sysfs.put("sys/module/vfio_pci/parameters/disable_denylist", parameter)
    function = scan(sysfs.root).function(address())
    assert denylisted(sysfs.root, function) is expected
