# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Which PCI function is below which, from the paths of their devices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from os_acc.host.attributes import link_target
from os_acc.host.classes import nearest_function
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
