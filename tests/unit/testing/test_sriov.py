# SPDX-License-Identifier: Apache-2.0

"""VFs are created and removed as in drivers/pci/iov.c."""

import dataclasses
import errno
import os

import pytest

from os_acc.testing import FakeKernel, HostSpec, hosts
from tests.unit.testing.conftest import Attributes
from tests.unit.testing.test_binding import refusal

NIC, VF = "0000:3b:00.0", "0000:3b:02.1"
FPGA = "0000:5e:00.0"


def host_with(tmp_path, **changes) -> Attributes:
    card = hosts.nic("0000:3b", 0, name="ens1f0")
    sriov = dataclasses.replace(card.sriov, **changes)
    card = dataclasses.replace(card, sriov=sriov)
    return Attributes(FakeKernel.build(tmp_path, HostSpec((card,))))


def test_each_vf_has_a_group_of_its_own(kernel, sysfs):
    sysfs.set(NIC, "sriov_numvfs", "8")
    vfs = [f"0000:3b:02.{n}" for n in range(8)]
    groups = {kernel.group(address) for address in (NIC, *vfs)}
    assert len(groups) == 9


def test_writing_zero_leaves_no_trace(kernel, sysfs):
    groups = os.listdir(kernel.path("sys/kernel/iommu_groups"))
    before = kernel.snapshot()
    sysfs.set(NIC, "sriov_numvfs", "8")
    sysfs.to_vfio(VF)
    sysfs.set(NIC, "sriov_numvfs", "0")
    assert kernel.snapshot() == before
    assert os.listdir(kernel.path("dev/vfio")) == ["vfio"]
    assert sorted(os.listdir(kernel.path("sys/kernel/iommu_groups"))) == sorted(groups)
    assert not os.path.lexists(sysfs.device(NIC, "virtfn0"))


@pytest.mark.parametrize(
    ("address", "name", "text", "number"),
    [
        *((NIC, "sriov_numvfs", each, errno.ERANGE) for each in ("9", "65535")),
        *(
            (NIC, "sriov_numvfs", each, errno.EINVAL)
            for each in ("65536", "-1", "4 ", "08", "0x")
        ),
        (FPGA, "sriov_numvfs", "1", errno.ENOENT),
        (NIC, "sriov_drivers_autoprobe", "7", errno.EINVAL),
    ],
)
def test_an_attribute_refuses_a_text(sysfs, address, name, text, number):
    assert refusal(sysfs.set, address, name, text) == number


@pytest.mark.parametrize("driver", ["", "vfio-pci"])
def test_a_pf_without_its_driver_makes_none(sysfs, driver):
    if driver:
        sysfs.to_vfio(NIC)
    else:
        sysfs.unbind(NIC)
    assert refusal(sysfs.set, NIC, "sriov_numvfs", "1") == errno.ENOENT


def test_another_number_needs_zero_first(sysfs):
    sysfs.set(NIC, "sriov_numvfs", "4")
    assert refusal(sysfs.set, NIC, "sriov_numvfs", "5") == errno.EBUSY


@pytest.mark.parametrize(("text", "count"), [("0x4", 4), ("010", 8), ("3\n", 3)])
def test_numbers_are_read_as_in_c(kernel, sysfs, text, count):
    sysfs.set(NIC, "sriov_numvfs", text)
    assert kernel.state(NIC).numvfs == count


def test_a_driver_may_lack_sriov(tmp_path):
    sysfs = host_with(tmp_path, configurable=False)
    assert refusal(sysfs.set, NIC, "sriov_numvfs", "1") == errno.ENOENT


def test_success_may_make_fewer(tmp_path):
    sysfs = host_with(tmp_path, limit=3)
    sysfs.set(NIC, "sriov_numvfs", "8")
    assert sysfs.get(NIC, "sriov_numvfs") == "3\n"
    assert not os.path.lexists(sysfs.device(NIC, "virtfn3"))


def test_without_autoprobe_vfs_get_no_driver(kernel, sysfs):
    sysfs.set(NIC, "sriov_drivers_autoprobe", "0")
    sysfs.set(NIC, "sriov_numvfs", "2")
    sysfs.probe(VF)
    assert kernel.state(VF).driver is None
    assert refusal(sysfs.driver, "iavf", "bind", VF) == errno.ENODEV


def test_an_override_is_stronger_than_autoprobe(kernel, sysfs):
    sysfs.set(NIC, "sriov_drivers_autoprobe", "0")
    sysfs.set(NIC, "sriov_numvfs", "2")
    sysfs.to_vfio(VF)
    assert kernel.state(VF).driver == "vfio-pci"


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", False), ("N\n", False), ("off", False), ("1", True), ("on", True)],
)
def test_autoprobe_takes_what_the_kernel_calls_a_boolean(kernel, sysfs, text, value):
    sysfs.set(NIC, "sriov_drivers_autoprobe", text)
    assert kernel.state(NIC).autoprobe is value


@pytest.mark.parametrize("removed", [True, False])
def test_vfs_go_with_most_drivers_of_their_pf(tmp_path, removed):
    sysfs = host_with(tmp_path, removed_with_driver=removed)
    sysfs.set(NIC, "sriov_numvfs", "2")
    sysfs.unbind(NIC)
    assert os.path.lexists(sysfs.device(VF, "")[:-1]) is not removed
