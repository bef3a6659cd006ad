# SPDX-License-Identifier: Apache-2.0

"""Plug, unplug, and the other functions of the public API."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from oslo_log import log

from os_acc import conf, exception
from os_acc.attach import (
    Services,
    confirmation,
    external_events,
    lifecycle,
    planning,
    programming,
    region_operations,
    serialize,
    verification,
)
from os_acc.attach.recovery import Recovery, Retrier
from os_acc.attach.region_checks import FunctionElsewhere
from os_acc.helper import client
from os_acc.host import vfio
from os_acc.inventory import discovery, health_steps, sriov
from os_acc.inventory.catalog import Catalog
from os_acc.numa.network_options import NetworkAffinity
from os_acc.numa.policies import NOTHING_SAID, Policies
from os_acc.objects.accelerator_request import AcceleratorRequest
from os_acc.objects.api import AcceleratorEntry, HostInfo
from os_acc.objects.device import Provider
from os_acc.objects.instance import InstanceInfo, consumer_uuid, instance_uuid
from os_acc.objects.lease import Lease, LeaseState, Owner
from os_acc.objects.request_group import (
    Allocations,
    FlavorRequest,
    Selection,
    fingerprint,
)
from os_acc.placement import sync
from os_acc.plugins import base
from os_acc.profiles import expansion
from os_acc.profiles.expansion import ProfileLookup
from os_acc.scheduling import allocation_candidates, extra_specs, matching
from os_acc.scheduling.device_selection import DeviceSelector
from os_acc.store.errors import AlreadyLeased, StoreReplaced
from os_acc.store.locks import consumer_lock

LOG = log.getLogger(__name__)

#: Errors of a plug after which it may select devices again.
_PASSING: Final = (
    AlreadyLeased,
    StoreReplaced,
    FunctionElsewhere,
    verification.Unsettled,
    client.DeviceClaimed,
    exception.DeviceInUse,
    exception.HostStepFailed,
    exception.NoDeviceAvailable,
    exception.RegionUnusable,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The accelerator requests of one create call, with bindings to one instance.

    :ivar named: the UUIDs of the requests of each group, by its suffix.
    """

    instance: InstanceInfo
    requests: tuple[AcceleratorRequest, ...]
    selection: Allocations
    flavor: FlavorRequest
    named: Mapping[str, Sequence[str]]

    @property
    def uuids(self) -> set[str]:
        """The UUIDs of the requests."""
        return {each.uuid for each in self.requests}


