# SPDX-License-Identifier: Apache-2.0

"""Lock files of devices, one for each function, slot and parent of this host.

A lock file stays until a reboot, since it has the device's epoch. A caller that could
name anything and get one would fill ``/run``, and no record could be written any more.
Records, marks and notes need a lock, so that their number is limited here as well.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from os_acc.objects.mdev import DeviceAddress, MdevType
from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel, pci_functions, privileged_conf, record
from os_acc.privsep.kernel import LOCKS
from os_acc.privsep.outcome import CallRefused, Outcome

_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
# The kernel does not number slots. Other types of a parent may use the capacity that a
# leased slot with a high number had before a reboot.
_SLOTS: Final = 64
#: The step of an answer about a type that its parent does not offer.
TYPES: Final = "mdev_supported_types"


def open_lock(address: DeviceAddress) -> int:
    """Open the lock file of a device, which is made for a device of this host.

    :raises CallRefused: see :func:`check`.
    """
    check(address)
    return _open(_path(address))


def open_parent(parent: PciAddress | str) -> int:
    """Open the lock file that steps for the devices of a parent share.

    It is not the parent's own lock: calls for the parent continue.

    :param parent: a function, or the name of a virtual parent of mediated devices.
    :raises CallRefused: it does not exist.
    """
    if isinstance(parent, PciAddress):
        pci_functions.check_exists(parent)
    else:
        check_parent(parent)
    return _open(kernel.current.path(LOCKS, f"parent@{parent}"))


def _open(path: str) -> int:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    return os.open(path, _FLAGS | os.O_CREAT, 0o600)


def check(address: DeviceAddress) -> None:
    """Check that a device has a lock file, or may get one.

    A function has to exist, which bounds the number of files; the job checks the
    permission later, since it depends on the group. A slot is checked here, since a
    type has many: root's configuration has to name it, and its parent to offer it.

    :raises CallRefused: it may not.
    """
    if os.path.lexists(_path(address)) or record.exists(address):
        return
    if isinstance(address, PciAddress):
        pci_functions.check_exists(address)
        return
    check_type(address.type)
    if not privileged_conf.current().allows_mdev(address.type):
        raise privileged_conf.denied()
    if address.number >= max(_SLOTS, _instances(address.type)):
        raise CallRefused(Outcome.REFUSED, errno.ENOSPC, "available_instances")


def check_type(kind: MdevType) -> None:
    """Raise CallRefused, GONE, unless a parent is there and offers a type."""
    types = os.path.join(_parent_directory(kind.parent), TYPES)
    if os.path.isdir(os.path.join(types, kind.name)):
        return
    try:
        found = ", ".join(sorted(os.listdir(types)))
    except FileNotFoundError:
        raise CallRefused(Outcome.GONE, errno.ENODEV, "mdev_bus") from None
    raise CallRefused(Outcome.GONE, errno.ENODEV, TYPES, found)


def check_parent(name: str) -> None:
    """Raise CallRefused, GONE, unless a parent of mediated devices is there."""
    if not os.path.isdir(_parent_directory(name)):
        raise pci_functions.gone()


def _parent_directory(name: str) -> str:
    return kernel.current.path("sys/class/mdev_bus", name)


def type_directory(kind: MdevType) -> str:
    """Return the directory of a type."""
    return os.path.join(_parent_directory(kind.parent), TYPES, kind.name)


def _instances(kind: MdevType) -> int:
    """Return the number of mediated devices of a type, present and possible."""
    path = type_directory(kind)
    available = kernel.current.read(os.path.join(path, "available_instances")).strip()
    present = len(os.listdir(os.path.join(path, "devices")))
    return present + int(available) if available.isdecimal() else present


def _path(address: DeviceAddress) -> str:
    return kernel.current.path(LOCKS, record.name_of(address))
