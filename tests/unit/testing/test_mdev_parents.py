# SPDX-License-Identifier: Apache-2.0

"""Mediated devices end with the driver of their parent, as mdev_core.c ends them."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from os_acc.testing import FakeKernel, HostSpec, hosts
from os_acc.testing.specs import MdevParentSpec, MdevTypeSpec
from tests.unit.testing.conftest import Attributes, end_of, start
from tests.unit.testing.test_binding import refusal

GPU, TYPE = "0000:17:00.0", "nvidia-558"
FIRST = "6f0c9b52-2d21-4a2e-9d3c-000000000001"
SECOND = "6f0c9b52-2d21-4a2e-9d3c-000000000002"
TYPES = f"sys/bus/pci/devices/{GPU}/mdev_supported_types/{TYPE}"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    """Return a kernel with a GPU whose driver makes a parent of it."""
    display, audio = hosts.gpu("0000:17")
    parent = MdevParentSpec(GPU, 2, (MdevTypeSpec(TYPE),))
    display = dataclasses.replace(display, mdevs=parent)
    return FakeKernel.build(tmp_path, HostSpec((display, audio)))


def create(kernel: FakeKernel, uuid: str) -> None:
    kernel.write(kernel.path(TYPES, "create"), uuid)


def existing(kernel: FakeKernel) -> list[str]:
    return sorted(os.listdir(kernel.path("sys/bus/mdev/devices")))


def parents(kernel: FakeKernel) -> list[str]:
    return os.listdir(kernel.path("sys/class/mdev_bus"))


def test_they_go_with_the_driver_of_their_parent(kernel, sysfs):
    create(kernel, FIRST)
    create(kernel, SECOND)
    group = kernel.path("dev/vfio/1")
    assert os.path.exists(group)
    sysfs.unbind(GPU)
    assert (existing(kernel), parents(kernel)) == ([], [])
    assert not os.path.exists(group)
    assert not os.path.exists(kernel.path(TYPES))
    assert not os.path.exists(sysfs.device(GPU, FIRST))


def test_the_driver_makes_a_parent_of_the_function_again(kernel, sysfs):
    create(kernel, FIRST)
    sysfs.to_vfio(GPU)
    assert parents(kernel) == []
    sysfs.set(GPU, "driver_override", "\n")
    sysfs.unbind(GPU)
    sysfs.probe(GPU)
    assert (existing(kernel), parents(kernel)) == ([], [GPU])
    assert kernel.read(kernel.path(TYPES, "available_instances")) == "2\n"
    create(kernel, FIRST)


@pytest.fixture
def stuck(kernel: FakeKernel, sysfs: Attributes) -> int:
    """Return a process that hangs in the unbind, since a guest has one of two open."""
    create(kernel, FIRST)
    create(kernel, SECOND)
    kernel.hold(SECOND)
    writer = start(lambda: sysfs.unbind(GPU))
    kernel.wait_until_blocked()
    return writer


def test_the_unbind_waits_for_the_guest_that_has_one_open(kernel, sysfs, stuck):
    assert existing(kernel) == [SECOND]
    assert kernel.state(GPU).driver is None
    sysfs.probe(GPU)
    assert kernel.state(GPU).driver is None
    kernel.let_go(SECOND)
    assert end_of(stuck) == 0
    assert existing(kernel) == []
    sysfs.probe(GPU)
    assert (kernel.state(GPU).driver, parents(kernel)) == ("nouveau", [GPU])


def test_none_is_created_or_removed_once_the_parent_goes(kernel, stuck):
    assert parents(kernel) == []
    assert refusal(create, kernel, FIRST) == errno.ENODEV
    remove = kernel.path("sys/bus/mdev/devices", SECOND, "remove")
    assert refusal(kernel.write, remove, "1") == errno.ENODEV


def test_a_parent_that_is_pulled_out_loses_them_as_well(kernel):
    create(kernel, FIRST)
    kernel.hold(FIRST)
    kernel.hot_unplug(GPU)
    assert existing(kernel) == [FIRST]
    kernel.let_go(FIRST)
    assert existing(kernel) == []
    assert not os.path.exists(kernel.path("sys/bus/pci/devices", GPU))
