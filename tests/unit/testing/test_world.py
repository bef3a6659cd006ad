# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What happens around the kernel: guests, hot plug, reboots."""

from __future__ import annotations

import errno
import os

import pytest

from os_acc.privsep import kernel as privsep_kernel
from os_acc.testing import FakeKernel, hosts
from tests.unit.testing.conftest import Attributes, end_of, start
from tests.unit.testing.test_binding import refusal

GPU, AUDIO = "0000:17:00.0", "0000:17:00.1"
NIC, VF = "0000:3b:00.0", "0000:3b:02.1"
FPGA, PORT = "0000:5e:00.0", "0000:16:00.0"


@pytest.fixture
def held(kernel, sysfs) -> int:
    """The group of a GPU that a guest holds."""
    sysfs.to_vfio(GPU)
    sysfs.to_vfio(AUDIO)
    kernel.hold(GPU, pid=4711, command="qemu-system-x86")
    group = kernel.group(GPU)
    assert group is not None
    return group


def test_a_group_without_node_cannot_be_probed(kernel):
    assert kernel.probe_vfio_group(1) == errno.ENOENT


def test_a_free_group_can_be_opened(kernel, sysfs):
    sysfs.to_vfio(FPGA)
    assert kernel.probe_vfio_group(kernel.group(FPGA)) == 0


def test_a_held_group_is_busy(kernel, held):
    assert kernel.probe_vfio_group(held) == errno.EBUSY
    kernel.let_go(GPU)
    assert kernel.probe_vfio_group(held) == 0


def test_a_node_of_another_user_tells_nothing(kernel, held):
    kernel.chown(GPU)
    assert kernel.probe_vfio_group(held) == errno.EACCES
    kernel.let_go(GPU)
    assert kernel.probe_vfio_group(held) == errno.EACCES
    kernel.chown(GPU, back=True)
    assert kernel.probe_vfio_group(held) == 0


def test_a_new_node_belongs_to_root_again(kernel, sysfs):
    sysfs.to_vfio(FPGA)
    kernel.chown(FPGA)
    sysfs.unbind(FPGA)
    sysfs.probe(FPGA)
    assert kernel.probe_vfio_group(kernel.group(FPGA)) == 0


def test_the_holder_is_in_proc(kernel, held):
    process = kernel.path("proc/4711")
    targets = [
        os.readlink(os.path.join(process, "fd", fd))
        for fd in os.listdir(os.path.join(process, "fd"))
    ]
    assert targets == [f"/dev/vfio/{held}"]
    assert kernel.read(os.path.join(process, "comm")) == "qemu-system-x86\n"
    kernel.let_go(GPU)
    assert not os.path.exists(process)


def test_one_process_may_hold_several(kernel, held):
    kernel.hold(AUDIO, pid=4711)
    kernel.let_go(GPU)
    assert len(os.listdir(kernel.path("proc/4711/fd"))) == 1
    assert kernel.probe_vfio_group(held) == errno.EBUSY


def test_what_vfio_does_not_have_cannot_be_held(kernel):
    assert refusal(kernel.hold, FPGA) == errno.ENODEV


@pytest.mark.parametrize("other_way", [False, True])
def test_unbinding_a_held_function_blocks_until_it_is_let_go(
    kernel, sysfs, held, other_way
):
    def unbind() -> None:
        if other_way:
            sysfs.driver("vfio-pci", "unbind", GPU)
        else:
            sysfs.unbind(GPU)

    writer = start(unbind)
    kernel.wait_until_blocked()
    assert kernel.state(GPU).driver == "vfio-pci"
    kernel.let_go(GPU)
    assert end_of(writer) == 0
    assert kernel.state(GPU).driver is None


def test_a_sibling_of_a_held_function_can_be_unbound(kernel, sysfs, held):
    sysfs.unbind(AUDIO)
    assert kernel.state(AUDIO).driver is None


