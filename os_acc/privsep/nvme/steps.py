# SPDX-License-Identifier: Apache-2.0

"""The steps that the NVMe plugin runs with ``steps.run()``.

A step covers all NVMe functions of the lease: an IOMMU group may have several.
"""

from __future__ import annotations

import errno

from os_acc.objects.nvme import CLASS
from os_acc.objects.nvme_erasure import EraseMethod
from os_acc.objects.pci import PciAddress
from os_acc.privsep import HealthReading, StepTarget, pci_functions
from os_acc.privsep.nvme import context, disks, erasing, survey


@context.step
def prepare(target: StepTarget, methods: tuple[str, ...]) -> None:
    """Check that the functions can be erased, and keep udev away from them.

    :raises OSError: see :func:`.erasing.check`; EINVAL: a method is unknown.
    """
    chosen = _parse(methods)
    for function in _nvme_functions(target):
        erasing.check(function, target.lease, chosen)


@context.step
def release(target: StepTarget) -> None:
    """Let udev see the disks of functions that no guest can have had."""
    for function in _nvme_functions(target):
        disks.unmark_unused(function)


@context.step
def erase(target: StepTarget, methods: tuple[str, ...]) -> int:
    """Start or continue to erase the functions; return the part done, in thousandths.

    :raises OSError: see :func:`.erasing.erase`; EINVAL: a method is unknown; EPERM: the
        helper has no record of a function for the lease.
    """
    chosen = _parse(methods)
    for function in _nvme_functions(target):
        # Without such a record, a caller could have any free drive erased that root's
        # configuration allows. A record made by prepare() has no eraser.
        if not erasing.recorded(function, target.lease).eraser:
            text = f"lease {target.lease} is not recorded as one whose device is erased"
            raise OSError(errno.EPERM, text, "record")
    done = [
        erasing.erase(function, target.lease, chosen)
        for function in _nvme_functions(target)
    ]
    return int(min(done, default=1.0) * 1000)


@context.health_step
def health(target: StepTarget, methods: tuple[str, ...]) -> HealthReading:
    """Read the SMART / Health Information log page of a function on the nvme driver.

    A drive that none of the methods can erase has a fault as well.

    :raises OSError: ENODEV: it is no NVMe function, or has no live controller;
        EREMOTEIO: the controller refused the command; EINVAL: a method is unknown.
    """
    chosen = _parse(methods)
    for function in _nvme_functions(target):
        queue = survey.live_queue(function)
        if queue is not None:
            found = queue.health()
            fault = f"is out of order: {found.fault}" if found.fault else ""
            return fault or erasing.refusal(function, queue, chosen), found.readings
    raise OSError(errno.ENODEV, "it has no live controller on the host", "nvme")


def _parse(methods: tuple[str, ...]) -> tuple[EraseMethod, ...]:
    try:
        return tuple(map(EraseMethod, methods))
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), "erase_methods") from error


def _nvme_functions(target: StepTarget) -> tuple[PciAddress, ...]:
    return tuple(
        function
        for function in target.functions
        if int(pci_functions.read(function, "class"), 16) == CLASS
    )
