# SPDX-License-Identifier: Apache-2.0

"""A network card with VFs: into a guest and back, and errors that the kernel counts.

Only the newer QEMU has the card, ``igb``: the mark ``kernel`` names the kernel of that
machine.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.behaviour")

from oslo_config import cfg  # noqa: E402

from os_acc import service  # noqa: E402
from tests.behaviour.host import VFIO, Binding  # noqa: E402
from tests.behaviour.ordinary_user import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.real_host import RealHost  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402
from tests.behaviour.scenarios.common import (  # noqa: E402
    devices,
    instance,
    offered,
    plug,
    unplug,
)

from . import lane, machine, sysfs  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .kmsg import KernelLog  # noqa: E402
from .machine import Machine  # noqa: E402

pytestmark = [
    pytest.mark.kernel("backports"),
    pytest.mark.family("Network card with SR-IOV"),
]

VFS = 2
MAC, VLAN = "52:54:00:00:00:01", 7
#: The reason of :mod:`os_acc.host.health`.
TOO_MANY = "has had too many uncorrectable PCIe errors"
HOST_DRIVER = Binding("igbvf")


def the_card() -> str:
    """Return the address of the card's PF."""
    return machine.behind(lane.PORT_NIC)


def interfaces(address: str) -> list[str]:
    """Return the network interfaces of a function."""
    return [each.name for each in (sysfs.DEVICES / address).glob("net/*")]


def own_mac(vf: str) -> str:
    """Return the MAC that the host's driver uses for a VF."""
    (name,) = interfaces(vf)
    return sysfs.read(vf, f"net/{name}/address")


def mac_and_vlan(number: int) -> tuple[str, int]:
    """Return the PF's settings of a VF."""
    (name,) = interfaces(the_card())
    command = ["ip", "-json", "link", "show", name]
    done = subprocess.run(command, capture_output=True, check=True)
    (link,) = json.loads(done.stdout)
    (found,) = (each for each in link["vfinfo_list"] if each["vf"] == number)
    return found["address"], found["vlan_list"][0]["vlan"]


@contextlib.contextmanager
def vfs_on_the_host(host: RealHost) -> Iterator[tuple[str, ...]]:
    """Let the library create VFs; bind them to igbvf, and remove them at the end."""
    autoprobe = sysfs.read(the_card(), "sriov_drivers_autoprobe")
    host.start({"address": the_card(), "num_vfs": VFS})
    vfs = sysfs.virtual_functions(the_card())
    try:
        assert offered() == set(vfs)
        for vf in vfs:
            host.store("sys/bus/pci/drivers_probe", vf)
        assert [host.binding(vf) for vf in vfs] == [HOST_DRIVER] * VFS
        yield vfs
    finally:
        # The kernel would wait for a guest that holds one.
        host.let_go()
        place = f"sys/bus/pci/devices/{the_card()}"
        host.store(f"{place}/sriov_numvfs", "0")
        host.store(f"{place}/sriov_drivers_autoprobe", autoprobe)


def vfs_return_to_their_driver_with_mac_and_vlan(host: RealHost) -> None:
    with vfs_on_the_host(host) as vfs:
        (name,) = interfaces(the_card())
        host.root_side.set_vf(name, 0, MAC, VLAN)
        assert mac_and_vlan(0) == (MAC, VLAN)

        guest = instance()
        entries = plug(guest, VFS)
        assert set(devices(entries)) == set(vfs)
        assert [host.binding(vf) for vf in vfs] == [VFIO] * VFS
        host.root_side.hold_as_defined(entries)
        assert host.root_side.attached() == set(vfs)
        assert mac_and_vlan(0) == (MAC, VLAN)

        host.let_go()
        assert unplug(guest) == VFS
        assert [host.binding(vf) for vf in vfs] == [HOST_DRIVER] * VFS
        host.wait_until(lambda: all(interfaces(vf) for vf in vfs))
        assert mac_and_vlan(0) == (MAC, VLAN)
        assert own_mac(vfs[0]) == MAC


def reserved() -> dict[str, str]:
    """Return the offered devices that are out of order, with their faults."""
    return {
        str(handle.address): handle.fault
        for provider in service.get().providers()
        for handle in provider.device.handles
        if handle.fault
    }


def faults_read_again() -> str:
    """Return the faults of the offered devices after their health was read."""
    service.get().catalog.read_health()
    service.get().discover()
    return " ".join(reserved().values())


def a_counted_error_of_the_card_reserves_its_vfs(host: RealHost) -> None:
    with vfs_on_the_host(host) as vfs:
        assert reserved() == {}
        host.root_side.uncorrectable_error(the_card())
        host.wait_until(lambda: "TOTAL_ERR_NONFATAL 1" in counted())
        # The card recovers, and any number of errors is tolerated by default.
        host.wait_until(lambda: faults_read_again() == "")
        cfg.CONF.set_override("max_uncorrectable_errors", 0, group="os_acc")
        try:
            host.again()
            host.wait_until(lambda: TOO_MANY in faults_read_again())
            assert set(reserved()) == set(vfs)
        finally:
            cfg.CONF.clear_override("max_uncorrectable_errors", group="os_acc")


def counted() -> str:
    """Return the kernel's counters of the card's errors that are not fatal."""
    return sysfs.read(the_card(), "aer_dev_nonfatal")


JOBS: tuple[Job, ...] = (
    vfs_return_to_their_driver_with_mac_and_vlan,
    a_counted_error_of_the_card_reserves_its_vfs,
)


@pytest.fixture(scope="module")
def process(
    the_machine: Machine, ordinary_user: OrdinaryUser, vm_user: OrdinaryUser
) -> Iterator[OrdinaryProcess]:
    log = KernelLog()
    modules = ["igb", "igbvf", "aer-inject"]
    subprocess.run(["modprobe", "--all", *modules], check=True)
    if not interfaces(the_card()):
        log.wait_for(the_card(), "renamed from")
    log.close()
    (name,) = interfaces(the_card())
    # A PF that is down enables its VFs a minute later.
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    process = OrdinaryProcess(ordinary_user, RootSide(the_machine, vm_user), JOBS)
    yield process
    process.close()


@pytest.mark.parametrize("job", JOBS, ids=lambda each: each.__name__)
def test_the_card(process: OrdinaryProcess, job: Job) -> None:
    process.run(job)
