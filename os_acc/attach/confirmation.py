# SPDX-License-Identifier: Apache-2.0

"""Confirmation: a plug whose consumer holds leases already."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from oslo_log import log

from os_acc import exception
from os_acc.attach import (
    Services,
    lifecycle,
    planning,
    programming,
    rebuild,
    swap,
    verification,
)
from os_acc.helper import client
from os_acc.host import pci, vfio
from os_acc.inventory.catalog import Catalog
from os_acc.numa.policies import GuestCells, Policies, allows
from os_acc.objects.instance import InstanceInfo
from os_acc.objects.lease import Lease, latest
from os_acc.objects.mdev import function_of
from os_acc.objects.request_group import (
    Allocations,
    AttachTarget,
    FlavorRequest,
    GroupAllocation,
    Selection,
    fingerprint,
)
from os_acc.scheduling import matching
from os_acc.store import AlreadyLeased

LOG = log.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Confirmer:
    """Confirm the leases of a consumer; the caller holds its lock."""

    _services: Services
    _life: lifecycle.Lifecycle
    _catalog: Catalog
    _programmer: programming.Programmer

    @property
    def _rebuilder(self) -> rebuild.Rebuilder:
        return rebuild.Rebuilder(self._services, self._programmer)

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
        # An allocation keeps the class that the operator has replaced meanwhile.
        then = {at: name for (_group, name), at in recorded.items()}
        ours = {**self._catalog.ours, **then}
        return matching.match_groups(request, selection, ours, recorded=recorded)

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
        # Without cells, the caller does not know them: the recorded ones stay.
        with_cells = [
            self._with_cells(each, instance, policies) if instance.numa_cells else each
            for each in held
        ]
        if with_cells == list(held):
            return self._rebuilder.renewed(held, held, image_id, deadline)
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
            held = placed = self._swapped(
                instance, guest, held, placed, wrong, deadline
            )
        fresh = self._rebuilder.renewed(held, placed, image_id, deadline)
        planning.log_remote(fresh)
        return fresh

    def _swapped(
        self,
        instance: InstanceInfo,
        guest: GuestCells,
        held: Sequence[Lease],
        placed: Sequence[Lease],
        wrong: Sequence[Lease],
        deadline: float,
    ) -> tuple[Lease, ...]:
        """Replace the devices that the NUMA policies of a guest do not allow.

        :param placed: the held leases of the guest, with its present cells; they are
            recorded together with the new ones.
        :param wrong: those of them whose devices are replaced.
        :returns: the held leases, in the same order.
        :raises NoDeviceAvailable: NUMA_POLICY: a provider has no other free device
            that the policy allows; nothing is changed.
        :raises DeviceInUse: the guest runs, or processes have the other devices;
            nothing is changed.
        :raises OsAccError: as :meth:`.Rebuilder.check` and
            :meth:`.Lifecycle.establish`.
        """
        inventory = self._catalog.look(deadline)
        planner = swap.planner(self._services.root, instance, guest, wrong)
        while True:
            try:
                pairs = swap.planned(planner, wrong, inventory, deadline)
                for _old, new in pairs:
                    vfio.require_drivers(self._services.root, new.vfio_drivers)
                moved = [dataclasses.replace(new, uuid=old.uuid) for old, new in pairs]
                on_planned = latest(placed, moved)
                self._rebuilder.check(held, on_planned, instance.image_id, deadline)
                for lease in placed:
                    if lease.wanted.attach_target is not AttachTarget.NONE:
                        # The guest has to be stopped.
                        self._services.helper.check_unused(lease, deadline)
                planned = [new for _old, new in pairs]
                with self._programmer.plan_again(planned, deadline) as jobs:
                    recorded = self._life.establish(
                        planned,
                        inventory.recorded_state,
                        deadline,
                        jobs,
                        swap.commit(placed, {new.uuid: old for old, new in pairs}),
                    )
                break
            except (
                AlreadyLeased,
                verification.Unsettled,
                client.DeviceClaimed,
                exception.DeviceInUse,
            ) as error:
                # As for a new request. The guest's own devices stay in use.
                LOG.debug("instance %s: selecting again: %s", instance.title, error)
                if isinstance(error, exception.DeviceInUse):
                    planner = planner.without(error, inventory)
                if time.monotonic() >= deadline:
                    raise
                self._catalog.reconciler.invalidate()
                inventory = self._catalog.look(deadline)
        return self._finished(placed, recorded, deadline)

    def _finished(
        self, placed: Sequence[Lease], recorded: Sequence[Lease], deadline: float
    ) -> tuple[Lease, ...]:
        """Give the old devices back; return the held leases."""
        held = {each.request_uuid: each for each in recorded if not each.is_spare}
        ordered = tuple(held[each.request_uuid] for each in placed)
        spare = [each for each in recorded if each.is_spare]
        for old in spare:
            new = next(each for each in ordered if each.uuid == old.arq)
            LOG.info(
                "instance %s has %s instead of %s, for its NUMA cells %s",
                new.consumer_title,
                *(planning.placement(new), planning.placement(old)),
                planning.cells(new),
            )
        # A failure is recorded and retried: the guest does not wait for it.
        self._life.release(spare, deadline)
        self._catalog.recount(deadline)
        if any(lease.programming for lease in spare):
            self._catalog.publish_regions(deadline)
        return ordered

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
