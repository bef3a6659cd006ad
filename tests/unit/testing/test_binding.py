# SPDX-License-Identifier: Apache-2.0

"""Drivers bind and unbind functions as in drivers/base and vfio-pci."""

import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc.testing import FakeKernel, hosts
from tests.unit.testing.conftest import Attributes

FPGA = "0000:5e:00.0"
GPU, AUDIO = "0000:17:00.0", "0000:17:00.1"
NIC = "0000:3b:00.0"
NOWHERE = "0000:42:00.0"


def refusal(write, *args) -> int:
    try:
        write(*args)
    except OSError as error:
        return error.errno
    pytest.fail("the write was not refused")


@pytest.mark.parametrize(
    ("address", "name", "text", "number"),
    [
        (FPGA, "driver_override", "x" * 4095, errno.EINVAL),
        (FPGA, "driver/unbind", FPGA, errno.ENOENT),
        (FPGA, "reset", "0", errno.EINVAL),
        (FPGA, "reset", "yes", errno.EINVAL),
        (AUDIO, "reset", "1", errno.ENOENT),
        (GPU, "vendor", "1", errno.EACCES),
        (GPU, "boot_vga", "1", errno.EACCES),
    ],
)
def test_an_attribute_refuses_a_text(sysfs, address, name, text, number):
    assert refusal(sysfs.set, address, name, text) == number


@pytest.mark.parametrize(
    ("driver", "name", "text", "number"),
    [
        *(
            ("ice", "unbind", each, errno.ENODEV)
            for each in (GPU, NOWHERE, "../../../etc")
        ),
        ("vfio-pci", "bind", FPGA, errno.ENODEV),
        ("vfio-pci", "bind", NOWHERE, errno.ENODEV),
        ("nouveau", "bind", GPU, errno.EBUSY),
    ],
)
def test_a_driver_refuses_a_function(sysfs, driver, name, text, number):
    with pytest.raises(OSError, match="Errno") as caught:
        sysfs.driver(driver, name, text)
    assert caught.value.errno == number
    assert caught.value.filename.endswith(f"{driver}/{name}")


def test_the_oldest_writes_can_be_left_out(kernel, sysfs):
    sysfs.to_vfio(FPGA)
    count = len(kernel.writes())
    sysfs.unbind(FPGA)
    assert kernel.writes(count) == kernel.writes()[count:]
    assert [write.text for write in kernel.writes(count)] == [FPGA]


def test_a_write_of_no_bytes_never_reaches_the_driver_core(sysfs):
    sysfs.set(FPGA, "driver_override", "vfio-pci")
    sysfs.set(FPGA, "driver_override", "")
    assert sysfs.get(FPGA, "driver_override") == "vfio-pci\n"


def test_an_override_keeps_other_drivers_out(sysfs):
    sysfs.set(GPU, "driver_override", "vfio-pci")
    sysfs.unbind(GPU)
    assert refusal(sysfs.driver, "nouveau", "bind", GPU) == errno.ENODEV


def test_a_probe_succeeds_though_nobody_takes_the_function(kernel, sysfs):
    sysfs.set(FPGA, "driver_override", "none")
    sysfs.probe(FPGA)
    assert kernel.state(FPGA).driver is None


def test_a_probe_leaves_a_bound_function_alone(kernel, sysfs):
    sysfs.set(GPU, "driver_override", "vfio-pci")
    sysfs.probe(GPU)
    assert kernel.state(GPU).driver == "nouveau"


def test_what_a_driver_made_goes_and_comes_with_it(kernel, sysfs):
    interface = kernel.path("sys/class/net/ens1f0")
    assert kernel.read(os.path.join(interface, "operstate")) == "down\n"
    sysfs.unbind(NIC)
    assert not os.path.lexists(interface)
    sysfs.probe(NIC)
    assert os.path.realpath(os.path.join(interface, "device")) == os.path.realpath(
        sysfs.device(NIC, "")
    )


