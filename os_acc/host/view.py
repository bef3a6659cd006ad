# SPDX-License-Identifier: Apache-2.0

"""A snapshot of the host as one immutable value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

from os_acc.exception import (
    HostStepFailed,
    NotFound,
    ObjectKind,
    OsAccError,
    StepReason,
)
from os_acc.objects.mdev import DeviceName, MdevType, function_of
from os_acc.objects.pci import IommuGroup, PciAddress, PciFunction

#: A PF, or a parent that has a capacity of its own.
Card: TypeAlias = PciAddress | str


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """The result of one scan; the mappings are read-only and sorted by key.

    :ivar netdevs: the PCI function of each PCI network interface.
    :ivar unreadable: errors of unreadable objects, by name (a PCI address or
        ``iommu group <n>``); these objects are missing from the other mappings.
    """

    functions: Mapping[PciAddress, PciFunction]
    groups: Mapping[int, IommuGroup]
    netdevs: Mapping[str, PciAddress]
    unreadable: Mapping[str, OsAccError] = dataclasses.field(compare=False)

    def function(self, address: PciAddress) -> PciFunction:
        """Return one function.

        :raises NotFound: there is none at this address.
        """
        try:
            return self.functions[address]
        except KeyError as error:
            if (reason := self.unreadable.get(str(address))) is not None:
                raise NotFound(
                    f"{address} is unreadable: {reason}", kind=ObjectKind.DEVICE
                ) from reason
            raise NotFound(
                f"no PCI function {address} on this host", kind=ObjectKind.DEVICE
            ) from error

    def card_of(self, place: DeviceName) -> Card:
        """Return the PF whose VFs share one capacity, or the only parent that has it.

        :param place: a function, or a type of mediated devices.
        """
        address = function_of(place)
        if address is None:
            assert isinstance(place, MdevType)
            return place.parent
        function = self.functions.get(address)
        return function.physfn if function and function.physfn else address

    def group_of(self, address: PciAddress) -> IommuGroup:
        """Return the IOMMU group of one function.

        :raises NotFound: there is no function at this address.
        :raises HostStepFailed: it has no group, or the group is unreadable.
        """
        number = self.function(address).iommu_group
        if number is None:
            raise HostStepFailed(
                f"{address} is in no IOMMU group",
                address=str(address),
                reason=StepReason.IOMMU,
            )
        try:
            return self.groups[number]
        except KeyError as error:
            raise HostStepFailed(
                f"IOMMU group {number} of {address} cannot be read",
                address=str(address),
                hint=str(self.unreadable.get(f"iommu group {number}", "")),
                reason=StepReason.IOMMU,
            ) from error
