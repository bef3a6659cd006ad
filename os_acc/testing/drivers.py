# SPDX-License-Identifier: Apache-2.0

"""Drivers and the functions they are bound to (drivers/base, vfio-pci)."""

from __future__ import annotations

import errno
import os

from os_acc.objects.drivers import is_vfio_driver
from os_acc.testing import (
    dfl,
    functions,
    holders,
    mdevs,
    nvme_resources,
    qat,
    records,
    vendor_attributes,
    vfio,
)
from os_acc.testing.specs import DriverSpec
from os_acc.testing.tree import PRIVATE, Transaction, refuse, serial

DRIVERS = "sys/bus/pci/drivers"
VFIO = "vfio-pci"
#: Drivers of the kernel that set driver_managed_dma, besides those of VFIO.
MANAGE_DMA = frozenset({"pcieport", "shpchp", "pci-stub"})
_LEAVING = f"{PRIVATE}/leaving"
_TABLE = f"{PRIVATE}/drivers"
_REGISTERED = f"{PRIVATE}/registered"
_BOUND = f"{PRIVATE}/bound"
#: The open NVMe controllers; a file ends when its function leaves the driver.
CONTROLLERS = f"{PRIVATE}/controllers"


def register(tree: Transaction, driver: DriverSpec) -> None:
    """Load a driver, or add ids to a loaded one."""
    path = f"{_TABLE}/{driver.name}"
    if tree.exists(path):
        driver = driver | load(tree, driver.name)
    else:
        tree.put(f"{_REGISTERED}/{serial(tree):08}", driver.name)
    tree.put(path, records.dump(driver))
    for name in ("bind", "unbind"):
        tree.put(f"{DRIVERS}/{driver.name}/{name}", "", 0o200)


def unregister(tree: Transaction, name: str) -> None:
    """Unload a driver, which unbinds its functions."""
    path = f"{DRIVERS}/{name}"
    for entry in tree.list(path):
        if entry not in ("bind", "unbind"):
            detach(tree, entry)
    tree.drop(path)
    tree.drop(f"{_TABLE}/{name}")
    for number in tree.list(_REGISTERED):
        if tree.read(f"{_REGISTERED}/{number}") == name:
            tree.drop(f"{_REGISTERED}/{number}")


def load(tree: Transaction, name: str) -> DriverSpec:
    """Return the specification of a driver."""
    return records.load(DriverSpec, tree.read(f"{_TABLE}/{name}"))


def bound(tree: Transaction, address: str) -> str | None:
    """Return the name of a function's driver."""
    return bound_at(tree, functions.place(tree, address))


def bound_at(tree: Transaction, place: str) -> str | None:
    """Return the name of the driver of the function with this directory."""
    path = tree.follow(f"{place}/driver")
    return None if path is None else os.path.basename(path)


def history(tree: Transaction, address: str) -> tuple[str, ...]:
    """Return every driver that a function was bound to, in order."""
    path = f"{_BOUND}/{address}"
    return tuple(tree.read(path).splitlines()) if tree.exists(path) else ()


def is_leaving(tree: Transaction, address: str) -> bool:
    """Return whether a function's driver waits for a guest that holds it."""
    return tree.exists(f"{_LEAVING}/{address}")


def owner(tree: Transaction, address: str) -> str | None:
    """Return the driver that a function is bound to, or is leaving."""
    if is_leaving(tree, address):
        return tree.read(f"{_LEAVING}/{address}")
    return bound(tree, address)


def forget(tree: Transaction) -> None:
    """Unload all drivers for a reboot; none waits for a holder."""
    tree.drop(_LEAVING)
    tree.drop(CONTROLLERS)
    tree.drop(_TABLE)
    tree.drop(_REGISTERED)


def override(tree: Transaction, address: str) -> str | None:
    """Return a function's ``driver_override``."""
    return override_at(tree, functions.place(tree, address))


def override_at(tree: Transaction, place: str) -> str | None:
    """Return the ``driver_override`` of the function with this directory."""
    text = tree.read(f"{place}/driver_override")
    return None if text == functions.NO_OVERRIDE else text.removesuffix("\n")


def set_override(tree: Transaction, address: str, text: str) -> None:
    """Do as driver_set_override() in drivers/base/driver.c."""
    if len(text) >= 4095:
        raise refuse(errno.EINVAL, address)
    line = text.partition("\n")[0]
    path = f"{functions.place(tree, address)}/driver_override"
    tree.put(path, f"{line}\n" if line else functions.NO_OVERRIDE, 0o644)


def bind(tree: Transaction, address: str, name: str) -> None:
    """Do as bind_store() in drivers/base/bus.c."""
    driver = load(tree, name)
    if not _matches(tree, address, driver):
        raise refuse(errno.ENODEV, address)
    if owner(tree, address) is not None:
        raise refuse(errno.EBUSY, address)
    if not _owner_allows(tree, address, driver):
        raise refuse(errno.EBUSY, address)
    error = _probe(tree, address, driver)
    if error:
        raise refuse(error, address)


