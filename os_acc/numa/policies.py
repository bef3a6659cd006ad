# SPDX-License-Identifier: Apache-2.0

"""Who says which NUMA policy, and who of them is heard.

Nova hears the port before flavor and image, and these before the alias: the
nearer to the one device, the more it counts. os_acc's own places are put in
between by the same rule: port, request group, flavor or image, the alias of
Nova's that names the device, the tag in ``[os_acc] device_spec``; where nobody
says anything, ``legacy``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, Self

from os_acc import exception
from os_acc.objects.device import Handle
from os_acc.objects.instance import IMAGE_NUMA_POLICY, InstanceInfo
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request import title
from os_acc.objects.selection import GroupAllocation

DEFAULT: Final = NUMAPolicy.LEGACY


def parse(value: object, where: str) -> NUMAPolicy:
    """A policy by its name.

    :param where: what to name in the error.
    :raises InvalidNUMAPolicy: there is none of that name.
    """
    try:
        return NUMAPolicy(value)
    except ValueError as error:
        raise exception.InvalidNUMAPolicy(
            f"{where} is {exception.show(value)}, which is no NUMA policy",
            hint=exception.did_you_mean(
                str(value), [each.value for each in NUMAPolicy]
            ),
        ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class Policies:
    """What a request says, apart from its groups.

    :ivar ports: by the suffix of the group that a port has for itself.
    :ivar guest: for all devices of the guest; None: nothing.
    """

    ports: Mapping[str, NUMAPolicy] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    guest: NUMAPolicy | None = None

    @classmethod
    def of(cls, instance: InstanceInfo, flavor: object) -> Self:
        """Read what instance and flavor say.

        :param flavor: its ``hw:pci_numa_affinity_policy``, as it was given.
        :raises InvalidNUMAPolicy: one is no policy; flavor and image
            contradict each other, which Nova refuses as well.
        """
        found = [
            parse(value, where)
            for value, where in (
                (flavor, "hw:pci_numa_affinity_policy of the flavor"),
                (instance.image_numa_policy, f"{IMAGE_NUMA_POLICY} of the image"),
            )
            if value is not None
        ]
        if len(set(found)) > 1:
            raise exception.InvalidNUMAPolicy(
                f"the flavor asks for the NUMA policy {found[0].value}, the image for "
                f"{found[1].value}",
                hint="take the property off one of them",
            )
        ports = {
            suffix: parse(value, f"the NUMA policy of the port of {title(suffix)}")
            for suffix, value in instance.port_numa_policies
        }
        return cls(MappingProxyType(ports), found[0] if found else None)

    def check(self, groups: Collection[str]) -> None:
        """Hold the ports' groups against those that there are.

        :param groups: the suffixes of those that this host serves.
        :raises InvalidNUMAPolicy: a port has none of them for itself; what it
            asks for would be lost.
        """
        for suffix in self.ports:
            if suffix not in groups:
                raise exception.InvalidNUMAPolicy(
                    f"a port has a NUMA policy for {title(suffix)}, which has no "
                    "accelerator here",
                    hint=exception.did_you_mean(suffix, groups),
                )

    def asked(self, wanted: GroupAllocation) -> NUMAPolicy | None:
        """What a group is to be served under; None: as the device has it."""
        return self.ports.get(wanted.group_suffix) or wanted.numa_policy or self.guest

    def effective(self, wanted: GroupAllocation, handle: Handle) -> NUMAPolicy:
        """What decides whether a device may serve a group."""
        return self.asked(wanted) or handle.numa_policy or DEFAULT


#: Of a request that says nothing.
NOTHING_SAID: Final = Policies()
