# SPDX-License-Identifier: Apache-2.0

"""The subjects of VFIO's answers about migration: model, driver, and its version."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from os_acc.host import mdev
from os_acc.host.attributes import link_name, read_text
from os_acc.host.pci import Host
from os_acc.objects.device import AttachHandle, Device
from os_acc.objects.drivers import VFIO_PCI
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import MdevSlot
from os_acc.objects.migration import TRAIT, MigrationSupport
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.store import state_files


def profile_of(
    root: str, handle: AttachHandle, identity: PciIdentity | None
) -> str | None:
    """Return the model, the type, the driver and its version; None: vfio-pci.

    vfio-pci itself answers ENOTTY for every device, and a question would reset it
    (vfio_pci_ops in drivers/vfio/pci/vfio_pci.c has no migration). The version of a
    driver without one of its own is that of the kernel. A virtual parent has no
    driver, and the name of its module (samples/vfio-mdev).

    :param identity: of the function, or of the parent of a mediated device; None: a
        virtual parent.
    :raises HostStepFailed: the kernel reports an error.
    """
    slot = handle.address if isinstance(handle.address, MdevSlot) else None
    if slot is None:
        if handle.driver == VFIO_PCI:
            return None
        driver, what, named = handle.driver, f"{handle.vgpu_type}", ""
        place = f"sys/bus/pci/drivers/{driver}"
    else:
        place, what = f"{mdev.PARENTS}/{slot.type.parent}/driver", slot.type.name
        driver = link_name(os.path.join(root, place)) or ""
        named = "" if driver else slot.type.parent
    module = link_name(os.path.join(root, place, "module")) or named
    version = _version(root, module) or _release(root)
    model = identity or (slot and slot.type.parent)
    return f"{model} {what} {driver} {version}"


def subject_of(
    root: str, handle: AttachHandle, identity: PciIdentity | None
) -> str | None:
    """Return what an answer is about: a profile, and the release of the kernel."""
    profile = profile_of(root, handle, identity)
    return profile and f"{profile} on {_release(root)}"


def subject_of_lease(root: str, lease: Lease) -> str | None:
    """Return the subject of the device of a lease; see :func:`subject_of`."""
    return subject_of(root, lease.handle, identity_of(lease))


def subject_of_device(root: str, host: Host, device: Device) -> str | None:
    """Return the subject of the first handle of a device; see :func:`subject_of`."""
    handle, identity = device.handles[0], device.identity
    if isinstance(handle.address, PciAddress):
        identity = host.functions[handle.address].identity
    return subject_of(root, handle, identity)


def supports(
    root: str, host: Host, devices: Sequence[Device], state_path: str
) -> list[MigrationSupport | None]:
    """Return the answer for each device; None: VFIO has not been asked.

    :raises HostStepFailed: the kernel reports an error.
    """
    subjects = [subject_of_device(root, host, each) for each in devices]
    answers = state_files.recorded_migrations(state_path) if any(subjects) else {}
    return [answers.get(each) if each else MigrationSupport() for each in subjects]


def published(device: Device, support: MigrationSupport | None) -> Device:
    """Return a device, with the trait if guests can move with it."""
    if support is None or not support.is_migratable:
        return device
    if not all(each.live_migratable for each in device.handles):
        return device
    return dataclasses.replace(device, traits=device.traits | {TRAIT})


def identity_of(lease: Lease) -> PciIdentity | None:
    """Return the identity of the function of a lease, or of its parent."""
    own = (each.identity for each in lease.prior if each.address == lease.address)
    return next(own, lease.parent)


def unanswered(root: str, state_path: str, lease: Lease) -> str | None:
    """Return the subject of a lease about which VFIO has to be asked, or None.

    :raises HostStepFailed: the kernel reports an error.
    """
    subject = subject_of_lease(root, lease)
    if subject and subject in state_files.recorded_migrations(state_path):
        return None
    return subject


def _release(root: str) -> str:
    return read_text(os.path.join(root, "proc/sys/kernel/osrelease")) or ""


def _version(root: str, module: str) -> str:
    """Return the version of a module, or a checksum of its sources; '': neither."""
    if not module:
        return ""
    place = os.path.join(root, "sys/module", module)
    found = (read_text(os.path.join(place, each)) for each in ("version", "srcversion"))
    return next(filter(None, found), "")
