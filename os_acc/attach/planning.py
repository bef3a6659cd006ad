# SPDX-License-Identifier: Apache-2.0

"""Planning of leases on free devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from oslo_log import log
from oslo_utils import uuidutils

from os_acc import exception
from os_acc.attach import verification
from os_acc.host import attributes, numa
from os_acc.inventory import discovery
from os_acc.numa import fit
from os_acc.numa.network_options import NetworkAffinity
from os_acc.numa.policies import GuestCells
from os_acc.objects.device import Erasure, functions_of
from os_acc.objects.instance import InstanceInfo
from os_acc.objects.lease import Action, Guest, Lease, LeaseState, Owner
from os_acc.objects.mdev import DeviceAddress, MdevSlot, function_of, parse_address
from os_acc.objects.numa import Affinity
from os_acc.objects.pci import PciAddress, physfns
from os_acc.objects.region import Programming
from os_acc.objects.request_group import AttachTarget, GroupAllocation, profile_index
from os_acc.scheduling import device_selection

LOG = log.getLogger(__name__)


def check_networks(
    root: str, instance: InstanceInfo, load: Callable[[], NetworkAffinity]
) -> None:
    """Check that the cells of an instance lead to its networks.

    Without cells nothing is required, as in Nova.

    :param load: returns the NUMA nodes of the host's networks.
    :raises InvalidConfiguration: these nodes are invalid.
    :raises NoDeviceAvailable: NETWORK: other cells lead to a network.
    :raises InvalidInput: the host does not have one of the instance's NUMA cells.
    :raises HostStepFailed: the host's NUMA topology cannot be read.
    """
    if not instance.numa_cells or instance.networks == fit.NO_NETWORKS:
        return
    affinity = load()
    if not affinity.physnets and not affinity.tunnel:
        return
    topology = affinity.on(guest_cells(root, instance).topology)
    missing = fit.not_carried(topology, instance.numa_cells, instance.networks)
    names = sorted(missing.physnets)
    if missing.tunneled:
        names.append("tunnelled networks")
    if names:
        raise exception.NoDeviceAvailable(
            f"the NUMA cells {', '.join(map(str, instance.numa_cells))} of instance "
            f"{instance.uuid} do not lead to {', '.join(names)}",
            reason=exception.NoDeviceReason.NETWORK,
        )


def guest_cells(root: str, instance: InstanceInfo) -> GuestCells:
    """Return the host cells that an instance names, with the host's topology.

    Without cells, the guest may be anywhere.

    :raises InvalidInput: the host does not have one of these cells.
    :raises HostStepFailed: the host's NUMA topology cannot be read.
    """
    if not instance.numa_cells:
        return device_selection.ANYWHERE
    topology = numa.read_topology(root)
    cells = [cell.id for cell in topology.cells]
    for cell in instance.numa_cells:
        if cell not in cells:
            raise exception.InvalidInput(
                f"instance_info['numa_cells'] has {cell}, but the NUMA cells of this "
                f"host are {', '.join(map(str, cells)) or 'unknown'}",
                hint="pass the ids of host cells, not of guest cells",
            )
    return GuestCells(topology, instance.numa_cells)


@dataclasses.dataclass(frozen=True, slots=True)
class LeasePlanner:
    """Plan the leases of one request.

    :ivar root: the directory with ``sys`` and ``proc``.
    :ivar digest: the fingerprint of the request.
    :ivar selector: the device selector of the instance.
    :ivar named: the UUIDs for the leases of each group, by its suffix; the other
        leases get new UUIDs.
    :ivar profile: the name of the device profile, or ''.
    :ivar held: errors about devices that other processes hold, and that are skipped.
    """

    root: str
    owner: Owner
    instance: InstanceInfo
    allocations: Sequence[GroupAllocation]
    digest: str
    selector: device_selection.DeviceSelector
    named: Mapping[str, Sequence[str]] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    profile: str = ""
    held: tuple[exception.DeviceInUse, ...] = ()

    def among(self, reaching: device_selection.Reaching) -> LeasePlanner:
        """Return a planner that selects among these PCI functions of regions."""
        selector = dataclasses.replace(self.selector, reaching=reaching)
        return dataclasses.replace(self, selector=selector)

    def without(
        self, held: exception.DeviceInUse, inventory: discovery.Inventory
    ) -> LeasePlanner:
        """Return a planner that skips a device in use; raise if it cannot skip it."""
        wanted = {each.provider_uuid for each in self.allocations}
        found = (each for each in inventory.providers.values() if each.uuid in wanted)
        left = set(map(str, functions_of(found))) - {e.address for e in self.held}
        if held.address not in left:
            raise held
        return dataclasses.replace(self, held=(*self.held, held))

    def plan(self, inventory: discovery.Inventory, deadline: float) -> list[Lease]:
        """Plan leases on free devices; skip those that cannot be read or do not answer.

        :raises DeviceInUse, DeviceStuck, HostStepFailed: too few devices are left.
        :raises DeviceChanged: a device has changed since the scan of the host.
        """
        taken = inventory.recorded_state.taken
        taken |= {parse_address(str(each.address)) for each in self.held}
        stuck: exception.HostError | None = self.held[-1] if self.held else None
        while True:
            try:
                selected = self.selector.choose(
                    self.allocations, inventory.providers, taken
                )
            except exception.NoDeviceAvailable as error:
                if stuck is None:
                    raise self._explained(error, inventory) from error.__cause__
                raise stuck from error
            try:
                return [
                    self._lease(each, uuid, len(selected), inventory, deadline)
                    for each, uuid in zip(selected, self._uuids(selected), strict=True)
                ]
            except (exception.DeviceStuck, exception.HostStepFailed) as error:
                # Without an address, the deadline has passed.
                is_silent = error.reason is exception.StepReason.NO_ANSWER
                if not error.address or not (
                    is_silent or isinstance(error, exception.DeviceStuck)
                ):
                    raise
                LOG.warning(
                    "instance %s: selecting another device: %s",
                    self.instance.title,
                    error,
                )
                taken, stuck = taken | {PciAddress.parse(error.address)}, error

    def _explained(
        self, error: exception.NoDeviceAvailable, inventory: discovery.Inventory
    ) -> exception.NoDeviceAvailable:
        """Return the error with the devices that are free once they are erased."""
        ours = {each.provider_uuid for each in self.allocations}
        found = [
            str(lease.address)
            for lease in inventory.recorded_state.leases
            if lease.erasure and lease.provider in ours
        ]
        if not found or error.reason is not exception.NoDeviceReason.NOT_FREE:
            return error
        return exception.NoDeviceAvailable(
            f"{error.message}; being erased: {exception.some(found, 4)}",
            reason=exception.NoDeviceReason.ERASING,
        )

    def _uuids(self, selected: Sequence[device_selection.SelectedDevice]) -> list[str]:
        named = {group: list(uuids) for group, uuids in self.named.items()}
        return [
            left.pop(0)
            if (left := named.get(each.wanted.group_suffix))
            else uuidutils.generate_uuid()
            for each in selected
        ]

    def _lease(
        self,
        selected: device_selection.SelectedDevice,
        uuid: str,
        size: int,
        inventory: discovery.Inventory,
        deadline: float,
    ) -> Lease:
        slot, group = _slot(selected), selected.wanted.group_suffix
        functions = [
            each for each in selected.handle.members if isinstance(each, PciAddress)
        ]
        prior = verification.read_prior(self.root, functions, deadline, functions)
        verification.check_same(inventory.host, prior)
        verification.check_unbound(self.root, prior, inventory.prebound)
        device = selected.provider.device
        return Lease(
            uuid=uuid,
            consumer=self.instance.uuid,
            owner=self.owner,
            state=LeaseState.PREPARING,
            wanted=selected.wanted,
            handle=selected.handle,
            prior=prior,
            request=self.digest,
            request_size=size,
            boot_id=attributes.boot_id(self.root),
            plugin=device.plugin,
            guest=Guest(
                self.instance.name,
                self.instance.project_id,
                self.instance.image_id if device.region else "",
                self.instance.numa_cells,
            ),
            affinity=selected.affinity,
            policies=self.selector.policies.sources(selected.wanted, selected.handle),
            physfns=physfns(
                inventory.host.function(each)
                for each in map(function_of, selected.handle.members)
                if each is not None
            ),
            # The flavor may have groups that are not part of the profile.
            profile="" if profile_index(group) is None else self.profile,
            parent=verification.parent_identity(self.root, slot) if slot else None,
            programming=Programming(device.region, None) if device.region else None,
            outstanding=(Action.ERASE,) if device.erasure is Erasure.PLUGIN else (),
        )


def _slot(selected: device_selection.SelectedDevice) -> MdevSlot | None:
    """Return the slot of a selected mediated device; None: a function is selected."""
    address = selected.handle.address
    if not isinstance(address, MdevSlot):
        return None
    if selected.wanted.attach_target is AttachTarget.HOST:
        raise exception.NoDeviceAvailable(
            f"{selected.provider.name} has mediated devices, which no driver of the "
            "host can use",
            hint="request attach_target=vm, or a device that is not mediated",
        )
    return address


def has_others(
    inventory: discovery.Inventory,
    fresh: discovery.Inventory,
    providers: Collection[str],
    divided: str,
) -> bool:
    """Return whether providers may have another device in place of a divided one.

    VFs of the divided function, which are units of the same provider, are less than
    what was requested: no device counts that was not there before.
    """
    if not all(uuid in fresh.providers for uuid in providers):
        return False
    before, now = (
        {handle for uuid in providers for handle in each.providers[uuid].device.handles}
        for each in (inventory, fresh)
    )
    places = {str(member) for handle in now for member in handle.members}
    known = {handle.address for handle in before}
    return divided not in places and {handle.address for handle in now} <= known


def free(
    inventory: discovery.Inventory, providers: Collection[str]
) -> frozenset[DeviceAddress]:
    """Return the free devices of these providers."""
    taken = inventory.recorded_state.taken
    return frozenset(
        handle.address
        for uuid in providers & inventory.providers.keys()
        for handle in inventory.providers[uuid].device.handles
        if not handle.fault and taken.isdisjoint(handle.members)
    )


def log_remote(leases: Sequence[Lease]) -> None:
    """Log the devices that are outside the guest's NUMA cells."""
    remote = [each for each in leases if each.affinity not in (None, Affinity.LOCAL)]
    if remote:
        LOG.warning(
            "instance %s in NUMA cells %s has accelerators that are not local: %s",
            remote[0].consumer,
            cells(remote[0]),
            ", ".join(map(placement, remote)),
        )


def cells(lease: Lease) -> str:
    """Return the guest's cells, for messages."""
    return ", ".join(map(str, lease.guest.cells))


def placement(lease: Lease) -> str:
    """Return the device of a lease and its place, for messages."""
    affinity = lease.affinity.value if lease.affinity else "unknown"
    return f"{lease.address} ({affinity}, node {lease.handle.numa_node})"
