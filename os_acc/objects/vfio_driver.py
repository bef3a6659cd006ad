# SPDX-License-Identifier: Apache-2.0

"""The VFIO drivers that a function can have while a guest has it."""

from __future__ import annotations

import enum
from typing import Final


class VfioDriver(enum.StrEnum):
    """A VFIO driver, by the name of its directory in ``/sys/bus/pci/drivers``.

    The name is ``pci_driver.name`` in ``drivers/vfio/pci``; most drivers have the name
    of their module there, with underscores. No other driver is bound for a guest.
    """

    VFIO_PCI = "vfio-pci"
    #: NVIDIA vGPU Manager for Linux 6.8 and later. It drives the function on the host
    #: as well, and is never bound by os_acc.
    NVIDIA = "nvidia"
    MLX5 = "mlx5_vfio_pci"
    HISI_ACC = "hisi_acc_vfio_pci"
    PDS = "pds_vfio_pci"
    NVGRACE_GPU = "nvgrace_gpu_vfio_pci"
    VIRTIO = "virtio_vfio_pci"
    QAT = "qat_vfio_pci"
    XE = "xe-vfio-pci"

    @property
    def drives_host(self) -> bool:
        """Whether the host has the function on this driver, too.

        Then the driver does not tell a function of a guest from one of the host, and
        a reset is the driver's own.
        """
        return self is VfioDriver.NVIDIA

    @property
    def module(self) -> str:
        """The name of its module, as in ``modules.alias``."""
        return self.value.replace("-", "_")


VFIO_PCI: Final = VfioDriver.VFIO_PCI.value

#: The value of ``vfio_driver`` in ``device_spec`` that follows the kernel's modules.
AUTO: Final = "auto"
#: Drivers that are bound for a guest, and for nothing else.
GUEST_DRIVERS: Final = frozenset(
    each.value for each in VfioDriver if not each.drives_host
)
#: Every driver that a function in a guest can have.
ALL_DRIVERS: Final = frozenset(each.value for each in VfioDriver)
