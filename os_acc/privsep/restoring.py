# SPDX-License-Identifier: Apache-2.0

"""Restore the binding of a function; see :mod:`.binding`."""

from __future__ import annotations

import errno
from typing import Final

from os_acc.objects.dfl import DRIVER
from os_acc.objects.pci import PciAddress
from os_acc.objects.vfio_driver import is_vfio_driver
from os_acc.privsep import dfl, disks, functions, kernel
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.targets import BindTarget

#: The step of a refusal because a process has the IOMMU group open.
HELD: Final = "vfio"

_METHODS = "reset_method"


def restore(target: BindTarget, proven_free: bool) -> CallResult:
    """Restore the driver and the override of a target.

    :param proven_free: whether the caller checked for holders.
    """
    address = target.address
    # 1. No process may hold the function: a write would wait for the holder. The
    #    driver link is no evidence: a device being removed has already lost it. The
    #    reset of a bus opens the group itself, once libvirt has given it back to root.
    if not proven_free or functions.resets_with_bus(address):
        found = held(target.group)
        if found is not None:
            return found
    if is_vfio_driver(functions.driver(address)):
        # 2. Leave no data for the next user. VFIO resets when the last holder
        #    closes the device, but does not report a failed reset.
        reset(address)
    node = None if target.driver == DRIVER else dfl.held(address)
    if node is not None:
        return CallResult(Outcome.IN_USE, errno.EBUSY, node)
    # 3. Back to the prior driver; once more, in case the first probe had no
    #    effect.
    for _attempt in range(2):
        if functions.driver(address) != target.driver:
            _rebind(target)
    # 4. Until the driver is bound, its override keeps other drivers away.
    if functions.driver(address) == target.driver:
        functions.set_override(address, target.override)
    return prove(address, target.driver, target.override)


def held(group: int) -> CallResult | None:
    """Return the refusal if a process holds an IOMMU group, or None."""
    error = kernel.current.probe_vfio_group(group)
    if error in (0, errno.ENOENT):
        return None
    if error == errno.EBUSY:
        return CallResult(Outcome.IN_USE, error, HELD)
    return CallResult(Outcome.UNSURE, error, HELD)


def reset(address: PciAddress) -> None:
    """Reset a function, so that it leaves no data for the next user.

    Without a reset method, either the operator allowed the device explicitly, or the
    first function of its bus was reset before, and this one with it.
    """
    if functions.resets_with_bus(address):
        try:
            reset_bus(address)
        except OSError as error:
            # The kernel does not reset this bus: take has failed, and no guest had it.
            if error.errno != errno.ENODEV:
                raise
        return
    try:
        functions.write(address, "reset", "1")
    except FileNotFoundError:
        return
    except OSError as error:
        # This method works only while a function is alone on its bus.
        if error.errno != errno.ENOTTY or functions.read(address, _METHODS) != "bus":
            raise


def reset_bus(address: PciAddress) -> None:
    """Reset a function and the others of its bus, which VFIO has.

    :raises OSError: they are not reset.
    """
    try:
        kernel.current.hot_reset(functions.group(address) or 0, str(address))
    except OSError as error:
        raise OSError(error.errno, error.strerror, "reset of its bus") from error


def _rebind(target: BindTarget) -> None:
    if target.driver:
        functions.rebind(target.address, target.driver)
    else:
        # It had no driver, and nothing probes it after the unbind.
        with disks.claimed(functions.directory(target.address)):
            functions.set_override(target.address, target.override)
            functions.unbind(target.address)


def prove(address: PciAddress, driver: str, override: str) -> CallResult:
    """Return whether a function has this driver and this override now."""
    found = functions.driver(address)
    if found != driver:
        return CallResult(Outcome.NO_EFFECT, 0, "driver", found)
    found = functions.override(address)
    if found != override:
        return CallResult(Outcome.NO_EFFECT, 0, "driver_override", found)
    return CallResult(Outcome.OK)
