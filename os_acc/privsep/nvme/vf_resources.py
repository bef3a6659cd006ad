# SPDX-License-Identifier: Apache-2.0

"""Give the VFs of an NVMe PF queues and interrupts, and bring them online.

NVM Express Base Specification 2.0, sections 5.26 and 8.26. A VF is offline, and no
driver can run it, until its PF has assigned it flexible resources.
"""

from __future__ import annotations

import errno

from os_acc.objects.nvme import (
    LEAST_INTERRUPTS,
    LEAST_QUEUES,
    FlexibleResources,
    SecondaryController,
)
from os_acc.objects.pci import PciAddress
from os_acc.privsep import pci_functions, request, sriov
from os_acc.privsep.nvme import context, survey
from os_acc.privsep.nvme.commands import AdminQueue, VirtualizationAction
from os_acc.privsep.outcome import OK, CallResult, refused

#: The step of an answer that is about the resources.
STEP = "virtualization"
_KINDS = (("queue", LEAST_QUEUES), ("interrupt", LEAST_INTERRUPTS))


@request.entrypoint(context, sriov.VfsRequest)
def share_resources(call: sriov.VfsRequest) -> CallResult:
    """Share the flexible resources of a PF among this many VFs.

    Before the VFs exist, check that the resources are enough, and take them from the
    PF: its reset would take VFs offline. A VF that has its resources keeps them, and
    one with a driver is left alone: a guest may have it.
    """
    return sriov.on_pf(call, _share)


def _share(address: PciAddress, count: int) -> CallResult:
    try:
        share_among(address, survey.wait_for_queue(address), count)
    except OSError as error:
        return refused(error)._replace(step=STEP, observed=str(error.strerror or error))
    return OK


def share_among(address: PciAddress, queue: AdminQueue, count: int) -> None:
    """Do as :func:`share_resources`, in the worker's child.

    :param queue: of the PF.
    :raises OSError: ENOSPC: the resources are too few; EREMOTEIO: the controller
        refused a command; EIO: a VF is not online then.
    """
    resources = queue.flexible_resources()
    shares = [
        _checked_share(name, each, count, least)
        for (name, least), each in zip(_KINDS, resources, strict=True)
    ]
    if not any(shares):
        # Its VFs have resources of their own.
        return
    vfs = pci_functions.numbered_vfs(address)
    if not vfs:
        _take_from_primary(address, queue, resources, shares, count)
    for each in queue.secondaries():
        vf = vfs.get(each.vf_number)
        if vf is not None and each.lack and not pci_functions.driver(vf):
            _bring_online(vf, queue, each, shares)


def _checked_share(
    name: str, resources: FlexibleResources, count: int, least: int
) -> int:
    share = resources.share(count, least)
    if resources.total and share < least:
        text = (
            f"its {resources.total} flexible {name} resources are too few for {count} "
            f"VFs, which need {least} each"
        )
        raise OSError(errno.ENOSPC, text)
    return share


def _take_from_primary(
    address: PciAddress,
    queue: AdminQueue,
    resources: tuple[FlexibleResources, FlexibleResources],
    shares: list[int],
    count: int,
) -> None:
    changed = False
    for kind, (each, share) in enumerate(zip(resources, shares, strict=True)):
        rest = each.total - count * share
        if each.primary > rest:
            action = VirtualizationAction.ALLOCATE_TO_PRIMARY
            queue.virtualize(action, queue.controller().number, kind, rest)
            changed = True
    if changed:
        # The allocation takes effect with a reset. The driver holds back the requests
        # of the host meanwhile.
        pci_functions.write(address, "reset", "1")
        survey.wait_for_queue(address)


def _bring_online(
    vf: PciAddress, queue: AdminQueue, found: SecondaryController, shares: list[int]
) -> None:
    for kind, (share, (_name, least)) in enumerate(zip(shares, _KINDS, strict=True)):
        if share and (found.queues, found.interrupts)[kind] < least:
            action = VirtualizationAction.ASSIGN
            queue.virtualize(action, found.number, kind, share)
    # The VF reads its resources anew.
    pci_functions.reset(vf)
    queue.virtualize(VirtualizationAction.ONLINE, found.number)
    now = next(e for e in queue.secondaries() if e.number == found.number)
    if now.lack:
        raise OSError(errno.EIO, f"{now.lack}, after it was to be online")