def test_taking_a_held_vf_away_blocks(kernel, sysfs):
    sysfs.set(NIC, "sriov_numvfs", "4")
    sysfs.to_vfio(VF)
    kernel.hold(VF)
    writer = start(lambda: sysfs.set(NIC, "sriov_numvfs", "0"))
    kernel.wait_until_blocked()
    assert kernel.state(NIC).numvfs == 4
    kernel.let_go(VF)
    assert end_of(writer) == 0
    assert kernel.state(NIC).numvfs == 0


def test_a_function_is_pulled_out_and_put_in_again(kernel, sysfs):
    before = kernel.snapshot()
    sysfs.set(NIC, "sriov_numvfs", "4")
    card = kernel.hot_unplug(NIC)
    assert not any(s.address.startswith("0000:3b") for s in kernel.snapshot())
    assert refusal(kernel.state, NIC) == errno.ENODEV
    kernel.hot_plug(card)
    assert kernel.snapshot() == before


def test_a_bridge_goes_with_what_is_below_it(kernel):
    kernel.hot_unplug(PORT)
    assert refusal(kernel.state, GPU) == errno.ENODEV
    assert refusal(kernel.state, AUDIO) == errno.ENODEV


def test_a_held_function_is_not_pulled_out(kernel, held):
    before = kernel.snapshot()
    assert refusal(kernel.hot_unplug, PORT) == errno.EBUSY
    assert kernel.snapshot() == before


def test_a_vf_is_not_pulled_out_alone(kernel, sysfs):
    sysfs.set(NIC, "sriov_numvfs", "4")
    assert refusal(kernel.hot_unplug, VF) == errno.EINVAL


def test_a_slot_takes_one_card(kernel):
    assert refusal(kernel.hot_plug, hosts.fpga("0000:5e")) == errno.EEXIST


def test_a_swapped_card_has_other_ids_and_no_override(kernel, sysfs):
    sysfs.set(FPGA, "driver_override", "vfio-pci")
    kernel.swap(FPGA, (0x10EE, 0x5001), revision=7)
    assert sysfs.get(FPGA, "device") == "0x5001\n"
    assert sysfs.get(FPGA, "revision") == "0x07\n"
    assert "d00005001" in sysfs.get(FPGA, "modalias")
    assert kernel.state(FPGA).driver_override is None


def test_a_reboot_forgets_what_only_the_kernel_knew(kernel, sysfs, held):
    booted = FakeKernel.build(kernel.root + "-fresh", hosts.two_socket_host())
    sysfs.set(NIC, "sriov_numvfs", "4")
    sysfs.set(FPGA, "driver_override", "vfio-pci")
    with open(kernel.path("run/state"), "w") as file:
        file.write("x")
    boot_id = kernel.path("proc/sys/kernel/random/boot_id")
    first = kernel.read(boot_id)
    kernel.reboot()
    assert kernel.read(boot_id) != first
    assert kernel.snapshot() == booted.snapshot()
    assert os.listdir(kernel.path("run")) == []
    assert not os.path.exists(kernel.path("proc/4711"))
    assert not os.path.exists(kernel.path("dev/vfio", str(held)))


def test_a_reboot_finds_the_cards_that_are_plugged_in_now(kernel):
    kernel.hot_unplug(NIC)
    kernel.swap(FPGA, (0x10EE, 0x5001))
    kernel.reboot()
    assert refusal(kernel.state, NIC) == errno.ENODEV
    assert Attributes(kernel).get(FPGA, "device") == "0x5001\n"


def test_a_reboot_spares_what_is_no_file_system_of_the_kernel(kernel):
    os.makedirs(kernel.path("var/lib/os_acc"))
    kernel.reboot()
    assert os.path.isdir(kernel.path("var/lib/os_acc"))


def test_privileged_code_talks_to_an_installed_kernel(kernel):
    real = privsep_kernel.current
    with kernel.installed() as installed:
        assert privsep_kernel.current is installed is kernel
    assert privsep_kernel.current is real
