# SPDX-License-Identifier: Apache-2.0

"""The subjects of VFIO's answers about migration: model, driver, and its version."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from os_acc.host.attributes import link_name, read_text
from os_acc.host.pci import Host
from os_acc.objects.device import AttachHandle, Device
from os_acc.objects.drivers import VFIO_PCI
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import MdevSlot
from os_acc.objects.migration import TRAIT, MigrationSupport
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.store import state_files

_PARENTS = "sys/class/mdev_bus"


def subject_of(
    root: str, handle: AttachHandle, identity: PciIdentity | None
) -> str | None:
    """Return what an answer is about; None: VFIO need not be asked.

    vfio-pci itself answers ENOTTY for every device, and a question would reset it
    (vfio_pci_ops in drivers/vfio/pci/vfio_pci.c has no migration).

    :param identity: of the function, or of the parent of a mediated device; None: a
        virtual parent.
    :raises HostStepFailed: the kernel reports an error.
    """
    slot = handle.address if isinstance(handle.address, MdevSlot) else None
    if slot is None:
        if handle.driver == VFIO_PCI:
            return None
        place, what = f"sys/bus/pci/drivers/{handle.driver}", f"{handle.vgpu_type}"
    else:
        place, what = f"{_PARENTS}/{slot.type.parent}/driver", slot.type.name
    release = read_text(os.path.join(root, "proc/sys/kernel/osrelease")) or ""
    module = link_name(os.path.join(root, place, "module")) or ""
    model = identity or (slot and slot.type.parent)
    return " ".join((str(model), what, module, _version(root, module), release))


def supports(
    root: str, host: Host, devices: Sequence[Device], state_path: str
) -> list[MigrationSupport | None]:
    """Return the answer for each device; None: VFIO has not been asked.

    :raises HostStepFailed: the kernel reports an error.
    """
    answers: dict[str, MigrationSupport] | None = None
    found: list[MigrationSupport | None] = []
    for device in devices:
        identity = device.identity
        for handle in device.handles[:1]:
            if isinstance(handle.address, PciAddress):
                identity = host.functions[handle.address].identity
            if (subject := subject_of(root, handle, identity)) is None:
                found.append(MigrationSupport())
                continue
            if answers is None:
                answers = state_files.recorded_migrations(state_path)
            found.append(answers.get(subject))
        if not device.handles:
            found.append(None)
    return found


def published(device: Device, support: MigrationSupport | None) -> Device:
    """Return a device, with the trait if guests can move with it."""
    is_tagged_off = any(not each.live_migratable for each in device.handles)
    if support is None or not support.is_migratable or is_tagged_off:
        return device
    return dataclasses.replace(device, traits=device.traits | {TRAIT})


def subject_of_lease(root: str, lease: Lease) -> str | None:
    """Return the subject of the device of a lease; see :func:`subject_of`."""
    identity = lease.parent
    for each in lease.prior:
        if each.address == lease.address:
            identity = each.identity
    return subject_of(root, lease.handle, identity)


def unanswered(root: str, state_path: str, lease: Lease) -> str | None:
    """Return the subject of a lease about which VFIO has to be asked, or None.

    :raises HostStepFailed: the kernel reports an error.
    """
    subject = subject_of_lease(root, lease)
    if subject and subject in state_files.recorded_migrations(state_path):
        return None
    return subject


def _version(root: str, module: str) -> str:
    """Return the version of a module, or a checksum of its sources; '': neither."""
    if not module:
        return ""
    place = os.path.join(root, "sys/module", module)
    found = (read_text(os.path.join(place, each)) for each in ("version", "srcversion"))
    return next(filter(None, found), "")
