# SPDX-License-Identifier: Apache-2.0

"""What of the devices the host itself uses.

Only what an ordinary user can see: a process that has opened a block device
without claiming it, another network or mount namespace, or a member of a ZFS
pool is not found here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from os_acc.host.usage import block, display, network
from os_acc.host.view import Host
from os_acc.objects.pci import PciAddress


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What the host uses, at one moment: a sentence for each function."""

    by_function: Mapping[PciAddress, str]

    def of(self, address: PciAddress) -> str | None:
        """What the host uses of a function; None where nothing."""
        return self.by_function.get(address)


def read_usage(root: str, host: Host) -> Usage:
    """Look at all functions of a scan at once.

    :raises HostStepFailed: the kernel refuses to say: then nobody knows.
    """
    found: dict[PciAddress, str] = {}
    for uses in (
        block.read_uses(root),
        network.read_uses(root),
        display.read_uses(root, host),
    ):
        for address, sentence in uses:
            found.setdefault(address, sentence)
    return Usage(MappingProxyType(found))


def host_uses(root: str, host: Host, address: PciAddress) -> str | None:
    """What the host uses of one function now; None where nothing.

    :raises HostStepFailed: the kernel refuses to say: then nobody knows.
    :raises DeviceNotFound: there was no such function in the scan.
    """
    host.function(address)
    return read_usage(root, host).of(address)
