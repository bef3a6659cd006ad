# SPDX-License-Identifier: Apache-2.0

"""Which PCI function is below which, from the paths of their devices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from os_acc.host.attributes import link_target
from os_acc.host.class_devices import nearest_function
from os_acc.host.function import DEVICES
from os_acc.objects.pci import PciAddress


def read_parents(
    root: str, addresses: Iterable[PciAddress]
) -> Mapping[PciAddress, PciAddress]:
    """What is right above each function: a bridge, or an endpoint with a bus.

    What is on a root bus has nothing above it, and what has vanished neither. A VF
    is beside its PF, not below it (pci_iov_add_virtfn() in drivers/pci/iov.c).

    :raises HostStepFailed: the kernel refuses to say.
    """
    found = {}
    for address in addresses:
        target = link_target(os.path.join(root, DEVICES, str(address)))
        above = nearest_function(target.split("/")[:-1]) if target else None
        if above is not None:
            found[address] = above
    return MappingProxyType(found)
