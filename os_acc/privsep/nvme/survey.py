# SPDX-License-Identifier: Apache-2.0

"""Find an NVMe function's controller, and what its erasure would reach."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import TypeVar

from os_acc.objects.nvme_erasure import NvmeDevice
from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel, pci_functions
from os_acc.privsep.nvme.commands import AdminQueue

DRIVER = "nvme"
#: Seconds that the driver may take to bring up a controller and its disks.
READY_SECONDS = 60.0
_POLL_SECONDS = 0.05

_T = TypeVar("_T")


def wait_for_queue(function: PciAddress) -> AdminQueue:
    """Return the admin queue of a function on the nvme driver, once it is live.

    :raises OSError: ENODEV: the controller is dead, or the driver left; ETIMEDOUT.
    """

    def find() -> AdminQueue | None:
        directory = controller_directory(function)
        if directory is not None and read(directory, "state") == "dead":
            raise OSError(errno.ENODEV, "the controller is dead", "state")
        return live_queue(function)

    return wait_for("controller", function, find)


def live_queue(function: PciAddress) -> AdminQueue | None:
    """Return the admin queue of a function; None: it has no live controller."""
    directory = controller_directory(function)
    if directory is None:
        return None
    state = read(directory, "state")
    device = read(directory, "dev")
    if state not in ("", "live") or not device:
        return None
    return AdminQueue(kernel.current.path("dev", os.path.basename(directory)), device)


def survey(function: PciAddress, queue: AdminQueue) -> NvmeDevice:
    """Return all that an erasure of a function could reach.

    :param queue: of the function itself.
    """
    controller = queue.controller()
    manager = manager_of(function) or queue
    is_vf = manager is not queue
    lists = (manager.controller() if is_vf else controller).manages
    active, own = queue.active(), {controller.number}
    namespaces = tuple(map(queue.namespace, active))
    shared = (
        each.number
        for each in namespaces
        if each.is_shareable and not (lists and manager.attached(each.number) <= own)
    )
    # Without Namespace Management, every namespace is attached.
    allocated = manager.allocated() if lists else ()
    neighbours: frozenset[int] | None = frozenset()
    if controller.shares_subsystem or is_vf:
        neighbours = manager.controllers() - own if lists else None
        if neighbours and not is_vf and controller.virtualizes:
            # The caller has made sure that a drive has no VFs now.
            neighbours -= {each.number for each in manager.secondaries()}
    return NvmeDevice(
        controller=controller,
        namespaces=namespaces,
        shared=tuple(shared),
        unattached=tuple(number for number in allocated if number not in active),
        neighbours=neighbours,
        is_vf=is_vf,
    )


def manager_of(function: PciAddress) -> AdminQueue | None:
    """Return the admin queue of a VF's PF; None: it is no VF.

    :raises OSError: ENODEV: the PF has no live controller on the host.
    """
    physical = pci_functions.physical_function(function)
    if physical is None:
        return None
    queue = live_queue(physical)
    if queue is None:
        text = f"the PF {physical} has no live controller on the host"
        raise OSError(errno.ENODEV, text, "nvme")
    return queue


def lacks_of_vfs(physical: PciAddress, queue: AdminQueue) -> dict[PciAddress, str]:
    """Return for each VF of a PF why no driver can run it; '' if one can.

    :param queue: of the PF.
    """
    if not any(each.total for each in queue.flexible_resources()):
        return {}
    vfs = pci_functions.numbered_vfs(physical)
    found = (each for each in queue.secondaries() if each.vf_number in vfs)
    return {vfs[each.vf_number]: each.lack for each in found}


def attached_to_vf(function: PciAddress, manager: AdminQueue) -> tuple[int, ...] | None:
    """Return the NSIDs attached to a VF, from its PF.

    :param manager: the admin queue of its PF.
    :returns: None: the PF does not list them, or not the VF itself.
    """
    controller = manager.controller()
    physical = pci_functions.physical_function(function)
    if physical is None or not controller.manages or not controller.virtualizes:
        return None
    vfs = pci_functions.numbered_vfs(physical)
    own = {
        each.number
        for each in manager.secondaries()
        if vfs.get(each.vf_number) == function
    }
    if not own:
        return None
    return tuple(nsid for nsid in manager.allocated() if manager.attached(nsid) & own)


def controller_directory(function: PciAddress) -> str | None:
    """Return the directory of the only controller of a function on its driver."""
    is_on_driver = pci_functions.driver(function) == DRIVER
    return pci_functions.controller(function) if is_on_driver else None


def read(place: str, attribute: str) -> str:
    """Return an attribute; '' if there is none."""
    try:
        return kernel.current.read(os.path.join(place, attribute)).strip()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
            return ""
        raise


def wait_for(what: str, function: PciAddress, find: Callable[[], _T | None]) -> _T:
    """Return what ``find`` returns once it is not None, until a function is ready.

    :raises OSError: ENODEV: the driver has left the function; ETIMEDOUT.
    """
    deadline = time.monotonic() + READY_SECONDS
    while (found := find()) is None:
        if pci_functions.driver(function) != DRIVER:
            raise OSError(errno.ENODEV, "the nvme driver has left the function", what)
        if time.monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, "the nvme driver is not ready", what)
        time.sleep(_POLL_SECONDS)
    return found