def test_a_group_has_a_node_while_vfio_has_a_member(kernel, sysfs):
    node = kernel.path("dev/vfio", str(kernel.group(GPU)))
    sysfs.to_vfio(GPU)
    sysfs.to_vfio(AUDIO)
    sysfs.unbind(GPU)
    assert os.path.exists(node)
    sysfs.unbind(AUDIO)
    assert not os.path.exists(node)


def test_vfio_refuses_what_is_on_its_denylist(tmp_path):
    kernel = FakeKernel.build(tmp_path, hosts.denylist_host())
    sysfs, qat = Attributes(kernel), "0000:3d:00.0"
    sysfs.to_vfio(qat)
    assert kernel.state(qat).driver is None
    assert refusal(sysfs.driver, "vfio-pci", "bind", qat) == errno.EINVAL


def test_vfio_refuses_a_function_without_a_group(tmp_path):
    kernel = FakeKernel.build(tmp_path, hosts.without_iommu())
    sysfs = Attributes(kernel)
    sysfs.set(FPGA, "driver_override", "vfio-pci")
    assert refusal(sysfs.driver, "vfio-pci", "bind", FPGA) == errno.EINVAL


def test_vfio_refuses_a_bridge(sysfs):
    port = "0000:16:00.0"
    sysfs.set(port, "driver_override", "vfio-pci")
    sysfs.unbind(port)
    assert refusal(sysfs.driver, "vfio-pci", "bind", port) == errno.EINVAL


def test_vfio_refuses_a_pf_with_vfs(kernel, tmp_path_factory):
    host = hosts.HostSpec((hosts.nvme_sriov("0000:81", 3),))
    kernel = FakeKernel.build(tmp_path_factory.mktemp("nvme"), host)
    sysfs, disk = Attributes(kernel), "0000:81:00.0"
    sysfs.set(disk, "sriov_numvfs", "2")
    sysfs.set(disk, "driver_override", "vfio-pci")
    sysfs.unbind(disk)
    assert refusal(sysfs.driver, "vfio-pci", "bind", disk) == errno.EBUSY


def test_a_host_driver_stays_out_of_a_group_that_a_guest_owns(kernel, sysfs):
    sysfs.to_vfio(GPU)
    assert refusal(kernel.hold, GPU) == errno.EPERM
    sysfs.unbind(AUDIO)
    kernel.hold(GPU)
    assert refusal(sysfs.driver, "snd_hda_intel", "bind", AUDIO) == errno.EBUSY
    assert refusal(sysfs.probe, AUDIO) == errno.EINVAL
    kernel.let_go(GPU)
    sysfs.probe(AUDIO)
    assert kernel.state(AUDIO).driver == "snd_hda_intel"


def test_reset_methods_are_chosen_among_the_supported_ones(sysfs):
    sysfs.set(FPGA, "reset_method", "bus")
    assert sysfs.get(FPGA, "reset_method") == "bus\n"
    assert refusal(sysfs.set, FPGA, "reset_method", "pm") == errno.EINVAL
    sysfs.set(FPGA, "reset_method", "default")
    assert sysfs.get(FPGA, "reset_method") == "flr bus\n"


def test_without_any_method_a_reset_is_refused(sysfs):
    sysfs.set(FPGA, "reset_method", "\n")
    assert sysfs.get(FPGA, "reset_method") == ""
    assert refusal(sysfs.set, FPGA, "reset", "1") == errno.ENOTTY


def test_a_link_is_not_followed(kernel, sysfs):
    os.symlink("driver_override", sysfs.device(FPGA, "other"))
    assert refusal(sysfs.set, FPGA, "other", "x") == errno.ELOOP


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    path = tmp_path_factory.mktemp("lasting")
    return FakeKernel.build(path, hosts.two_socket_host())


@settings(max_examples=40, deadline=None)
@given(
    text=st.text(
        st.characters(min_codepoint=1, max_codepoint=126), min_size=1, max_size=40
    )
)
def test_any_override_reads_back_as_its_first_line(lasting, text):
    sysfs = Attributes(lasting)
    sysfs.set(FPGA, "driver_override", text)
    line = text.split("\n")[0]
    assert lasting.state(FPGA).driver_override == (line or None)
