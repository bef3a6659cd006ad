# SPDX-License-Identifier: Apache-2.0

"""The machine has the properties that the other tests assume. Raw sysfs, no os_acc."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from . import sysfs
from .accounts import OrdinaryUser
from .guest import InnerGuest
from .machine import Machine
from .qmp import QmpError


def test_every_function_has_an_iommu_group() -> None:
    functions = sorted(entry.name for entry in sysfs.DEVICES.iterdir())
    assert functions
    for bdf in functions:
        assert bdf in sysfs.group_members(bdf)


def test_numa_nodes_are_those_of_the_host_bridges(the_machine: Machine) -> None:
    assert sysfs.numa_node(the_machine.pf_node0) == 0
    assert sysfs.numa_node(the_machine.pf_node1) == 1
    assert sysfs.numa_node(the_machine.edu_node1) == 1
    assert sysfs.numa_node(the_machine.edu) == -1
    assert sysfs.numa_node(the_machine.hotplug) == -1


def test_functions_behind_a_conventional_bridge_share_its_group(
    the_machine: Machine,
) -> None:
    group = {*the_machine.legacy, the_machine.legacy_bridge}
    for bdf in group:
        assert sysfs.group_members(bdf) == group


def test_another_number_of_vfs_needs_none_first(
    the_machine: Machine, idle_vfs: tuple[str, ...]
) -> None:
    with pytest.raises(OSError, match="busy") as refused:
        sysfs.write(the_machine.pf_node1, "sriov_numvfs", "2")
    assert refused.value.errno == errno.EBUSY


def test_inner_guest_holds_the_vfs_of_an_ordinary_user(
    idle_vfs: tuple[str, ...],
    inner_guest: Callable[..., InnerGuest],
    vm_user: OrdinaryUser,
) -> None:
    for vf in idle_vfs[:2]:
        sysfs.rebind(vf, "vfio-pci")
        assert sysfs.driver(vf) == "vfio-pci"
    guest = inner_guest(*idle_vfs[:2])
    assert guest.attached() == set(idle_vfs[:2])
    assert guest.info_pci().count("1b36:0010") == 2
    nodes = sysfs.vfio_nodes(idle_vfs[0])
    assert {each.stat().st_uid for each in nodes} == {vm_user.uid}
    assert os.stat(f"/proc/{guest.process.pid}").st_uid == vm_user.uid
    node = sysfs.vfio_node(idle_vfs[0])
    with pytest.raises(OSError, match="busy") as held:
        os.open(node, os.O_RDWR)
    assert held.value.errno == errno.EBUSY
    guest.end()
    os.close(os.open(node, os.O_RDWR))


def test_guest_gets_no_function_whose_sibling_the_host_drives(
    the_machine: Machine, inner_guest: Callable[..., InnerGuest]
) -> None:
    edu, nvme = the_machine.card
    sysfs.rebind(edu, "vfio-pci")
    by_node = sysfs.IOMMU.exists()
    reason = "Operation not permitted" if by_node else "is not viable"
    with pytest.raises(QmpError, match=reason):
        inner_guest(edu)
    assert sysfs.driver(nvme) == "nvme"
    sysfs.rebind(edu, None)


def test_vfio_refuses_a_pf_that_has_vfs(
    the_machine: Machine, idle_vfs: tuple[str, ...]
) -> None:
    pf = the_machine.pf_node1
    sysfs.rebind(pf, "vfio-pci")
    assert sysfs.driver(pf) is None
    with pytest.raises(OSError, match="busy") as refused:
        sysfs.store(sysfs.BUS / "drivers" / "vfio-pci" / "bind", pf)
    assert refused.value.errno == errno.EBUSY
    sysfs.rebind(pf, None)
    assert sysfs.driver(pf) == "nvme"
    assert sysfs.virtual_functions(pf) == idle_vfs


def test_ordinary_user_becomes_root_with_sudo_alone(
    ordinary_user: OrdinaryUser, vm_user: OrdinaryUser
) -> None:
    assert ordinary_user.run("id", "-u").stdout == f"{ordinary_user.uid}\n"
    assert ordinary_user.run("sudo", "-n", "id", "-u").stdout == "0\n"
    assert vm_user.run("sudo", "-n", "id", "-u").returncode != 0
