# SPDX-License-Identifier: Apache-2.0

"""The VFIO driver of a function in a guest: vfio-pci, a variant, or its own driver."""

from __future__ import annotations

from os_acc.host import modules, vfio, vgpu
from os_acc.objects.candidate import DeviceTags
from os_acc.objects.pci import PciFunction
from os_acc.objects.vfio_driver import ALL_DRIVERS, AUTO, VFIO_PCI, VfioDriver


def driver_of(root: str, function: PciFunction, tags: DeviceTags) -> str:
    """Return the driver that a named function has while a guest has it.

    It may be one that this host lacks, or that os_acc does not know: see
    :func:`missing`.

    :raises HostStepFailed: ``modules.alias`` exists and cannot be read.
    """
    if tags.vgpu_type:
        return VfioDriver.NVIDIA.value
    if tags.vfio_driver != AUTO:
        return tags.vfio_driver
    module = modules.best_vfio_module(root, function)
    known = {each.module: each.value for each in VfioDriver}
    return VFIO_PCI if module is None else known.get(module, module)


def missing(root: str, driver: str) -> str | None:
    """Return why no function of this host can have a driver for a guest, or None."""
    if driver not in ALL_DRIVERS:
        return f"os_acc does not know {driver}; set vfio_driver to {VFIO_PCI}"
    if not vfio.has_driver(root, driver):
        module = VfioDriver(driver).module
        return f"run 'modprobe {module}', and load it at boot"
    return None


def without_vgpus(root: str, function: PciFunction) -> str | None:
    """Return why a function cannot be a vGPU on NVIDIA's driver, or None.

    :raises HostStepFailed: the kernel reports an error.
    """
    if function.physfn is None:
        return "it is no VF; enable VFs with NVIDIA's sriov-manage"
    if function.driver != VfioDriver.NVIDIA:
        return f"it is bound to {function.driver or 'no driver'}, not to nvidia"
    if vgpu.current_type(root, function.address) is None:
        return "it has no nvidia/current_vgpu_type; its card may have mdev_types"
    return None
