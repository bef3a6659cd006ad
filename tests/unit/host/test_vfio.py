# SPDX-License-Identifier: Apache-2.0

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc.exception import StepReason
from os_acc.host.pci import scan
from os_acc.host.vfio import (
    denylisted,
    iommu_on,
    leaves_group_viable,
    read_iommu_group,
    require_drivers,
)
from os_acc.objects.drivers import is_vfio_driver
from tests.expected_errors import raises
from tests.unit.host.tree import Sysfs, address


def test_vfio_is_ready_once_its_driver_is_there(sysfs):
    with raises(StepReason.VFIO, match="modprobe"):
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
def test_variants_of_vfio_are_known_by_their_name(driver, expected):
    assert is_vfio_driver(driver) is expected


@pytest.mark.parametrize(
    ("driver", "viable"),
    [(None, True), ("vfio-pci", True), ("pcieport", True), ("nvme", False)],
)
def test_a_sibling_on_a_host_driver_keeps_the_group_from_a_guest(driver, viable):
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
    sysfs, vendor, product, parameter, expected
):
    sysfs.function(ids=(vendor, product, 0, 0))
    if parameter is not None:
        sysfs.put("sys/module/vfio_pci/parameters/disable_denylist", parameter)
    function = scan(sysfs.root).function(address())
    assert denylisted(sysfs.root, function) is expected


GPU, AUDIO = "0000:3b:00.0", "0000:3b:00.1"
REGIONS = (
    "0x00000000000a0000 0x00000000000bffff direct-relaxable\n"
    "0x000000007b800000 0x000000007f7fffff direct\n"
    "0x00000000fee00000 0x00000000feefffff msi\n"
    "0xfffffffffffff000 0xffffffffffffffff reserved"
)


def test_a_group_knows_all_its_members(sysfs):
    sysfs.function(AUDIO, group=12)
    sysfs.function(GPU, group=12)
    host = scan(sysfs.root)
    group = host.group_of(host.function(address(AUDIO)))
    assert group.number == 12
    assert group.members == (address(GPU), address(AUDIO))
    assert not group.unsafe


def test_a_group_knows_its_reserved_regions(sysfs):
    sysfs.function(GPU, group=12)
    sysfs.put("sys/kernel/iommu_groups/12/reserved_regions", REGIONS)
    group = read_iommu_group(sysfs.root, 12)
    assert group is not None
    kinds = [kind for _start, _end, kind in group.reserved]
    assert kinds == ["direct-relaxable", "direct", "msi", "reserved"]
    assert group.reserved[3] == (0xFFFFFFFFFFFFF000, 0xFFFFFFFFFFFFFFFF, "reserved")


def test_a_group_without_an_iommu_is_unsafe(sysfs):
    sysfs.function(GPU, group=0)
    sysfs.put("sys/kernel/iommu_groups/0/name", "vfio-noiommu")
    host = scan(sysfs.root)
    assert host.group_of(host.function(address(GPU))).unsafe


def test_members_on_other_buses_are_not_listed(sysfs):
    sysfs.function(GPU, group=1)
    sysfs.put("sys/kernel/iommu_groups/1/devices/ARMH0011:00/uevent", "")
    group = read_iommu_group(sysfs.root, 1)
    assert group is not None
    assert group.members == (address(GPU),)


def test_one_group_shows_that_the_iommu_is_on(sysfs):
    assert read_iommu_group(sysfs.root, 1) is None
    assert not iommu_on(sysfs.root)
    sysfs.function(GPU, group=1)
    assert iommu_on(sysfs.root)


def test_a_broken_group_is_set_aside_and_named(sysfs):
    sysfs.function(GPU, group=1)
    sysfs.function("0000:5e:00.0", group=2)
    sysfs.put("sys/kernel/iommu_groups/1/reserved_regions", "dragons")
    host = scan(sysfs.root)
    assert list(host.groups) == [2]
    assert list(host.unreadable) == ["iommu group 1"]
    with raises(StepReason.IOMMU, match="dragons"):
        host.group_of(host.function(address(GPU)))


@given(st.text(st.sampled_from("0x1f \n\x1cdirect"), max_size=60))
def test_the_regions_are_read_whole_or_not_at_all(tmp_path_factory, text):
    sysfs = Sysfs(tmp_path_factory.mktemp("garbage"))
    sysfs.function(GPU, group=1)
    sysfs.put("sys/kernel/iommu_groups/1/reserved_regions", text)
    host = scan(sysfs.root)
    if not host.unreadable:
        lines = [line for line in text.strip().split("\n") if line]
        assert len(host.groups[1].reserved) == len(lines)
    assert set(host.unreadable) <= {"iommu group 1"}


@pytest.mark.parametrize("line", ["0x0 0xf", "0x0 0xf msi yes", "0x0 top msi"])
def test_a_malformed_region_is_a_typed_error(sysfs, line):
    sysfs.function(GPU, group=1)
    sysfs.put("sys/kernel/iommu_groups/1/reserved_regions", line)
    with raises(StepReason.REFUSED, match="reserved_regions"):
        read_iommu_group(sysfs.root, 1)
