# SPDX-License-Identifier: Apache-2.0

"""NUMA policies: the devices that each allows to a guest, and their sources.

A policy allows the same devices as in Nova (``nova/pci/stats.py``,
``_filter_pools_for_numa_cells``). In Nova, the port takes precedence over flavor and
image, and these over the alias: the more specific source wins. os_acc inserts its own
sources by the same rule: port, request group, flavor or image, the Nova alias of the
device, the tag in ``[os_acc] device_spec``, and ``legacy`` as the default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Final, Self

from os_acc import exception
from os_acc.objects.device import AttachHandle
from os_acc.objects.instance import IMAGE_NUMA_POLICY, InstanceInfo
from os_acc.objects.numa import Affinity, NUMAPolicy, NUMATopology, PolicySources
from os_acc.objects.request_group import GroupAllocation, title


@dataclasses.dataclass(frozen=True, slots=True)
class GuestCells:
    """The host cells that carry a guest.

    :ivar cells: ids of host cells, in the order of the guest's cells; empty for a
        guest without NUMA topology, which may run on any cell.
    """

    topology: NUMATopology
    cells: tuple[int, ...] = ()

    def affinity(self, node: int | None) -> Affinity:
        """Return the affinity of a device on this node to the guest."""
        if not self.cells or node in self.cells:
            return Affinity.LOCAL
        if node is None:
            return Affinity.UNKNOWN
        if node in self._socket_neighbours():
            return Affinity.SAME_SOCKET
        return Affinity.REMOTE

    def distance(self, node: int | None) -> int:
        """Return the distance from a node to the nearest guest cell; 0: unknown."""
        if node is None or not self.cells:
            return 0
        return min(self.topology.distance(cell, node) for cell in self.cells)

    def nearest(self, node: int | None) -> tuple[int, ...]:
        """Return the guest's cells with the smallest distance to a node."""
        if node is None:
            return self.cells
        least = self.distance(node)
        return tuple(
            cell for cell in self.cells if self.topology.distance(cell, node) == least
        )

    def _socket_neighbours(self) -> Collection[int]:
        """Return the cells that share a socket with the guest.

        Nova returns none if any cell of the host lacks a socket.
        """
        if any(cell.socket is None for cell in self.topology.cells):
            return ()
        sockets = {cell.socket for cell in self.topology.cells if cell.id in self.cells}
        return {cell.id for cell in self.topology.cells if cell.socket in sockets}


_ALLOWED = {
    NUMAPolicy.REQUIRED: {Affinity.LOCAL},
    NUMAPolicy.SOCKET: {Affinity.LOCAL, Affinity.SAME_SOCKET},
    NUMAPolicy.LEGACY: {Affinity.LOCAL, Affinity.UNKNOWN},
    NUMAPolicy.PREFERRED: set(Affinity),
}


def allows(policy: NUMAPolicy, affinity: Affinity) -> bool:
    """Return whether a policy allows a device of this affinity."""
    return affinity in _ALLOWED[policy]


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

    ports: Mapping[str, NUMAPolicy] = dataclasses.field(default_factory=dict)
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
        return cls(ports, guest)

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
