# SPDX-License-Identifier: Apache-2.0

"""Privileged steps for NVMe controllers: erase between guests, and read their health.

The kernel demands CAP_SYS_ADMIN for each admin command (nvme_user_cmd() in
drivers/nvme/host/ioctl.c). CAP_DAC_READ_SEARCH opens the VFIO nodes that libvirt gave
to QEMU's user, to find holders. The steps therefore have a context of their own, which
is started at the first step: only where NVMe devices are offered.
"""

from __future__ import annotations

from oslo_privsep import capabilities

from os_acc import privsep

context = privsep.Context(
    "os_acc.privsep.nvme.context",
    "os_acc_nvme_helper",
    [capabilities.CAP_SYS_ADMIN, capabilities.CAP_DAC_READ_SEARCH],
    preload=["os_acc.privsep.nvme.steps", "os_acc.privsep.nvme.vf_resources"],
)
