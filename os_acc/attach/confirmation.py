# SPDX-License-Identifier: Apache-2.0

"""Confirmation: a plug whose consumer holds leases already."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from oslo_log import log

from os_acc import exception
from os_acc.attach import Services, lifecycle, planning, programming, rebuild, swap
from os_acc.host import pci, vfio
from os_acc.inventory.catalog import Catalog
from os_acc.numa.policies import Policies, allows
from os_acc.objects.instance import InstanceInfo
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import function_of
from os_acc.objects.request_group import (
    Allocations,
    FlavorRequest,
    GroupAllocation,
    Selection,
    fingerprint,
)
from os_acc.scheduling import matching

LOG = log.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Confirmer:
    """Confirm the leases of a consumer; the caller holds its lock."""

    _services: Services
    _life: lifecycle.Lifecycle
    _catalog: Catalog
    _programmer: programming.Programmer

    def match(
        self, held: Sequence[Lease], request: FlavorRequest, selection: Selection
    ) -> bool:
        """Return whether leases serve a request; False if that needs a scan."""
        requests = {lease.request for lease in held}
        try:
            allocations = self._as_recorded(held, request, selection)
            if requests == {fingerprint(allocations)}:
                return True
            if requests == {fingerprint(allocations, found=True)}:
                return True
            if not isinstance(selection, Allocations) or selection.is_unmapped:
                return False
            # An assignment without mappings stays: a guest may use it by now.
            unmapped = dataclasses.replace(selection, mappings=None)
            allocations = self._as_recorded(held, request, unmapped)
        except (exception.ProviderNotFound, exception.InvalidAllocation) as error:
            LOG.debug("cannot match leases before a scan of the host: %s", error)
            return False
        return requests == {fingerprint(allocations, found=True)}

    def _as_recorded(
        self, held: Sequence[Lease], request: FlavorRequest, selection: Selection
    ) -> tuple[GroupAllocation, ...]:
        """Match a request to the providers that its leases record."""
        recorded = {
            (lease.group, lease.wanted.resource_class): lease.provider
            for lease in held
            if lease.provider
        }
        return matching.match_groups(
            request, selection, self._catalog.ours, recorded=recorded
        )

    def recorded(
        self,
        instance: InstanceInfo,
        policies: Policies,
        held: Sequence[Lease],
        deadline: float,
    ) -> tuple[Lease, ...]:
        """Confirm the recorded leases, for example after a reboot.

        :raises OsAccError: as :meth:`confirm`.
        :raises DeviceQuarantined: all devices of the instance are quarantined.
        :raises NotFound: the instance has no lease, or one is missing.
        """
        if not held:
            for lease in self._services.store.until(deadline).leases(instance.uuid):
                if lease.is_spare:
                    continue
                raise exception.DeviceQuarantined(
                    f"{lease.address} of instance {instance.uuid} is quarantined: "
                    f"{lease.reason}"
                )
            raise exception.NotFound(
                f"no accelerators are recorded for instance {instance.uuid}",
                hint="to plug new ones, pass selected_rp, or os-acc plug --provider",
                kind=exception.ObjectKind.LEASE,
            )
        for lease in held:
            vfio.require_drivers(self._services.root, lease.vfio_drivers)
        return self.confirm(instance, policies, held, deadline)

    def confirm(
        self,
        instance: InstanceInfo,
        policies: Policies,
        held: Sequence[Lease],
        deadline: float,
    ) -> tuple[Lease, ...]:
        """Compare held leases with the guest's cells and image; prepare their devices.

        Cells and image are decided before a device or a record is changed.

        :raises NotFound: a lease of the request is missing.
        :raises NoDeviceAvailable: a device is not where its NUMA policy requires it,
            and its provider has no other one; nothing is changed.
        :raises DeviceInUse: it has another one, but the guest runs; nothing is
            changed.
        :raises InvalidInput: the host does not have one of the guest's cells.
        :raises OsAccError: as :meth:`.Lifecycle.establish`,
            :meth:`.Rebuilder.renewed` and :meth:`.Lifecycle.reestablish`.
        """
        for lease in held:
            if lease.request_size not in (0, len(held)):
                raise exception.NotFound(
                    f"only {len(held)} of {lease.request_size} accelerators of "
                    f"instance {lease.consumer} are recorded",
                    hint="find the others with 'os-acc device list' and adopt them, or "
                    "unplug the instance",
                    kind=exception.ObjectKind.LEASE,
                )
        renewed = self._renewed(instance, policies, held, deadline)
        both = (*held, *renewed)
        try:
            return self._life.reestablish(renewed, deadline)
        finally:
            if any(each.programming and each.programming.is_pending for each in both):
                self._catalog.publish_regions(deadline)

    def _renewed(
        self,
        instance: InstanceInfo,
        policies: Policies,
        held: Sequence[Lease],
        deadline: float,
    ) -> tuple[Lease, ...]:
        """Record the guest's cells and image, and what follows from them.

        The devices may have been selected before the guest had cells, or for others:
        those that are not allowed any more are replaced. The contents for another
        image are decided before that.
        """
        image_id = instance.image_id
        rebuilder = rebuild.Rebuilder(self._services, self._programmer)
        # Without cells, the caller does not know them: the recorded ones stay.
        with_cells = [
            self._with_cells(each, instance, policies) if instance.numa_cells else each
            for each in held
        ]
        if with_cells == list(held):
            return rebuilder.renewed(held, held, image_id, deadline)
        guest = planning.guest_cells(self._services.root, instance)
        placed: Sequence[Lease] = [
            dataclasses.replace(lease, affinity=guest.affinity(lease.handle.numa_node))
            for lease in with_cells
        ]
        wrong = [
            lease
            for lease in placed
            if lease.affinity and not allows(lease.policies.effective, lease.affinity)
        ]
        if wrong:

            def check(planned: Sequence[Lease]) -> None:
                rebuilder.check(held, planned, image_id, deadline)

            swapper = swap.Swapper(
                self._services, self._life, self._catalog, self._programmer
            )
            held = placed = swapper.swap(
                instance, guest, placed, wrong, check, deadline
            )
        fresh = rebuilder.renewed(held, placed, image_id, deadline)
        planning.log_remote(fresh)
        return fresh

    def _with_cells(
        self, lease: Lease, instance: InstanceInfo, policies: Policies
    ) -> Lease:
        """Return a lease with the present cells, policies and node."""
        # An administrator, or another setup of the firmware, may change the node.
        place = function_of(lease.address)
        function = pci.read_function(self._services.root, place) if place else None
        node = function.numa_node if function else lease.handle.numa_node
        return dataclasses.replace(
            lease,
            guest=dataclasses.replace(lease.guest, cells=instance.numa_cells),
            policies=policies.renewed(lease.group, lease.policies),
            handle=dataclasses.replace(lease.handle, numa_node=node),
        )
