# SPDX-License-Identifier: Apache-2.0

"""Devices registered by drivers in ``/sys/class``, or on a bus."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from os_acc.exception import HostStepFailed, InvalidInput
from os_acc.host.attributes import link_target
from os_acc.objects.pci import PciAddress


@dataclasses.dataclass(frozen=True, slots=True)
class ClassDevice:
    """One device of a class or bus.

    :ivar path: its directory, below the root.
    :ivar owner: its PCI function; None for a virtual device.
    :ivar ancestors: the names of its ancestors, topmost first.
    """

    name: str
    path: str
    owner: PciAddress | None
    ancestors: tuple[str, ...]


def class_devices(root: str, class_name: str) -> list[ClassDevice]:
    """Return the devices of one class, sorted by name; none if it is missing.

    :raises HostStepFailed: the class exists and cannot be read.
    """
    return devices_in(root, f"sys/class/{class_name}")


def devices_in(root: str, listing: str) -> list[ClassDevice]:
    """Return the devices of a directory of links, sorted by name; none if missing.

    :param listing: the directory, below the root.
    :raises HostStepFailed: it exists and cannot be read.
    """
    directory = os.path.join(root, listing)
    found = []
    for name in _links(directory):
        path = f"{directory}/{name}"
        target = link_target(path)
        if target is not None:
            ancestors = tuple(target.split("/")[:-1])
            owner = nearest_function(ancestors)
            found.append(ClassDevice(name, path, owner, ancestors))
    return found


def _links(directory: str) -> list[str]:
    # A class may contain plain files: /sys/class/net/bonding_masters.
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_symlink())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HostStepFailed(
            f"cannot list {directory}: {error.strerror}", errno=error.errno or 0
        ) from error


def nearest_function(ancestors: Sequence[str]) -> PciAddress | None:
    """Return the last PCI function of a path; those before it are bridges."""
    for name in reversed(ancestors):
        # Cheaper than an exception for each name of another form.
        if ":" in name and "." in name:
            try:
                return PciAddress.parse(name)
            except InvalidInput:
                continue
    return None
