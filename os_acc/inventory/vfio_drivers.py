# SPDX-License-Identifier: Apache-2.0

"""The VFIO driver of a function in a guest: vfio-pci, a variant, or its own driver."""

from __future__ import annotations

from os_acc import exception
from os_acc.host import modules, vfio, vgpu
from os_acc.objects.candidate import DeviceTags
from os_acc.objects.pci import PciFunction
from os_acc.objects.vfio_driver import AUTO, NVIDIA, VFIO_PCI, is_vfio_driver


def driver_of(root: str, function: PciFunction, tags: DeviceTags) -> str:
    """Return the driver that a named function has while a guest has it.

    It may be one that this host lacks: see :func:`missing`.

    :raises HostStepFailed: ``modules.alias`` exists and cannot be read.
    """
    if tags.vgpu_type:
        return NVIDIA
    if tags.vfio_driver != AUTO:
        return tags.vfio_driver
    module = modules.best_vfio_module(root, function)
    if module is None:
        return VFIO_PCI
    # Most drivers have the name of their module; that of xe_vfio_pci has hyphens.
    other = module.replace("_", "-")
    return other if vfio.has_driver(root, other) else module


def missing(
    root: str, function: PciFunction, tags: DeviceTags, driver: str
) -> str | None:
    """Return why a function cannot have a driver for a guest, or None."""
    if is_vfio_driver(driver):
        return None if vfio.has_driver(root, driver) else _unloaded(root, driver)
    if tags.vfio_driver == AUTO:
        return f"modules.alias names {driver}, which is no variant of {VFIO_PCI}"
    if function.driver != driver:
        found = function.driver or "no driver"
        near = exception.nearest(driver, {AUTO, VFIO_PCI, *vfio.drivers(root)})
        meant = f"; did you mean {near!r}?" if near not in (None, driver) else ""
        return f"it is bound to {found}, not to {driver}{meant}"
    return None


def _unloaded(root: str, driver: str) -> str:
    for name in (driver.replace("_", "-"), driver.replace("-", "_")):
        if vfio.has_driver(root, name):
            return f"the name of the driver is {name}"
    return vfio.load_hint(driver)


def without_vgpus(root: str, function: PciFunction) -> str | None:
    """Return why a function cannot be a vGPU on NVIDIA's driver, or None.

    :raises HostStepFailed: the kernel reports an error.
    """
    if function.physfn is None:
        return "it is no VF; enable VFs with NVIDIA's sriov-manage"
    if function.driver != NVIDIA:
        return f"it is bound to {function.driver or 'no driver'}, not to nvidia"
    if vgpu.current_type(root, function.address) is None:
        return "it has no nvidia/current_vgpu_type; its card may have mdev_types"
    return None
