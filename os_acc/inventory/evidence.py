# SPDX-License-Identifier: Apache-2.0

"""The facts that decide whether a device may be offered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from os_acc.host import usage, vfio
from os_acc.host.pci import Host
from os_acc.objects import device_spec
from os_acc.objects.device import DeviceTags
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.records import RecordedState


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorRules:
    """The operator's configuration of devices, in our options and in Nova's.

    :ivar nova_mdev_addresses: the parents of mediated devices that Nova names.
    :ivar max_uncorrectable_errors: those of a device that is offered; -1: any
        number.
    :ivar unmanaged: whether the caller attaches with ``managed='no'``.
    :ivar state_path: the directory with the refusals of plugins.
    """

    named: device_spec.DeviceSpec
    nova: device_spec.DeviceSpec
    nova_policies: device_spec.DeviceSpec
    nova_mdev_addresses: tuple[str, ...]
    nova_mdev_types: frozenset[str]
    max_uncorrectable_errors: int = -1
    unmanaged: bool = True
    state_path: str = ""

    @property
    def nova_mdev_parents(self) -> frozenset[PciAddress]:
        """The functions among Nova's parents of mediated devices."""
        return device_spec.nova_mdev_addresses(self.nova_mdev_addresses)

    @property
    def nova_virtual_parents(self) -> frozenset[str]:
        """The others: see :func:`.mdev.nova_names`."""
        return device_spec.nova_virtual_parents(self.nova_mdev_addresses)


class HostEvidence:
    """The facts that the rules check.

    :ivar named: the functions that ``[os_acc] device_spec`` names, with their tags; the
        NUMA policy of Nova's alias takes precedence.
    :ivar nova: the functions that Nova's options also name.
    :ivar usage: the host's uses of the named functions and of their groups.
    :ivar helper_claims: see :class:`.RecordedState`, as for ``leased``, ``taken``,
        ``in_parts`` (``leased_in_parts``) and ``mdev_parents`` (``leased_parents``).
    :ivar lease_drivers: the driver that each function of a guest's lease has.
    :ivar offered: the functions that drivers offer to guests, also drivers on which a
        function stays. A vGPU of NVIDIA's driver is a use by the host instead.
    """

    def __init__(
        self, root: str, rules: OperatorRules, recorded: RecordedState, host: Host
    ) -> None:
        self.root, self.rules, self.host = root, rules, host
        policies = dict(_match(rules.nova_policies, host))
        self.named = {
            address: dataclasses.replace(tags, numa_policy=alias.numa_policy)
            if (alias := policies.get(address))
            else tags
            for address, tags in _match(rules.named, host)
        }
        claimed = (address for address, _ in _match(rules.nova, host))
        self.nova = rules.nova_mdev_parents.union(claimed)
        # Each is computed anew by the records.
        self.leased, self.taken = recorded.leased, recorded.taken
        self.in_parts = recorded.leased_in_parts
        self.mdev_parents = recorded.leased_parents
        self.helper_claims = recorded.helper_claims
        self.lease_drivers = {
            function: lease.driver_of(function)
            for lease in recorded.leases
            if lease.is_the_guests and lease.slot is None
            for function in lease.functions
        }
        self.offered = vfio.offered_functions(root, host.functions)
        self.usage = usage.read_usage(root, dict(self._concerned()))

    def _concerned(self) -> Iterator[tuple[PciAddress, PciFunction]]:
        """Yield the named functions, and the others of their groups."""
        functions = self.host.functions
        numbers = {functions[address].iommu_group for address in self.named}
        groups = (self.host.groups.get(each) for each in numbers if each is not None)
        members = {address for group in groups if group for address in group.members}
        for address in members.union(self.named):
            if (function := functions.get(address)) is not None:
                yield address, function


def _match(
    spec: device_spec.DeviceSpec, host: Host
) -> Iterator[tuple[PciAddress, DeviceTags]]:
    for address, function in host.functions.items() if spec.entries else ():
        tags = spec.match(function, host.netdevs, host.functions)
        if tags is not None:
            yield address, tags