@dataclasses.dataclass(eq=False, repr=False)
class Manager:
    """Implement the public API; :mod:`os_acc.service` creates it.

    Thread-safe: the mutable state is in the store, and every change of a
    consumer's leases happens under the consumer's lock.
    """

    services: Services
    settings: conf.Settings
    life: lifecycle.Lifecycle
    _programmer: programming.Programmer
    _owner: Owner
    catalog: Catalog
    profiles: ProfileLookup
    publisher: sync.Publisher
    regions: region_operations.RegionOperations
    recovery: Recovery
    retrier: Retrier
    nova_events: external_events.NovaEvents
    _networks: Callable[[], NetworkAffinity]
    vfs: sriov.VfMaker

    def __post_init__(self) -> None:
        services = self.services
        self.root, self.plugins = services.root, services.plugins
        self.store, self.locks = services.store, services.locks
        self.cdev = functools.partial(vfio.cdev, services.root)
        self._confirmer = confirmation.Confirmer(
            services, self.life, self.catalog, self._programmer
        )
        self.health_steps = health_steps.HealthStepReader(
            services.root,
            services.helper,
            services.plugins,
            self.catalog.snapshots,
            self.catalog.health,
            services.state_path,
        )

    # -- what Nova calls ---------------------------------------------------

    def plug(
        self, instance_info: object, selected: object, flavor_extra_specs: object
    ) -> list[AcceleratorEntry]:
        """See :func:`os_acc.plug`."""
        deadline = time.monotonic() + self.settings.plug_timeout
        instance = InstanceInfo.from_api(instance_info)
        selection = allocation_candidates.parse_selected_rp(selected)
        if selection is None:
            # After a power cut the source of profiles may not be available yet.
            request = extra_specs.parse(expansion.without_profile(flavor_extra_specs))
        else:
            request = self._request(flavor_extra_specs, deadline)
        with self.locks.hold([consumer_lock(instance.uuid)], deadline):
            leases = self._attach(instance, selection, request, deadline)
        return [self._entry(lease) for lease in leases]

    def unplug(self, instance_info: object) -> int:
        """See :func:`os_acc.unplug`."""
        deadline = time.monotonic() + self.settings.unplug_timeout
        consumer = instance_uuid(instance_info)
        with self.locks.hold([consumer_lock(consumer)], deadline):
            leases = self.store.until(deadline).leases(consumer)
            others = []
            for lease in leases:
                if lease.state is LeaseState.QUARANTINED:
                    # An error would prevent Nova from ever deleting the server.
                    LOG.warning(
                        "unplug leaves %s of instance %s in quarantine: %s (run "
                        "'os-acc device release %s')",
                        lease.address,
                        lease.consumer_title,
                        lease.reason,
                        lease.address,
                    )
                elif not lease.erasure:
                    others.append(lease)
            return self.give_back(others, deadline) if others else 0

    def give_back(self, leases: Sequence[Lease], deadline: float) -> int:
        """Release leases and update the snapshot; return the number of leases.

        The caller holds the consumers' locks. With ``reprogram_at_release``, regions
        that the guests could program are programmed again.

        :raises DevicesUnreleased: some devices could not be given back.
        """
        released = self.life.release(leases, deadline)
        for lease in released.done:
            LOG.info("released %s of instance %s", lease.address, lease.consumer_title)
        failed = bool(released.failed)
        why = self.catalog.count_released((*leases, *released.done), failed, deadline)
        self.regions.restore_released(released.done, deadline)
        if any(lease.needs_erase for lease in released.done):
            self.retrier.retry_now()
        if failed:
            failure = released.failure()
            if why is not None:
                failure.add_note(f"cannot count the leases: {why}")
            raise failure
        return len(released.done)

    def renew(self, instance: InstanceInfo, deadline: float) -> None:
        """Confirm the leases of an instance; the caller holds its lock."""
        leases = self.store.until(deadline).leases(instance.uuid)
        held = self.recovery.settled(instance.uuid, leases, deadline)
        self._confirmer.recorded(instance, NOTHING_SAID, held, deadline)

    def check_bind(self, batch: Batch, deadline: float) -> None:
        """Check a binding, before another one is made; see :meth:`bind`.

        :raises ProviderNotFound: a provider does not belong to this host.
        :raises InvalidAllocation: a provider has other resources.
        :raises Conflict: the consumer has other accelerators.
        """
        self.catalog.check_ours(dict(batch.selection.entries), deadline)
        matching.match_groups(batch.flavor, batch.selection, self.catalog.ours)
        consumer, uuids = batch.instance.uuid, batch.uuids
        for lease in self.store.until(deadline).leases(consumer):
            if lease.state is LeaseState.HELD and lease.request_uuid not in uuids:
                raise _of_other_requests(consumer)

    def bind(self, batch: Batch, deadline: float) -> None:
        """Plug accelerator requests that :meth:`check_bind` has accepted.

        The caller holds the consumer's lock.

        :raises Conflict: the consumer has other accelerators.
        """
        leases = self._attach(
            batch.instance, batch.selection, batch.flavor, deadline, batch.named
        )
        if {lease.request_uuid for lease in leases} != batch.uuids:
            raise _of_other_requests(batch.instance.uuid)

    def rekey(self, consumer: object, new_consumer: object) -> int:
        """See :func:`os_acc.rekey`."""
        deadline = time.monotonic() + self.settings.unplug_timeout
        old, new = consumer_uuid(consumer), consumer_uuid(new_consumer)
        with self.locks.hold([consumer_lock(old), consumer_lock(new)], deadline):
            store = self.store.until(deadline)
            for each in (old, new):
                self.recovery.settled(each, store.leases(each), deadline)
            return len(store.rekey(old, new))

    # -- inventory and leases ----------------------------------------------

    def requests_accelerators(self, flavor_extra_specs: object) -> bool:
        """See :func:`os_acc.requests_accelerators`."""
        deadline = time.monotonic() + self.settings.plug_timeout
        request = self._request(flavor_extra_specs, deadline)
        # A request for a vanished device counts, so that plug() reports it.
        ours = self.catalog.ours
        if extra_specs.requests_accelerators(request, set(ours.values())):
            return True
        if any(group.resources for group in request.groups):
            self.discover()
        return extra_specs.requests_accelerators(request, set(ours.values()))

    def owns_any(self, allocations: object) -> bool:
        """See :func:`os_acc.owns_any`."""
        deadline = time.monotonic() + self.settings.plug_timeout
        found = {} if allocations is None else allocations
        return self.catalog.owns_any(
            allocation_candidates.parse_allocations(found, "allocations"), deadline
        )

    def attached(self, instance_info: object) -> dict[str, list[AcceleratorEntry]]:
        """See :func:`os_acc.attached`."""
        consumer = None if instance_info is None else instance_uuid(instance_info)
        return serialize.by_consumer(self.store.leases(consumer), self._entry)

    def _entry(self, lease: Lease) -> AcceleratorEntry:
        # The lease of an adopted device names none.
        provider = lease.provider or self.catalog.snapshots.provider_of(lease.address)
        return serialize.accelerator(lease, self.cdev, provider)

    def discover(self, deadline: float = math.inf) -> discovery.Inventory:
        """Scan the host; return the devices that it offers now."""
        return self.catalog.look(deadline)

    def refresh(self) -> None:
        """Update the snapshot of the host, for calls that cannot wait."""
        self.catalog.snapshots.refresh()
        if self.catalog.read_health():
            self.catalog.snapshots.refresh()

    def watch(self) -> None:
        """Update the snapshot as the monitor does, and have root do what is due."""
        self.vfs.make(time.monotonic() + self.settings.plug_timeout)
        self.refresh()
        self.health_steps.begin()

    def providers(self) -> tuple[Provider, ...]:
        """Return the providers of the devices that the host offers now."""
        return tuple(self.discover().providers.values())

    def update_provider_tree(
        self, provider_tree: object, nodename: object, unallocated: Collection[str] = ()
    ) -> None:
        """See :func:`os_acc.update_provider_tree`."""
        self.catalog.write(provider_tree, nodename, unallocated)

    def publish(self, deadline: float = math.inf) -> sync.SyncResult:
        """Publish directly in Placement; see :func:`os_acc.sync_placement`."""
        return self.catalog.publish(self.publisher, deadline)

    def host_info(self) -> HostInfo:
        """See :func:`os_acc.host_info`."""
        return {
            "contract": list(base.CONTRACT_VERSION),
            "plugins": [
                {
                    "name": self.plugins.name_of(each),
                    "contract": list(each.contract_version),
                }
                for each in self.plugins.loaded
            ],
            "set_aside": [
                {"name": each.name, "reason": each.reason}
                for each in (*self.plugins.set_aside, *self.discover().set_aside)
            ],
        }

    # -- parts of a plug ---------------------------------------------------

    def _request(self, flavor_extra_specs: object, deadline: float) -> FlavorRequest:
        expanded = self.profiles.expanded(flavor_extra_specs, deadline)
        request = extra_specs.parse(expanded.specs)
        return dataclasses.replace(
            request, profile=expanded.profile, unreadable_profile=expanded.unreadable
        )

    def _attach(
        self,
        instance: InstanceInfo,
        selection: Selection | None,
        request: FlavorRequest,
        deadline: float,
        named: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> tuple[Lease, ...]:
        """Serve a request, or confirm the leases that do; the caller holds the lock.

        :param selection: None: only confirm the recorded leases.
        :param named: the UUIDs for the leases of each group, by its suffix.
        """
        # Retries run in threads of their own; this plug waits for none but the
        # programming of a region that it needs.
        self.retrier.retry_now()
        with self.catalog.recounting(deadline):
            # An invalid policy is an error even if leases are only confirmed.
            policies = Policies.of(instance, request.pci_numa_policy)
            # 1. Read the store, and settle what a crash has left of the consumer.
            leases, read = self.catalog.read(instance.uuid, deadline)
            held = self.recovery.settled(instance.uuid, leases, deadline)
            # 2. Confirm the leases that serve the request, without a scan of the host.
            if selection is None:
                return self._confirmer.recorded(instance, policies, held, deadline)
            if any(lease.guest.cells != instance.numa_cells for lease in held):
                planning.check_networks(self.root, instance, self._networks)
            if held and self._confirmer.match(held, request, selection):
                return self._confirmer.confirm(instance, policies, held, deadline)
            # 3. Scan the host. Another process may have recorded providers since.
            inventory = self.catalog.look(deadline, read)
            # Held leases may serve a profile that cannot be read at present.
            if held and self._confirmer.match(held, request, selection):
                return self._confirmer.confirm(instance, policies, held, deadline)
            matching.check_promise(request, selection, self.catalog.ours)
            # 4. Match the groups to providers.
            traits = self.catalog.trait_view(
                inventory, request, selection, self.publisher, deadline
            )
            allocations = matching.match_groups(
                request, selection, self.catalog.ours, traits
            )
            if held:
                raise exception.Conflict(
                    f"instance {instance.uuid} already holds accelerators of another "
                    "request",
                    reason=exception.ConflictReason.CONSUMER,
                )
            policies.check({each.group_suffix for each in allocations})
            # 5. Take free devices.
            planner = planning.LeasePlanner(
                self.root,
                self._owner,
                instance,
                allocations,
                fingerprint(allocations, found=selection.is_unmapped),
                DeviceSelector(planning.guest_cells(self.root, instance), policies),
                named,
                profile=request.profile,
            )
            if not allocations:
                return ()
            return self._attach_new(planner, inventory, deadline)

    def _attach_new(
        self,
        planner: planning.LeasePlanner,
        inventory: discovery.Inventory,
        deadline: float,
    ) -> tuple[Lease, ...]:
        """Serve a new request with free devices.

        The store or the helper refuses a device that another plug has taken meanwhile;
        the next round selects again.
        """
        instance = planner.instance
        # Not if leases are confirmed: a guest keeps its cells with a later interface.
        planning.check_networks(self.root, instance, self._networks)
        while True:
            try:
                # 1. Select devices, and plan their leases.
                planned = planner.plan(inventory, deadline)
                for each in planned:
                    vfio.require_drivers(self.root, each.vfio_drivers)
                # 2. Fetch and verify their bitstreams.
                recorded = inventory.recorded_state
                with self._programmer.plan(
                    planned, instance.image_id, recorded, deadline
                ) as (decided, jobs):
                    # 3. Prepare the devices. Undo: establish() rolls back.
                    leases = self.life.establish(decided, recorded, deadline, jobs)
                break
            except _PASSING as error:
                LOG.debug("instance %s: selecting again: %s", instance.title, error)
                planner, inventory = self._next_round(
                    error, planner, inventory, deadline
                )
        if any(lease.programming for lease in leases):
            self.catalog.publish_regions(deadline)
        addresses = ", ".join(str(lease.address) for lease in leases)
        LOG.info("attached %s to instance %s", addresses, instance.title)
        planning.log_remote(leases)
        return leases

    def _next_round(
        self,
        error: exception.OsAccError,
        planner: planning.LeasePlanner,
        inventory: discovery.Inventory,
        deadline: float,
    ) -> tuple[planning.LeasePlanner, discovery.Inventory]:
        """Return the planner and the inventory of the round after a passing error."""
        providers = {each.provider_uuid for each in planner.allocations}
        is_late = time.monotonic() >= deadline
        match error:
            case FunctionElsewhere() if not is_late:
                # Only the images show which PCI functions reach their functions.
                return planner.among(error.reaching), inventory
            case AlreadyLeased() | StoreReplaced() if not is_late:
                # Another plug was faster; in each round one of them succeeds.
                return planner.among({}), self.catalog.look(deadline)
            case verification.Unsettled() | client.DeviceClaimed():
                # The host still sets up a new device, or the helper has taken the
                # device for a lease that the store has lost.
                self.catalog.reconciler.invalidate()
                inventory = self.catalog.look(deadline)
                if providers <= inventory.providers.keys() and not is_late:
                    return planner, inventory
            case client.DeviceInParts() if not is_late:
                fresh = self.catalog.look(deadline)
                if planning.has_others(inventory, fresh, providers, error.address):
                    return planner, fresh
            case exception.HostStepFailed(reason=exception.StepReason.UNSUITABLE):
                fresh = self.catalog.look(deadline)
                left = planning.free(fresh, providers)
                # It is refused now, unless that could not be recorded.
                if left and planning.free(inventory, providers) - left and not is_late:
                    return planner.among({}), fresh
            case exception.DeviceInUse() if not is_late:
                return planner.without(error, inventory).among({}), inventory
            case exception.NoDeviceAvailable() | exception.RegionUnusable():
                # A region that is programmed without a guest is free soon.
                if self.regions.await_programming(inventory, providers, deadline):
                    return planner.among({}), self.catalog.look(deadline)
        raise error


def _of_other_requests(consumer: str) -> exception.Conflict:
    return exception.Conflict(
        f"instance {consumer} already holds accelerators of other requests",
        reason=exception.ConflictReason.CONSUMER,
    )
