# SPDX-License-Identifier: Apache-2.0

"""Leases as they will be, on the devices that are free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from oslo_log import log
from oslo_utils import uuidutils

from os_acc import exception
from os_acc.attach import programming, verification
from os_acc.host import attributes, numa
from os_acc.inventory import discovery
from os_acc.numa.affinity import GuestCells
from os_acc.numa.policies import Policies
from os_acc.objects.instance import InstanceInfo
from os_acc.objects.lease import Lease, LeaseState, Owner
from os_acc.objects.pci import PciAddress
from os_acc.objects.profile import index_of
from os_acc.objects.selection import GroupAllocation
from os_acc.scheduling import device_selection

LOG = log.getLogger(__name__)


def selector(
    root: str, instance: InstanceInfo, policies: Policies
) -> device_selection.DeviceSelector:
    """Who chooses devices for an instance, by where it is and what it asks for.

    :raises InvalidInput: the host has no such NUMA cell.
    :raises HostStepFailed: the host's NUMA topology cannot be read.
    """
    if not instance.numa_cells:
        return device_selection.DeviceSelector(policies=policies)
    topology = numa.read_topology(root)
    there = [cell.id for cell in topology.cells]
    for cell in instance.numa_cells:
        if cell not in there:
            raise exception.InvalidInput(
                f"instance_info['numa_cells'] has {cell}, but the NUMA cells of this "
                f"host are {', '.join(map(str, there)) or 'unknown'}",
                hint="pass the ids of host cells, not those of the guest's own",
            )
    return device_selection.DeviceSelector(
        GuestCells(topology, instance.numa_cells), policies
    )


@dataclasses.dataclass(frozen=True, slots=True)
class LeasePlanner:
    """Makes the leases of one request.

    :ivar root: where ``/sys`` is found.
    :ivar digest: of the request.
    :ivar selector: for the guest that the instance is.
    :ivar named: the uuids that the leases of a group are to have, by its
        suffix; the others get new ones.
    :ivar profile: the name of the device profile that groups are of, or ''.
    """

    root: str
    owner: Owner
    instance: InstanceInfo
    wanted: Sequence[GroupAllocation]
    digest: str
    selector: device_selection.DeviceSelector
    named: Mapping[str, Sequence[str]] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    profile: str = ""

    def planned(
        self, stock: discovery.Inventory, deadline: float
    ) -> list[programming.PlannedLease]:
        """Leases on free devices, past those of which the kernel says nothing.

        :raises DeviceStuck: there are too few others.
        :raises DeviceChanged: one has changed since the host was judged.
        """
        taken = stock.recorded_state.taken
        stuck: exception.DeviceStuck | None = None
        while True:
            try:
                chosen = self.selector.choose(self.wanted, stock.providers, taken)
            except exception.NoDeviceAvailable as error:
                if stuck is None:
                    raise
                raise stuck from error
            try:
                return [
                    programming.PlannedLease(
                        dataclasses.replace(
                            self._lease(each, len(chosen), stock, deadline), uuid=uuid
                        ),
                        each.provider.device.region,
                        each.wanted.wish,
                        each.wanted.required,
                    )
                    for each, uuid in zip(chosen, self._uuids(chosen), strict=True)
                ]
            except exception.DeviceStuck as error:
                # Without an address it is the time that is over.
                if not error.address:
                    raise
                LOG.warning("%s chooses another device: %s", self.instance.uuid, error)
                taken, stuck = taken | {PciAddress.parse(error.address)}, error

    def _uuids(self, chosen: Sequence[device_selection.SelectedDevice]) -> list[str]:
        named = {group: list(uuids) for group, uuids in self.named.items()}
        return [
            left.pop(0)
            if (left := named.get(each.wanted.group_suffix))
            else uuidutils.generate_uuid()
            for each in chosen
        ]

    def _profile(self, suffix: str) -> str:
        # The flavor may have groups of its own beside those of the profile.
        return "" if index_of(suffix) is None else self.profile

    def _lease(
        self,
        chosen: device_selection.SelectedDevice,
        size: int,
        stock: discovery.Inventory,
        deadline: float,
    ) -> Lease:
        prior = verification.read_prior(self.root, chosen.handle.members, deadline)
        verification.check_chosen(stock.host, prior)
        verification.check_unbound(prior, stock.prebound)
        return Lease(
            uuid="",
            consumer=self.instance.uuid,
            owner=self.owner,
            state=LeaseState.PREPARING,
            group=chosen.wanted.group_suffix,
            provider=chosen.provider.uuid,
            resource_class=chosen.wanted.resource_class,
            address=chosen.handle.address,
            iommu_group=chosen.handle.iommu_group,
            numa_node=chosen.handle.numa_node,
            prior=prior,
            request=self.digest,
            request_size=size,
            boot_id=attributes.boot_id(self.root),
            plugin=chosen.provider.device.plugin,
            instance_name=self.instance.name,
            project_id=self.instance.project_id,
            attach_target=chosen.wanted.attach_target,
            affinity=chosen.affinity,
            physfns=verification.physfns(
                stock.host.function(each.address) for each in prior
            ),
            profile=self._profile(chosen.wanted.group_suffix),
        )
