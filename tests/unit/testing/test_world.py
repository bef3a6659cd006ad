# SPDX-License-Identifier: Apache-2.0

"""Guests, hot plug and reboots change the fake kernel as the real one."""

import dataclasses
import errno
import os

import pytest

from os_acc.testing import FakeKernel, hosts
from tests.unit.testing.conftest import Attributes, end, end_of, start
from tests.unit.testing.test_binding import refusal

GPU, AUDIO = "0000:17:00.0", "0000:17:00.1"
NIC, VF = "0000:3b:00.0", "0000:3b:02.1"
FPGA, PORT = "0000:5e:00.0", "0000:16:00.0"


@pytest.fixture
def held(kernel, sysfs) -> int:
    """Let a guest hold a GPU, and return the GPU's group."""
    sysfs.to_vfio(GPU)
    sysfs.to_vfio(AUDIO)
    kernel.hold(GPU, pid=4711, command="qemu-system-x86")
    group = kernel.group(GPU)
    assert group is not None
    return group


def test_a_held_group_is_busy(kernel, held):
    assert kernel.probe_vfio_group(held + 1) == errno.ENOENT
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


def targets_of(kernel: FakeKernel, pid: int) -> list[str]:
    directory = kernel.path("proc", str(pid), "fd")
    names = sorted(os.listdir(directory))
    return [os.readlink(os.path.join(directory, fd)) for fd in names]


def test_the_holder_is_in_proc(kernel, held):
    assert targets_of(kernel, 4711) == [
        "/dev/vfio/vfio",
        f"/dev/vfio/{held}",
        "anon_inode:[vfio-device]",
    ]
    assert kernel.read(kernel.path("proc/4711/comm")) == "qemu-system-x86\n"
    kernel.let_go(GPU)
    assert not os.path.exists(kernel.path("proc/4711"))


def test_one_process_may_hold_several(kernel, held):
    kernel.hold(AUDIO, pid=4711)
    kernel.let_go(GPU)
    assert f"/dev/vfio/{held}" in targets_of(kernel, 4711)
    assert kernel.probe_vfio_group(held) == errno.EBUSY


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
    assert kernel.probe_vfio_group(held) == errno.EBUSY
    kernel.let_go(GPU)
    assert end_of(writer) == 0
    sysfs.driver("vfio-pci", "bind", GPU)


@pytest.fixture
def stuck(kernel, sysfs, held) -> int:
    """Return the id of a process that hangs in its unbind of the GPU."""
    writer = start(lambda: sysfs.unbind(GPU))
    kernel.wait_until_blocked()
    return writer


def test_the_driver_link_goes_before_the_wait_and_the_node_after_it(
    kernel, sysfs, held, stuck
):
    sysfs.unbind(AUDIO)
    sysfs.probe(GPU)
    node = kernel.path("dev/vfio", str(held))
    assert kernel.state(GPU).driver is None
    assert sysfs.get(GPU, "vendor") == "0x10de\n"
    assert not os.path.lexists(kernel.path("sys/bus/pci/drivers/vfio-pci", GPU))
    assert os.path.exists(node)
    kernel.let_go(GPU)
    assert not os.path.exists(node)


def test_a_function_that_is_leaving_is_locked(kernel, sysfs, stuck):
    writer = start(lambda: sysfs.set(GPU, "driver_override", "\n"))
    kernel.wait_until_blocked(2)
    assert kernel.state(GPU).driver_override == "vfio-pci"
    reader = start(lambda: sysfs.get(GPU, "driver_override"))
    kernel.let_go(GPU)
    assert [end_of(pid) for pid in (stuck, writer, reader)] == [0, 0, 0]
    assert kernel.state(GPU).driver_override is None


def test_an_unbind_ends_even_if_its_writer_was_killed(kernel, held, stuck):
    end(stuck)
    kernel.let_go(GPU)
    assert kernel.probe_vfio_group(held) == 0
    assert kernel.state(GPU).driver is None
    assert [w.outcome for w in kernel.writes()][-2:] == ["blocked", "done"]


