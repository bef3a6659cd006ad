# SPDX-License-Identifier: Apache-2.0

"""The boot of a host, and functions that are plugged in and pulled out."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Mapping
from types import MappingProxyType

from os_acc.objects import pci
from os_acc.testing import (
    dfl,
    drivers,
    functions,
    holders,
    mdevs,
    nodes,
    pci_attributes,
    records,
    vendor_attributes,
    vfio,
)
from os_acc.testing.specs import DriverSpec, FunctionSpec, HostSpec
from os_acc.testing.tree import PRIVATE, Transaction, refuse

_HOST = f"{PRIVATE}/host"
_PARAMETERS = "sys/module/vfio_pci/parameters"
_RELEASE = "6.12.0-fake-amd64"


def build(tree: Transaction, host: HostSpec) -> None:
    """Boot a host for the first time."""
    tree.put(_HOST, records.dump(host))
    _boot(tree, host, host.functions)


def reboot(tree: Transaction, moved: Mapping[str, str] = MappingProxyType({})) -> None:
    """Boot again with the functions that are plugged in.

    The state in the kernel's memory is lost: VFs, bindings, overrides, ``/run``,
    and the processes that held devices.

    :param moved: functions that have another address from now on, by the former one.
    :raises OSError: EEXIST: two functions would have one address.
    """
    host = records.load(HostSpec, tree.read(_HOST))
    texts = (f"{functions.FUNCTIONS}/{a}" for a in tree.list(functions.FUNCTIONS))
    plugged = tuple(
        records.load(FunctionSpec, tree.read(path)).at(moved) for path in texts
    )
    if len({each.address for each in plugged}) < len(plugged):
        raise refuse(errno.EEXIST, functions.FUNCTIONS)
    tree.drop(functions.FUNCTIONS)
    for name in ("sys", "proc", "dev", "run"):
        tree.drop(name)
    holders.forget(tree)
    drivers.forget(tree)
    vfio.forget(tree)
    dfl.forget(tree)
    mdevs.forget(tree)
    _boot(tree, host, plugged)


def hot_plug(tree: Transaction, function: FunctionSpec) -> None:
    """Add a function, and join its IOMMU group if functions have it already."""
    _plug(tree, function, functions.group_left(tree, function.address))


def _plug(tree: Transaction, function: FunctionSpec, group: int | None = None) -> None:
    _teach(tree, function)
    functions.add(tree, function, functions.numbers(tree), group=group)
    dfl.power_on(tree, function)
    vendor_attributes.show(tree, function.address, stay=True)
    drivers.attach(tree, function.address)
    if function.sriov and function.sriov.boot_vfs:
        pci_attributes.make_vfs(tree, function, function.sriov.boot_vfs)


def unplug(tree: Transaction, address: str) -> FunctionSpec:
    """Remove a function with its VFs and the functions below it.

    :raises OSError: ENODEV: no such function; EINVAL: it is a VF.
    :raises Blocked: a process holds one of them; call this again when none
        does.
    """
    function = functions.spec(tree, address)
    if functions.physfn(tree, address) is not None:
        raise refuse(errno.EINVAL, address)
    for below in functions.children(tree, address):
        unplug(tree, below)
    if functions.vfs(tree, address):
        pci_attributes.remove_vfs(tree, address)
    drivers.detach(tree, address)
    dfl.power_off(tree, address)
    functions.remove(tree, address)
    return function


def is_held(tree: Transaction, address: str) -> bool:
    """Return whether a process holds a function, its VFs or those below it."""
    own = [address, *functions.vfs(tree, address)]
    below = functions.children(tree, address)
    return any(holders.holds(tree, function) for function in own) or any(
        is_held(tree, function) for function in below
    )


def _boot(tree: Transaction, host: HostSpec, plugged: tuple[FunctionSpec, ...]) -> None:
    for name in ("run", "dev", "sys/module", functions.DEVICES, functions.GROUPS):
        tree.mkdir(name)
    for name in ("net", "block", "drm", "nvme", "iommu"):
        tree.mkdir(f"sys/class/{name}")
    tree.put("sys/bus/pci/drivers_probe", "", 0o200)
    if host.iommu:
        tree.mkdir(functions.IOMMU)
    _proc(tree, host)
    nodes.boot(tree, host.nodes)
    for driver in host.drivers:
        drivers.register(tree, driver)
    vfio.boot(tree, cdev=host.vfio_cdev, groups=host.vfio_groups)
    if host.vfio:
        _load_vfio(tree, host)
    mdevs.boot(tree, host.mdev_parents)
    for function in sorted(plugged, key=lambda f: pci.PciAddress.parse(f.address)):
        _plug(tree, function)


def _proc(tree: Transaction, host: HostSpec) -> None:
    tree.put("proc/sys/kernel/random/boot_id", f"{uuid.uuid4()}\n")
    tree.put("proc/sys/kernel/osrelease", f"{_RELEASE}\n")
    aliases = "".join(f"{line}\n" for line in host.module_aliases)
    tree.put(f"lib/modules/{_RELEASE}/modules.alias", aliases)
    tree.put("proc/cmdline", "quiet intel_iommu=on\n" if host.iommu else "quiet\n")
    tree.put("proc/self/mounts", "".join(f"{line}\n" for line in host.mounts))
    tree.link("proc/mounts", "proc/self/mounts")
    lines = [f"{node:<40}partition\t1048572\t0\t-2" for node in host.swaps]
    heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority"
    tree.put("proc/swaps", "".join(f"{line}\n" for line in [heading, *lines]))


def _load_vfio(tree: Transaction, host: HostSpec) -> None:
    rejects = () if host.disable_denylist else host.denylist
    vfio_pci = DriverSpec(drivers.VFIO, rejects=rejects, manages_dma=True)
    drivers.register(tree, vfio_pci)
    disabled = "Y" if host.disable_denylist else "N"
    tree.put(f"{_PARAMETERS}/disable_denylist", f"{disabled}\n")
    tree.put(f"{_PARAMETERS}/enable_sriov", "N\n", 0o644)
    tree.put(f"{_PARAMETERS}/disable_idle_d3", "N\n")
    tree.link(f"sys/bus/pci/drivers/{drivers.VFIO}/module", "sys/module/vfio_pci")


def _teach(tree: Transaction, function: FunctionSpec) -> None:
    """Load the drivers of a function and of its VFs."""
    pf, sr = function.driver, function.sriov
    if pf:
        can_make = sr is not None and sr.configurable
        harmless = pf in drivers.MANAGE_DMA
        driver = DriverSpec(pf, (function.ids,), can_make, manages_dma=harmless)
        drivers.register(tree, driver)
    if sr is not None and sr.driver:
        vf_ids = (function.vendor, sr.product)
        drivers.register(tree, DriverSpec(sr.driver, (vf_ids,)))