def attach(tree: Transaction, address: str) -> bool:
    """Offer a function to the drivers (device_attach()).

    The first to be registered is the first to be asked (bus_for_each_drv()). A
    driver whose probe fails is skipped, and to find none is no failure; but a group
    that a guest owns is a failure (``dma_configure`` in really_probe()).
    """
    if owner(tree, address) is not None:
        return True
    only = override(tree, address)
    names = _in_order(tree) if only is None else [only]
    for name in names:
        if not tree.exists(f"{_TABLE}/{name}"):
            continue
        driver = load(tree, name)
        if not _matches(tree, address, driver):
            continue
        if not _owner_allows(tree, address, driver):
            return False
        if not _probe(tree, address, driver):
            return True
    return True


def _in_order(tree: Transaction) -> list[str]:
    numbers = tree.list(_REGISTERED)
    return [tree.read(f"{_REGISTERED}/{number}") for number in numbers]


def probe(tree: Transaction, address: str) -> None:
    """Do as drivers_probe_store() in drivers/base/bus.c."""
    if not attach(tree, address):
        raise refuse(errno.EINVAL, address)


def unbind(tree: Transaction, address: str, name: str) -> None:
    """Do as unbind_store() in drivers/base/bus.c."""
    if owner(tree, address) != name:
        raise refuse(errno.ENODEV, address)
    detach(tree, address)


def detach(tree: Transaction, address: str) -> None:
    """Unbind a function from its driver.

    The links are removed first (driver_sysfs_remove()), even if the rest fails.

    :raises Blocked: a process holds it, or a mediated device of it
        (vfio_unregister_group_dev()); call this again when none does.
    """
    name = owner(tree, address)
    if name is None:
        return
    path = functions.place(tree, address)
    tree.drop(f"{DRIVERS}/{name}/{address}")
    tree.drop(f"{path}/driver")
    mark = f"{_LEAVING}/{address}"
    tree.put(mark, name)
    vfio.leave(tree, path)
    if holders.holds(tree, address):
        raise holders.Blocked(address)
    function = functions.spec(tree, address)
    if name == function.driver and function.mdevs:
        mdevs.unregister(tree, address, path)
    tree.drop(mark)
    vfio.unregister(tree, address)
    if name == function.driver:
        functions.hide_devices(tree, path, function.class_devices)
        holders.lose(tree)
        tree.drop(f"{CONTROLLERS}/{address}")
        for attribute, _text in function.shown:
            tree.drop(f"{path}/{attribute}")
        vendor_attributes.hide(tree, address)
        qat.hide(tree, address)
    if name == dfl.DRIVER:
        dfl.hide(tree, address)


def _matches(tree: Transaction, address: str, driver: DriverSpec) -> bool:
    """Match as pci_match_device(): an override admits its driver alone, for any id."""
    only = override(tree, address)
    if only is not None:
        return only == driver.name
    path = functions.place(tree, address)
    ids = (int(tree.read(f"{path}/vendor"), 16), int(tree.read(f"{path}/device"), 16))
    return ids in driver.ids


def check_open(tree: Transaction, address: str) -> None:
    """Check that a guest can open a function.

    :raises OSError: ENODEV: VFIO does not offer it; EPERM: the driver of a member
        keeps its group from a guest (iommu_device_claim_dma_owner() in
        drivers/iommu/iommu.c).
    """
    if not vfio.is_registered(tree, address) or is_leaving(tree, address):
        raise refuse(errno.ENODEV, address)
    group = functions.group_of(tree, address)
    for each in () if group is None else functions.members(tree, group):
        name = owner(tree, each)
        # A driver that offers a function, such as NVIDIA's, leaves DMA to VFIO.
        if name is None or vfio.is_registered(tree, each):
            continue
        if not load(tree, name).manages_dma:
            raise refuse(errno.EPERM, each)


def _owner_allows(tree: Transaction, address: str, driver: DriverSpec) -> bool:
    """Do as iommu_device_use_default_domain()."""
    if driver.manages_dma:
        return True
    return not holders.holds_group(tree, functions.group_of(tree, address))


def _probe(tree: Transaction, address: str, driver: DriverSpec) -> int:
    """Bind a driver to a function; return 0 or the error number of its probe."""
    path = functions.place(tree, address)
    pf = functions.physfn(tree, address)
    # pci_device_can_probe(): without autoprobe only an override admits a driver.
    if pf is not None and override(tree, address) is None:
        autoprobe = f"{functions.place(tree, pf)}/sriov_drivers_autoprobe"
        if tree.read(autoprobe).strip() == "0":
            return errno.ENODEV
    function = functions.spec(tree, address)
    if function.ids in driver.rejects:
        return errno.EINVAL
    if driver.name == "nvme" and not nvme_resources.runs(tree, address):
        return errno.ENODEV
    if is_vfio_driver(driver.name):
        error = vfio.register(tree, address)
        if error:
            return error
    tree.link(f"{path}/driver", f"{DRIVERS}/{driver.name}")
    tree.link(f"{DRIVERS}/{driver.name}/{address}", path)
    known = "".join(f"{name}\n" for name in history(tree, address))
    tree.put(f"{_BOUND}/{address}", f"{known}{driver.name}\n")
    if driver.name == function.driver:
        functions.show_devices(tree, path, function.class_devices)
        for attribute, text in function.shown:
            tree.put(f"{path}/{attribute}", f"{text}\n")
        vendor_attributes.show(tree, address, stay=False)
        qat.show(tree, address)
        if function.mdevs:
            mdevs.register(tree, address, function.mdevs, path)
    if driver.name == dfl.DRIVER:
        dfl.show(tree, address)
    return 0