def test_a_held_function_can_be_reset_and_overridden(kernel, sysfs, held):
    sysfs.set(GPU, "reset", "1")
    sysfs.set(GPU, "driver_override", "nouveau")
    sysfs.probe(GPU)
    assert kernel.state(GPU).driver == "vfio-pci"


@pytest.mark.parametrize("killed", [False, True])
def test_taking_a_held_vf_away_blocks(kernel, sysfs, killed):
    sysfs.set(NIC, "sriov_numvfs", "4")
    sysfs.to_vfio(VF)
    kernel.hold(VF)
    writer = start(lambda: sysfs.set(NIC, "sriov_numvfs", "0"))
    kernel.wait_until_blocked()
    links = [os.path.lexists(sysfs.device(NIC, f"virtfn{n}")) for n in range(4)]
    assert links == [False, False, True, True]
    assert kernel.state(VF).driver is None
    assert kernel.state("0000:3b:02.3").driver == "iavf"
    if killed:
        end(writer)
    reader = start(lambda: sysfs.get(NIC, "sriov_numvfs"))
    kernel.let_go(VF)
    assert end_of(reader) == 0
    assert kernel.state(NIC).numvfs == 0
    assert refusal(kernel.state, "0000:3b:02.3") == errno.ENODEV
    if not killed:
        assert end_of(writer) == 0


def test_a_function_is_pulled_out_and_put_in_again(kernel, sysfs):
    before = kernel.snapshot()
    sysfs.set(NIC, "sriov_numvfs", "4")
    card = kernel.hot_unplug(NIC)
    assert not any(s.address.startswith("0000:3b") for s in kernel.snapshot())
    assert refusal(kernel.state, NIC) == errno.ENODEV
    kernel.hot_plug(card)
    assert kernel.snapshot() == before


def test_a_held_function_leaves_when_it_is_let_go(kernel, held):
    kernel.hot_unplug(PORT)
    assert kernel.state(GPU).driver is None
    kernel.let_go(GPU)
    assert refusal(kernel.state, GPU) == errno.ENODEV
    assert refusal(kernel.state, PORT) == errno.ENODEV


def test_a_held_function_is_not_swapped(kernel, held):
    before = kernel.snapshot()
    assert refusal(kernel.swap, GPU, (0x10DE, 0x1234)) == errno.EBUSY
    assert kernel.snapshot() == before


def test_an_event_that_cannot_be_is_refused(kernel, sysfs):
    sysfs.set(NIC, "sriov_numvfs", "4")
    assert refusal(kernel.hot_unplug, VF) == errno.EINVAL
    assert refusal(kernel.hot_plug, hosts.fpga("0000:5e")) == errno.EEXIST
    assert refusal(kernel.hold, FPGA) == errno.ENODEV


def test_a_swapped_card_has_other_ids_and_no_override(kernel, sysfs):
    sysfs.set(FPGA, "driver_override", "vfio-pci")
    kernel.swap(FPGA, (0x10EE, 0x5001), revision=7)
    assert sysfs.get(FPGA, "device") == "0x5001\n"
    assert sysfs.get(FPGA, "revision") == "0x07\n"
    assert "d00005001" in sysfs.get(FPGA, "modalias")
    assert kernel.state(FPGA).driver_override is None


def test_a_swapped_card_shares_the_group_of_its_siblings(kernel):
    shared = kernel.group(AUDIO)
    kernel.swap(GPU, (0x10DE, 0x2236))
    assert kernel.group(GPU) == kernel.group(AUDIO) == shared


def test_those_who_shared_a_group_still_do_without_the_first_of_them(kernel):
    sound = dataclasses.replace(hosts.gpu("0000:17")[1], address="0000:17:00.2")
    kernel.hot_plug(sound)
    kernel.hot_unplug(GPU)
    kernel.reboot()
    assert kernel.group(AUDIO) == kernel.group(sound.address) is not None


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
