# SPDX-License-Identifier: Apache-2.0

"""The current inventory of the host, as cached and as published in Placement."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeAlias

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.helper import reconciliation
from os_acc.host import health
from os_acc.host.pci import Host
from os_acc.inventory import discovery, monitor, snapshots
from os_acc.objects.device import Provider, RejectedDevice
from os_acc.objects.device_spec import OperatorRules
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.records import RecordedState
from os_acc.objects.request_group import (
    AllocationEntries,
    Allocations,
    FlavorRequest,
    Selection,
)
from os_acc.placement import device_traits, published, sync
from os_acc.placement.provider_tree import TreeWriter
from os_acc.plugins import loader
from os_acc.scheduling.missing_mappings import TraitView
from os_acc.store.errors import StoreReplaced
from os_acc.store.leases import Store

LOG = log.getLogger(__name__)

# Others may lease and release a device without end.
_MOST_SCANS: Final = 4

#: A number that orders readings, and the records.
Reading: TypeAlias = tuple[int, RecordedState]


class Catalog:
    """Scan the host, and keep the result for callers that cannot wait; thread-safe.

    :ivar ours: the resource class of every provider that this host ever offered,
        by UUID. It identifies a provider of ours whose device has vanished.
    :ivar snapshots: the capacity, for callers that cannot wait for sysfs.
    :ivar memory: the names that are published in Placement.
    :ivar tree: the writer of Nova's provider trees.
    """

    def __init__(
        self,
        root: str,
        node_name: str,
        rules: OperatorRules,
        loaded: loader.Plugins,
        store: Store,
        rejections: discovery.RejectionLog,
        faults: monitor.FaultTracker,
        reconciler: reconciliation.Reconciler,
    ) -> None:
        self._root = root
        self._node_name = node_name
        self._rules = rules
        self._plugins = loaded
        self._store = store
        self._rejections = rejections
        self.health = faults
        self.reconciler = reconciler
        self.ours = store.providers()
        self.snapshots = snapshots.Snapshots(self.look)
        self.memory = published.PublishedCache(store.published_names())
        self.tree = TreeWriter(node_name, self.memory, rules.named.resource_classes)
        self._unknown: frozenset[RejectedDevice] = frozenset()
        deadlines.reset_after_fork(self)

    def forget_parent(self) -> None:
        """In a forked child, replace the locks that threads of the parent may hold."""
        self.snapshots.forget()
        self.tree.forget()
        self.memory.forget()

    def read(
        self, consumer: str, deadline: float
    ) -> tuple[tuple[Lease, ...], Reading | None]:
        """Read the leases of a consumer; if it has none, read all records as well."""
        began = self.snapshots.begin()
        leases, all_records = self._store.until(deadline).leases_or_all(consumer)
        return leases, None if all_records is None else (began, all_records)

    def look(
        self, deadline: float = math.inf, read: Reading | None = None
    ) -> discovery.Inventory:
        """Return the devices that the host offers now, in view of the leases.

        :param read: the records as :meth:`read` has returned them just now.
        :raises StoreReplaced: the store was replaced in each attempt until the
            deadline.
        """
        while True:
            try:
                return self._look(deadline, read)
            except StoreReplaced as error:
                LOG.debug("scanning the host again: %s", error)
                read = None
                if time.monotonic() >= deadline:
                    raise

    def _look(self, deadline: float, read: Reading | None) -> discovery.Inventory:
        store = self._store.until(deadline)
        began, found = read or (self.snapshots.begin(), None)
        for _ in range(_MOST_SCANS):
            recorded, inventory, is_sure = self._scanned(store, deadline, found)
            found = None
            if is_sure:
                break
        self._unknown = inventory.unknown
        self._rejections.log_new(inventory)
        self._remember(inventory, recorded, store)
        self.snapshots.note(began, recorded, inventory.providers.values())
        return inventory

    def _scanned(
        self, store: Store, deadline: float, found: RecordedState | None
    ) -> tuple[RecordedState, discovery.Inventory, bool]:
        """Return the leases, the devices, and whether the leases explain each of them.

        A device that was leased during the scan looks unknown. If its lease has
        ended meanwhile as well, only another scan shows the device as free. A device
        that was unknown before needs no other scan. Capacity may have been kept for a
        device that was given back during the scan: another scan is needed.
        """
        before = self.reconciler.recorded_state(store, deadline, found)
        inventory = self._discovered(before, deadline)
        if not (inventory.unknown or inventory.absent):
            return before, inventory, True
        recorded = self.reconciler.recorded_state(store, deadline)
        if recorded.store != before.store:
            raise StoreReplaced("the store was replaced while the host was read")
        held = {each.uuid for each in recorded.leases if each.state is LeaseState.HELD}
        if not inventory.absent <= held:
            return recorded, inventory, False
        if not inventory.unknown:
            return before, inventory, True
        if not recorded.leased <= before.leased:
            both = dataclasses.replace(
                recorded, leases=(*before.leases, *recorded.leases)
            )
            inventory = self._discovered(both, deadline, inventory.host)
        is_sure = recorded.epoch == before.epoch or inventory.unknown <= self._unknown
        return recorded, inventory, is_sure

    def _discovered(
        self, recorded: RecordedState, deadline: float, host: Host | None = None
    ) -> discovery.Inventory:
        return discovery.discover(
            self._root,
            self._rules,
            self._plugins,
            self._node_name,
            recorded,
            deadline,
            host,
            self.health.faults,
        )

    def offered(self, deadline: float) -> Collection[Provider]:
        """Return the providers of the last scan; scan the host if there was none.

        :raises OsAccError: that scan has failed.
        """
        providers, _taken = self.snapshots.offered()
        return providers or self.look(deadline).providers.values()

    def assuming(self, lease: Lease, deadline: float) -> discovery.Inventory:
        """Return the devices as with one more lease; record and publish nothing."""
        recorded = self._store.until(deadline).recorded_state()
        more = dataclasses.replace(recorded, leases=(*recorded.leases, lease))
        return self._discovered(more, deadline)

    def read_health(self) -> bool:
        """Read the health of the devices of the last scan, for later scans.

        Of a guest's device, only whether it answers is read.

        :returns: whether the faults have changed.
        """
        free, held = self.snapshots.functions()
        most = self._rules.max_uncorrectable_errors
        readings = self.health.readings
        found = health.faults(self._root, free, most, held, readings.faults)
        return readings.note(found)

    @contextlib.contextmanager
    def recounting(self, deadline: float) -> Iterator[None]:
        """Count the leases again if the operation in here fails."""
        try:
            yield
        except exception.OsAccError as error:
            if (why := self.recount(deadline)) is not None:
                error.add_note(f"cannot count the leases: {why}")
            raise

    def recount(self, deadline: float) -> exception.StateUnavailable | None:
        """Update the leases of the snapshot after a failure.

        An error is returned, not raised: it must not hide that failure.
        """
        began = self.snapshots.begin()
        try:
            recorded = self._store.until(deadline).recorded_state()
        except exception.StateUnavailable as error:
            LOG.warning("cannot read the leases, will retry: %s", error)
            self.snapshots.expire()
            return error
        self.snapshots.note(began, recorded)
        return None

    def count_released(
        self, leases: Collection[Lease], failed: bool, deadline: float
    ) -> exception.StateUnavailable | None:
        """Update the snapshot after a release.

        A unit counts the same whether it is leased or free, unless no allocation
        counted it, its release fails, it has to be erased, or its device has vanished.

        :param leases: the leases before the release, and the released ones.
        :returns: the error that prevented the update.
        """
        why = None
        if (
            failed
            or any(lease.is_unallocated or lease.needs_erase for lease in leases)
            or not self.snapshots.offers(leases)
        ):
            why = self.recount(deadline)
        if any(lease.programming for lease in leases):
            self.publish_regions(deadline)
        return why

    def _remember(
        self, inventory: discovery.Inventory, recorded: RecordedState, store: Store
    ) -> None:
        """Record the providers, so that they are known after their devices vanish."""
        stored = recorded.provider_classes
        # self.ours may have providers of a tree or of Placement, stored those of
        # other processes.
        known = {**self.ours, **stored, **inventory.classes}
        new = dict(known.items() - stored.items())
        origins, plugins = inventory.provider_origins, inventory.provider_plugins
        totals = inventory.mdev_totals
        if (
            new
            or not origins.items() <= recorded.provider_origins.items()
            or not plugins.items() <= recorded.provider_plugins.items()
            or not totals.items() <= recorded.mdev_totals.items()
        ):
            store.record_providers(new, origins, plugins, totals)
        # In place: two threads that each find a new card must both keep it.
        self.ours.update(known)
        self.memory.record(inventory.providers.values(), store)

    def publish_regions(self, deadline: float) -> None:
        """Update the region traits of the snapshot."""
        try:
            self.look(deadline)
        except exception.OsAccError as error:
            LOG.warning("cannot update the region traits, will retry: %s", error)
            self.snapshots.expire()

    def check_ours(self, providers: Iterable[str], deadline: float) -> None:
        """Check that providers belong to this host.

        :raises ProviderNotFound: one of them was never offered.
        """
        providers = set(providers)
        if providers <= self.ours.keys():
            return
        # Another process may have found the provider.
        self.look(deadline)
        for uuid in sorted(providers - self.ours.keys()):
            raise exception.ProviderNotFound(
                f"resource provider {uuid} does not belong to this host",
                hint="'os-acc provider list' shows this host's providers",
            )

    def owns_any(self, entries: AllocationEntries, deadline: float) -> bool:
        """Return whether an allocation is on a provider that was ever offered here.

        :raises StateUnavailable: the store has to be read, and cannot be.
        """
        if any(uuid in self.ours for uuid, _resources in entries):
            return True
        # Other servers must not depend on the store.
        given = published.given_classes(
            {*self._rules.named.resource_classes, *self.ours.values()},
            self.memory.names,
        )
        unknown = {
            uuid
            for uuid, resources in entries
            if published.classes_of(dict(resources), given)
        }
        # Another process may have found these providers.
        return bool(unknown) and not unknown.isdisjoint(
            self._store.until(deadline).providers()
        )

    def trait_view(
        self,
        inventory: discovery.Inventory,
        request: FlavorRequest,
        selection: Selection,
        publisher: sync.Publisher,
        deadline: float,
    ) -> TraitView:
        """Return the known traits; those in Placement are read if they matter.

        :raises ServiceError: Placement does not answer.
        """
        view = TraitView(
            own={
                each.uuid: each.device.traits for each in inventory.providers.values()
            },
            published=self.tree.traits,
            changes=device_traits.may_change,
        )
        if not isinstance(selection, Allocations) or not selection.is_unmapped:
            return view
        unread = view.unread(request, selection, set(self.ours.values()))
        if not unread:
            return view
        try:
            found = publisher.traits(unread, deadline)
        except exception.InvalidConfiguration as error:
            if error.reason is not exception.ConfigurationReason.NOT_CONFIGURED:
                raise
            LOG.debug("cannot read the traits that others set: %s", error)
            return view
        return dataclasses.replace(view, published={**view.published, **found})

    def write(
        self, provider_tree: object, nodename: object, unallocated: Collection[str]
    ) -> None:
        """See :func:`os_acc.update_provider_tree`."""
        newest = self.snapshots.newest(unallocated)
        recognized = self.tree.write(provider_tree, nodename, newest)
        # The next scan records them; Nova does not wait for the store.
        self.ours.update(recognized)

    def publish(
        self, to: sync.Publisher, deadline: float = math.inf
    ) -> sync.SyncResult:
        """See :func:`os_acc.sync_placement`.

        :param deadline: the latest end; ``sync_timeout`` may be earlier.
        """
        deadline = min(deadline, to.deadline())
        self.look(deadline)
        record = self.memory.above(self._store.until(deadline))
        found = to.sync(self.snapshots.newest(), record, deadline)
        self.ours.update(found.recognized)
        return found
