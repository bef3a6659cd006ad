# SPDX-License-Identifier: Apache-2.0

"""Matching a PCI function against a device specification."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from os_acc.objects.claim import DeviceTags
from os_acc.objects.device_spec.address import LIMITS, Netdev, Place
from os_acc.objects.pci import PciAddress, PciFunction, PciRole

#: Nova cannot match a device in a domain above this.
NOVA_HIGHEST_DOMAIN: Final = 0xFFFF


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSpecEntry:
    """One specification; ``vendor`` and ``product`` None mean any."""

    vendor: int | None
    product: int | None
    place: Place
    tags: DeviceTags

    def matches(
        self,
        function: PciFunction,
        netdevs: Mapping[str, PciAddress],
        functions: Mapping[PciAddress, PciFunction],
    ) -> bool:
        """Whether this names the function, directly or through its PF.

        Vendor and product are always those of the function itself. An entry
        that names a single address names its VFs as well if it is a PF.
        """
        identity = function.identity
        if self.vendor not in (None, identity.vendor):
            return False
        if self.product not in (None, identity.product):
            return False
        if self.place.matches(function.address):
            return True
        single = self.place.single(netdevs)
        if single is None:
            return False
        if single == function.address:
            return True
        named = functions.get(single)
        is_pf = named is not None and named.role is PciRole.PF
        return is_pf and function.physfn == single


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Specifications in the order in which they were given.

    :ivar highest_domain: functions in a PCI domain above it never match.
    """

    entries: tuple[DeviceSpecEntry, ...] = ()
    highest_domain: int = LIMITS["domain"]

    @property
    def wants_vfs(self) -> bool:
        """Whether any entry asks for VFs to be made."""
        return any(entry.tags.num_vfs is not None for entry in self.entries)

    @property
    def interfaces(self) -> frozenset[str]:
        """Return the network interfaces that entries name."""
        places = (entry.place for entry in self.entries)
        return frozenset(each.name for each in places if isinstance(each, Netdev))

    @property
    def resource_classes(self) -> frozenset[str]:
        """Those that entries give devices."""
        found = (entry.tags.resource_class for entry in self.entries)
        return frozenset(each for each in found if each)

    def match(
        self,
        function: PciFunction,
        netdevs: Mapping[str, PciAddress],
        functions: Mapping[PciAddress, PciFunction],
    ) -> DeviceTags | None:
        """The tags of the first entry that names the function, or None.

        A VF has no VFs of its own: ``num_vfs`` is None for it even where the
        entry that names it has one.

        :param netdevs: the PCI function behind each network interface.
        :param functions: all PCI functions of the host.
        """
        if function.address.domain > self.highest_domain:
            return None
        for entry in self.entries:
            if entry.matches(function, netdevs, functions):
                if function.role is PciRole.VF and entry.tags.num_vfs is not None:
                    return dataclasses.replace(entry.tags, num_vfs=None)
                return entry.tags
        return None
