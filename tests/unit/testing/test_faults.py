# SPDX-License-Identifier: Apache-2.0

"""Writes fail, hang or kill their process on request."""

import errno
import os
import signal
import threading

import pytest

from os_acc.testing import FakeKernel
from tests.unit.testing.conftest import Attributes, end, end_of, in_child, start
from tests.unit.testing.test_binding import refusal

FPGA, OTHER, GPU = "0000:5e:00.0", "0000:e3:00.0", "0000:17:00.0"


def override(kernel: FakeKernel) -> str | None:
    return kernel.state(FPGA).driver_override


def test_a_write_fails_from_the_nth_on(kernel, sysfs):
    kernel.fail(FPGA, "driver_override", errno.EIO, nth=2, times=2)
    sysfs.set(FPGA, "driver_override", "1")
    for _ in range(2):
        assert refusal(sysfs.set, FPGA, "driver_override", "2") == errno.EIO
    sysfs.set(FPGA, "driver_override", "4")
    assert override(kernel) == "4"


def test_a_fault_strikes_only_what_it_is_for(kernel, sysfs):
    kernel.fail(FPGA, "driver_override", errno.EIO)
    sysfs.set(OTHER, "driver_override", "x")
    sysfs.set(FPGA, "reset", "1")
    assert refusal(sysfs.set, FPGA, "driver_override", "x") == errno.EIO


@pytest.mark.parametrize("attribute", ["bind", "unbind", "drivers_probe"])
def test_what_is_written_to_bus_and_driver_is_about_a_function(
    kernel, sysfs, attribute
):
    kernel.fail(GPU, attribute, errno.EIO)
    write = {
        "bind": lambda: sysfs.driver("nouveau", "bind", GPU),
        "unbind": lambda: sysfs.unbind(GPU),
        "drivers_probe": lambda: sysfs.probe(GPU),
    }[attribute]
    assert refusal(write) == errno.EIO


def test_a_write_succeeds_without_effect(kernel, sysfs):
    kernel.ignore(FPGA, "driver_override")
    sysfs.set(FPGA, "driver_override", "x")
    assert override(kernel) is None
    assert [write.outcome for write in kernel.writes()] == ["ignored"]


@pytest.mark.parametrize(("after", "left"), [(False, None), (True, "x")])
def test_the_writer_dies_before_or_after_the_effect(kernel, sysfs, after, left):
    kernel.kill(FPGA, "driver_override", after=after)
    died = in_child(lambda: sysfs.set(FPGA, "driver_override", "x"))
    assert died == -signal.SIGKILL
    assert override(kernel) == left
    assert in_child(lambda: sysfs.set(FPGA, "driver_override", "y")) == 0


def test_who_hangs_can_be_killed_and_leaves_nothing_locked(kernel, sysfs):
    kernel.hang(FPGA, "driver_override")
    writer = start(lambda: sysfs.set(FPGA, "driver_override", "x"))
    kernel.wait_until_blocked()
    end(writer)
    sysfs.set(FPGA, "driver_override", "y")
    assert override(kernel) == "y"


def test_a_hanging_write_keeps_its_function_locked_and_no_other(kernel, sysfs):
    kernel.hang(FPGA, "driver_override")
    writer = start(lambda: sysfs.set(FPGA, "driver_override", "x"))
    kernel.wait_until_blocked()
    sysfs.set(OTHER, "driver_override", "y")
    seen: list[str] = []
    reader = threading.Thread(
        target=lambda: seen.append(sysfs.get(FPGA, "driver_override"))
    )
    reader.start()
    kernel.lift()
    reader.join()
    assert end_of(writer) == 0
    assert seen == ["x\n"]


def test_each_write_that_hangs_is_lifted(kernel, sysfs):
    kernel.hang(None, "driver_override", times=2)
    writers = [
        start(lambda where=where: sysfs.set(where, "driver_override", "x"))
        for where in (FPGA, OTHER)
    ]
    kernel.wait_until_blocked(2)
    kernel.lift(FPGA)
    assert end_of(writers[0]) == 0
    kernel.lift()
    assert end_of(writers[1]) == 0


def test_a_fault_is_for_other_processes_as_well(kernel):
    FakeKernel(kernel.root).fail(FPGA, "driver_override", errno.EPERM)
    sysfs = Attributes(kernel)
    assert refusal(sysfs.set, FPGA, "driver_override", "x") == errno.EPERM


def test_every_write_is_noted(kernel, sysfs):
    sysfs.set(FPGA, "driver_override", "vfio-pci")
    refusal(sysfs.unbind, FPGA)
    refusal(sysfs.probe, "0000:42:00.0")
    path = f"sys/bus/pci/devices/{FPGA}"
    noted = [(w.path, w.text, w.outcome) for w in kernel.writes()]
    assert noted == [
        (f"{path}/driver_override", "vfio-pci", "done"),
        (f"{path}/driver/unbind", FPGA, "ENOENT"),
        ("sys/bus/pci/drivers_probe", "0000:42:00.0", "ENODEV"),
    ]
    assert {write.pid for write in kernel.writes()} == {os.getpid()}
