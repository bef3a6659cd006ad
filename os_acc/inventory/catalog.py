# SPDX-License-Identifier: Apache-2.0

"""What this host offers, as this process knows it and Placement is told it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterable, Iterator

from oslo_log import log

from os_acc import exception, plugins
from os_acc.helper import reconciliation
from os_acc.host.view import Host
from os_acc.inventory import discovery, monitor, snapshots
from os_acc.objects.lease import Lease, RecordedState
from os_acc.objects.request import FlavorRequest
from os_acc.objects.selection import Allocations, Selection
from os_acc.placement import published, region_traits, sync
from os_acc.placement.provider_tree import TreeWriter
from os_acc.scheduling.assignment.trait_view import TraitView
from os_acc.store.database import StoreReplaced
from os_acc.store.leases import Store

LOG = log.getLogger(__name__)


class Catalog:
    """The host is looked at here, and what is seen is kept for those who cannot wait.

    Thread-safe.

    :ivar ours: all providers that this host ever offered, as far as it is known:
        uuid to resource class. A device that has vanished is known for ours by it.
    :ivar snapshots: what is offered, for those who cannot wait for sysfs.
    :ivar memory: what Placement was told.
    :ivar tree: who writes into Nova's provider tree.
    """

    def __init__(
        self,
        root: str,
        node_name: str,
        rules: discovery.OperatorRules,
        loaded: plugins.Plugins,
        store: Store,
        told: discovery.RejectionLog,
        health: monitor.FaultTracker,
        reconciler: reconciliation.Reconciler,
    ) -> None:
        self._root = root
        self._node_name = node_name
        self._rules = rules
        self._plugins = loaded
        self._store = store
        self._told = told
        self.health = health
        self.reconciler = reconciler
        self.ours = store.providers()
        self.snapshots = snapshots.Snapshots(self.look)
        self.memory = published.PublishedCache(store.told())
        self.tree = TreeWriter(node_name, self.memory, rules.named.resource_classes)

    def forget_parent(self) -> None:
        """In a forked child: wait for none of the parent's threads."""
        self.snapshots.forget()
        self.tree.forget()
        self.memory.forget()

    def look(self, deadline: float = math.inf) -> discovery.Inventory:
        """Return the devices that the host offers now, judged by the leases.

        :raises StoreReplaced: there is another store each time, until the deadline.
        """
        while True:
            try:
                return self._look(deadline)
            except StoreReplaced as error:
                LOG.debug("looks again: %s", error)
                if time.monotonic() >= deadline:
                    raise

    def _look(self, deadline: float) -> discovery.Inventory:
        store = self._store.until(deadline)
        began = self.snapshots.begin()
        standing = self.reconciler.standing(store, deadline)
        stock = self._judged(standing, deadline)
        if stock.has_unknown:
            # What was leased while the host was read looks like nobody's.
            before, standing = standing, self.reconciler.standing(store, deadline)
            if standing.store != before.store:
                raise StoreReplaced("the store was replaced while the host was read")
            if not standing.leased <= before.leased:
                both = dataclasses.replace(
                    standing, leases=(*before.leases, *standing.leases)
                )
                stock = self._judged(both, deadline, stock.host)
        self._told.tell(stock)
        self._remember(stock, standing, store)
        self.snapshots.note(began, standing, stock.providers.values())
        return stock

    def _judged(
        self, standing: RecordedState, deadline: float, host: Host | None = None
    ) -> discovery.Inventory:
        return discovery.discover(
            self._root,
            self._rules,
            self._plugins,
            self._node_name,
            standing,
            deadline,
            host,
            self.health.faults,
        )

    @contextlib.contextmanager
    def recounting(self, deadline: float) -> Iterator[None]:
        """Count the leases again if the operation in here fails."""
        try:
            yield
        except exception.OsAccError as error:
            if (why := self.recount(deadline)) is not None:
                error.add_note(f"nor can the leases be counted: {why}")
            raise

    def recount(self, deadline: float) -> exception.StateUnavailable | None:
        """Let the snapshot know which leases there are after a failure.

        What keeps it from that is returned: the failure is more important.
        """
        began = self.snapshots.begin()
        try:
            standing = self._store.until(deadline).standing()
        except exception.StateUnavailable as error:
            LOG.warning("the leases are counted later: %s", error)
            self.snapshots.expire()
            return error
        self.snapshots.note(began, standing)
        return None

    def count_released(
        self, before: Iterable[Lease], failed: bool, deadline: float
    ) -> exception.StateUnavailable | None:
        """Let the snapshot know what a release has changed.

        A unit counts the same whether it is leased or free. It does not where
        its release fails, or has failed before, or its device has vanished.

        :param before: the leases, as they were before the release.
        :returns: what keeps the leases from being counted.
        """
        leases = tuple(before)
        why = None
        if (
            failed
            or any(lease.has_failed_release for lease in leases)
            or not self.snapshots.offers(leases)
        ):
            why = self.recount(deadline)
        if any(lease.programming for lease in leases):
            self.publish_regions(deadline)
        return why

    def _remember(
        self, stock: discovery.Inventory, standing: RecordedState, store: Store
    ) -> None:
        """Know every provider again whose device has vanished: it is ours."""
        recorded = store.providers()
        # Another process may have found some, and a tree or Placement others.
        known = {**self.ours, **recorded, **stock.classes}
        new = dict(known.items() - recorded.items())
        if (
            new
            or not stock.places.items() <= standing.places.items()
            or not stock.plugins.items() <= standing.plugins.items()
        ):
            store.remember_providers(new, stock.places, stock.plugins)
        # In place: two threads that find a new card each keep both.
        self.ours.update(known)
        self.memory.tell(stock.providers.values(), store)

    def publish_regions(self, deadline: float) -> None:
        """Let the snapshot know what regions hold: it is among their traits."""
        try:
            self.look(deadline)
        except exception.OsAccError as error:
            LOG.warning("what regions hold is told later: %s", error)
            self.snapshots.expire()

    def check_ours(self, providers: Iterable[str], deadline: float) -> None:
        """Hold providers against all that this host ever offered.

        :raises ProviderNotFound: one is none of them.
        """
        providers = set(providers)
        if providers <= self.ours.keys():
            return
        # What this process has not seen yet may be ours as well.
        self.look(deadline)
        for uuid in sorted(providers - self.ours.keys()):
            raise exception.ProviderNotFound(
                f"resource provider {uuid} is none of this host's accelerators",
                hint="'os-acc provider list' shows them",
            )

    def known(
        self,
        stock: discovery.Inventory,
        request: FlavorRequest,
        selection: Selection,
        asked: sync.Publisher,
        deadline: float,
    ) -> TraitView:
        """What there is to know of traits; Placement is asked where that decides.

        :raises PlacementError: it does not answer.
        """
        known = TraitView(
            own={each.uuid: each.device.traits for each in stock.providers.values()},
            heard=self.tree.heard,
            changes=region_traits.may_change,
        )
        if not isinstance(selection, Allocations) or not selection.is_unmapped:
            return known
        unheard = known.unheard(request, selection, set(self.ours.values()))
        if not unheard:
            return known
        try:
            told = asked.traits(unheard, deadline)
        except exception.PlacementNotConfigured as error:
            LOG.debug("which traits others have set is not known: %s", error)
            return known
        return dataclasses.replace(known, heard={**known.heard, **told})

    def write(self, provider_tree: object, nodename: object) -> None:
        """See :func:`os_acc.update_provider_tree`."""
        newest = self.snapshots.newest()
        recognized = self.tree.write(provider_tree, nodename, newest, self.ours)
        # On record with the next look: whoever asks here does not wait for it.
        self.ours.update(recognized)

    def publish(self, to: sync.Publisher) -> sync.SyncResult:
        """See :func:`os_acc.sync_placement`."""
        deadline = to.deadline()
        self.look(deadline)
        record = self.memory.above(self._store.until(deadline))
        found = to.sync(self.snapshots.newest(), record, deadline)
        self.ours.update(found.recognized)
        return found
