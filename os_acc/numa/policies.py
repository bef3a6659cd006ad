# SPDX-License-Identifier: Apache-2.0

"""Sources of NUMA policies and their precedence.

In Nova, the port takes precedence over flavor and image, and these over the
alias: the more specific source wins. os_acc inserts its own sources by the same
rule: port, request group, flavor or image, the Nova alias of the device, the tag
in ``[os_acc] device_spec``, and ``legacy`` as the default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, Self

from os_acc import exception
from os_acc.objects.device import AttachHandle
from os_acc.objects.instance import IMAGE_NUMA_POLICY, InstanceInfo
from os_acc.objects.numa import NUMAPolicy, PolicySources
from os_acc.objects.request import title
from os_acc.objects.selection import GroupAllocation


def parse(value: object, where: str) -> NUMAPolicy:
    """Return the policy of this name.

    :param where: the source of the value, for the error message.
    :raises InvalidInput: no policy has this name.
    """
    try:
        return NUMAPolicy(value)
    except ValueError as error:
        raise exception.InvalidInput(
            f"{where} is {exception.show(value)}, which is not a NUMA policy",
            hint=exception.did_you_mean(
                str(value), [each.value for each in NUMAPolicy]
            ),
        ) from error


def guest_policy(flavor: object, image: object) -> NUMAPolicy | None:
    """Return the policy for all devices of a guest; None: not set.

    :param flavor: the value of its ``hw:pci_numa_affinity_policy``, or None.
    :param image: the value of its ``hw_pci_numa_affinity_policy``, or None.
    :raises InvalidInput: a value is no policy; flavor and image disagree, which Nova
        rejects as well.
    """
    found = [
        parse(value, where)
        for value, where in (
            (flavor, "hw:pci_numa_affinity_policy of the flavor"),
            (image, f"{IMAGE_NUMA_POLICY} of the image"),
        )
        if value is not None
    ]
    if len(set(found)) > 1:
        raise exception.InvalidInput(
            f"the flavor requests the NUMA policy {found[0].value}, but "
            f"the image requests {found[1].value}",
            hint="remove the property from one of them",
        )
    return found[0] if found else None


@dataclasses.dataclass(frozen=True, slots=True)
class Policies:
    """The policies of a request, apart from those of its groups.

    :ivar ports: policies of ports, by the suffix of the port's request group.
    :ivar guest: the policy for all devices of the guest; None: not set.
    """

    ports: Mapping[str, NUMAPolicy] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    guest: NUMAPolicy | None = None

    @classmethod
    def of(cls, instance: InstanceInfo, flavor: object) -> Self:
        """Read the policies of instance and flavor.

        :param flavor: the value of its ``hw:pci_numa_affinity_policy``.
        :raises InvalidInput: a value is no policy; flavor and image
            disagree, which Nova rejects as well.
        """
        ports = {
            suffix: parse(value, f"the NUMA policy of the port of {title(suffix)}")
            for suffix, value in instance.port_numa_policies
        }
        guest = guest_policy(flavor, instance.image_numa_policy)
        return cls(MappingProxyType(ports), guest)

    def check(self, groups: Collection[str]) -> None:
        """Check that each port policy belongs to a group served by this host.

        :param groups: the suffixes of the groups that this host serves.
        :raises InvalidInput: a port's group is not among them, and its
            policy would be lost.
        """
        for suffix in self.ports:
            if suffix not in groups:
                raise exception.InvalidInput(
                    f"a port has a NUMA policy for {title(suffix)}, which has no "
                    "accelerator on this host",
                    hint=exception.did_you_mean(suffix, groups),
                )

    def sources(self, wanted: GroupAllocation, handle: AttachHandle) -> PolicySources:
        """Return the policies for a device that serves a group."""
        return PolicySources(
            port=self.ports.get(wanted.group_suffix),
            group=wanted.numa_policy,
            guest=self.guest,
            device=handle.numa_policy,
        )

    def effective(self, wanted: GroupAllocation, handle: AttachHandle) -> NUMAPolicy:
        """Return the policy that decides whether a device may serve a group."""
        return self.sources(wanted, handle).effective

    def renewed(self, group: str, recorded: PolicySources) -> PolicySources:
        """Return the policies for a selected device, by the present call.

        A call without flavor, image or ports keeps the recorded policies.

        :param group: the suffix of the request group that the device serves.
        """
        return dataclasses.replace(
            recorded,
            port=self.ports.get(group) or recorded.port,
            guest=self.guest or recorded.guest,
        )


#: The policies of a request that sets none.
NOTHING_SAID: Final = Policies()
