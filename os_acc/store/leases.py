# SPDX-License-Identifier: Apache-2.0

"""The store of leases: each is durable before the host is touched."""

from __future__ import annotations

import copy
import dataclasses
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Self

from oslo_log import log
from oslo_utils import uuidutils

from os_acc import exception
from os_acc.objects.accelerator_request import AcceleratorRequest, check_found
from os_acc.objects.epoch import LIMIT, AcceptedEpochs
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.mdev import DeviceAddress, MdevType
from os_acc.objects.provider_names import ProviderOrigin
from os_acc.objects.records import NO_NAMES, PublishedNames, RecordedState
from os_acc.objects.region import RecordedImage, card_key_of
from os_acc.store import journal, records, regions, schema, snapshot
from os_acc.store.damage import restore_leases
from os_acc.store.database import Database
from os_acc.store.errors import StoreDamaged, StoreReplaced
from os_acc.store.journal import Event, Operation
from os_acc.store.regions import RegionState

LOG = log.getLogger(__name__)


class Store:
    """The leases of this host; safe for many threads and processes.

    Each method is one transaction and durable when it returns. Each may raise
    :class:`os_acc.exception.StateUnavailable` or :class:`StoreDamaged`, having
    changed nothing.

    :param clock: returns nanoseconds since 1970, UTC.
    """

    def __init__(
        self, database: Database, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._database = database
        self._clock = clock
        self._deadline = math.inf

    @classmethod
    def open(
        cls,
        state_path: str,
        busy_timeout: float,
        clock: Callable[[], int] = time.time_ns,
        deadline: float = math.inf,
    ) -> Self:
        """Open the store below a directory; create missing files.

        A damaged store is set aside and replaced without an error: see
        :attr:`damaged`.

        :param busy_timeout: limit for an operation to wait for other threads and
            processes, in seconds.
        :param deadline: deadline of the calling operation.
        :raises StateUnavailable: the store cannot be used.
        """
        store = cls(Database(state_path, busy_timeout), clock)
        try:
            store.until(deadline)._check()
        except StoreDamaged:
            store.until(deadline)._check()
        return store

    def until(self, deadline: float) -> Self:
        """Return the same store for one operation.

        No method waits longer than the operation's grace period after the
        deadline.

        :param deadline: on the clock of :func:`time.monotonic`.
        """
        other = copy.copy(self)
        other._deadline = deadline
        return other

    @property
    def damaged(self) -> tuple[str, ...]:
        """Paths of damaged files that were set aside and not removed yet."""
        return self._database.damaged

    def leases(self, consumer: str | None = None) -> tuple[Lease, ...]:
        """Return all leases, or those of one consumer, in order of creation."""
        with self._database.transaction(self._deadline) as connection:
            where = () if consumer is None else ("consumer = ?", consumer)
            return self._load(connection, *where)

    def leases_or_all(
        self, consumer: str
    ) -> tuple[tuple[Lease, ...], RecordedState | None]:
        """Return the leases of a consumer; all records only if it has none."""
        with self._database.transaction(self._deadline) as connection:
            leases = self._load(connection, "consumer = ?", consumer)
            return leases, None if leases else self._all(connection)

    def lease_of(self, address: DeviceAddress) -> Lease | None:
        """Return the lease that claims this function, if any."""
        with self._database.transaction(self._deadline) as connection:
            for _, uuid in schema.CLAIMS.read(connection, "address = ?", str(address)):
                return next(iter(self._load(connection, "uuid = ?", uuid)), None)
            return None

    def add(self, leases: Iterable[Lease], seen: str = "") -> tuple[Lease, ...]:
        """Record new leases, all or none; return them with epoch and creation time.

        :param seen: identity of the store whose leases the device selection used;
            '' if no selection took place.
        :raises AlreadyLeased: a function, or a lease's uuid, is taken.
        :raises StoreReplaced: the store is no longer the one seen.
        """
        with self._database.transaction(self._deadline) as connection:
            self._check_identity(seen)
            now = self._now()
            dated = [
                dataclasses.replace(each, created_at=each.created_at or now)
                for each in leases
            ]
            fresh = self._stamped(connection, dated)
            for lease in fresh:
                records.add(connection, lease)
                self._record(connection, Operation.ADD, lease)
            return fresh

    def replace(
        self, leases: Iterable[Lease], accepted: AcceptedEpochs | None = None
    ) -> tuple[Lease, ...]:
        """Change leases, all or none; return them with their new epoch.

        :param leases: leases with the epoch at which they were read.
        :param accepted: epochs that the helper accepts, after it rejected theirs.
        :raises NotFound: one of them is not recorded.
        :raises StaleLease: one of them was changed since it was read.
        :raises AlreadyLeased: a function that one of them now needs is taken.
        """
        with self._database.transaction(self._deadline) as connection:
            read = tuple(leases)
            current = [records.current(connection, lease) for lease in read]
            fresh = self._stamped(connection, read, accepted=accepted)
            for lease in fresh:
                records.release_claims(connection, lease)
            for row, lease in zip(current, fresh, strict=True):
                recorded = records.lease_of(*row[1:])
                records.claim(connection, lease)
                records.change(connection, lease)
                # A retry changes only the epoch and is not worth an event, nor is the
                # progress of an erasure.
                before = dataclasses.replace(recorded, epoch=lease.epoch)
                if before.erasure and lease.erasure:
                    before = before.with_erased(lease.erased)
                if before != lease:
                    is_quarantined = lease.state is LeaseState.QUARANTINED
                    kind = Operation.QUARANTINE if is_quarantined else Operation.REPLACE
                    self._record(connection, kind, lease)
            return fresh

    def delete(
        self, leases: Iterable[Lease], *, to_erase: bool = False
    ) -> tuple[Lease, ...]:
        """Delete leases, all or none; return their successors.

        The consumer's remaining accelerator requests then form a complete set:
        each of them can be unbound on its own.

        :param leases: leases with the epoch at which they were read.
        :param to_erase: a successor without a consumer claims each device in the same
            transaction (:meth:`.Lease.over`); else there are none.
        :raises NotFound: one of them is not recorded.
        :raises StaleLease: one of them was changed since it was read.
        """
        with self._database.transaction(self._deadline) as connection:
            gone = tuple(leases)
            for lease in gone:
                records.current(connection, lease)
                records.delete(connection, lease)
                if not to_erase:
                    self._record(connection, Operation.DELETE, lease)
            over = [each.over(uuidutils.generate_uuid()) for each in gone if to_erase]
            fresh = self._stamped(connection, over) if over else ()
            for lease in fresh:
                records.add(connection, lease)
                self._record(connection, Operation.ERASE, lease)
            records.unbind_requests(connection, [lease.request_uuid for lease in gone])
            counted = Counter(each.consumer for each in gone if not each.is_spare)
            for consumer, count in counted.items():
                rest = self._load(connection, "consumer = ?", consumer)
                records.shrink_requests(connection, rest, count)
            return fresh

    def rekey(self, old_consumer: str, new_consumer: str) -> tuple[Lease, ...]:
        """Transfer all leases of one consumer to another; return them changed.

        Quarantined leases of the new consumer are no conflict, nor are spare ones.

        :raises NotFound: the old consumer has none.
        :raises Conflict: the new consumer already has active leases.
        """
        with self._database.transaction(self._deadline) as connection:
            there = self._load(connection, "consumer = ?", new_consumer)
            if old_consumer == new_consumer or any(
                lease.is_of_request for lease in there
            ):
                raise exception.Conflict(
                    f"consumer {new_consumer} already holds accelerators",
                    reason=exception.ConflictReason.CONSUMER,
                )
            moved = [
                dataclasses.replace(each, consumer=new_consumer)
                for each in self._load(connection, "consumer = ?", old_consumer)
                if not each.erasure
            ]
            if not moved:
                raise exception.NotFound(
                    f"consumer {old_consumer} holds no accelerators",
                    kind=exception.ObjectKind.LEASE,
                )
            fresh = self._stamped(connection, moved)
            for lease in fresh:
                records.change(connection, lease)
                self._record(connection, Operation.REKEY, lease, f"from {old_consumer}")
            records.change_instance(
                connection, [lease.request_uuid for lease in fresh], new_consumer
            )
            return fresh

    def next_epoch(self, accepted: AcceptedEpochs | None = None) -> int:
        """Return an epoch for a privileged call that belongs to no lease.

        :param accepted: epochs that the helper accepts, after it rejected one.
        """
        with self._database.transaction(self._deadline) as connection:
            return records.next_epoch(connection, self._now(), accepted)

    def providers(self) -> dict[str, str]:
        """Return every provider ever offered: uuid to resource class."""
        with self._database.transaction(self._deadline) as connection:
            return dict(schema.PROVIDERS.read(connection))

    def record_providers(
        self,
        resource_classes: Mapping[str, str],
        origins: Mapping[str, ProviderOrigin] = MappingProxyType({}),
        plugins: Mapping[str, str] = MappingProxyType({}),
        mdev_totals: Mapping[MdevType, int] = MappingProxyType({}),
    ) -> None:
        """Record offered providers permanently, by uuid.

        :param origins: the functions that providers are named after.
        :param plugins: names of the plugins that offer the providers.
        :param mdev_totals: the units of types of mediated devices, by type.
        """
        with self._database.transaction(self._deadline) as connection:
            schema.PROVIDERS.put(connection, resource_classes.items())
            schema.PROVIDER_ORIGINS.put(
                connection,
                [(uuid, str(each.address), each.key) for uuid, each in origins.items()],
            )
            schema.PROVIDER_PLUGINS.put(connection, plugins.items())
            schema.MDEV_TOTALS.put(
                connection,
                [(each.parent, each.name, n) for each, n in mdev_totals.items()],
            )

    def published_names(self) -> PublishedNames:
        """Return the names that os_acc published in Placement."""
        with self._database.transaction(self._deadline) as connection:
            return snapshot.read_published_names(connection)

    def change_published_names(
        self, added: PublishedNames, removed: PublishedNames = NO_NAMES
    ) -> None:
        """Record names as published, and others as no longer published."""
        with self._database.transaction(self._deadline) as connection:
            snapshot.change_published_names(connection, added, removed)

    def mark_region_unverified(
        self, key: str, image_id: str
    ) -> regions.RegionRow | None:
        """Record that programming of a region with an image is about to begin.

        The region's contents are unverified until :meth:`mark_region_verified`.

        :returns: the previous record, to pass to :meth:`restore_region`.
        """
        with self._database.transaction(self._deadline) as connection:
            before, image, _ = regions.before_change(connection, key)
            regions.put(connection, key, image_id, RegionState.UNVERIFIED, image)
            return before

    def mark_region_verified(
        self, key: str, contents: str = "", image: RecordedImage | None = None
    ) -> None:
        """Record the verified contents of a region, as text of the caller's choice.

        :param image: the image with which it was programmed; None: the recorded one
            stays.
        """
        with self._database.transaction(self._deadline) as connection:
            _, recorded, _ = regions.before_change(connection, key)
            text = regions.text_of(image) if image else recorded
            regions.put(connection, key, contents, RegionState.VERIFIED, text)
            # A card that a guest has entirely has one region.
            regions.delete(connection, card_key_of(key))

    def mark_region_guest_writable(self, key: str) -> None:
        """Record a region as guest-writable, until it is verified again.

        An unverified region stays unverified.
        """
        with self._database.transaction(self._deadline) as connection:
            before, image, are_lost = regions.before_change(connection, key)
            is_unverified = before and before.state == RegionState.UNVERIFIED
            if not is_unverified and (before or not are_lost):
                regions.put(connection, key, "", RegionState.GUEST_WRITABLE, image)

    def restore_region(self, key: str, before: regions.RegionRow | None) -> None:
        """Restore the record of a region whose programming never began."""
        with self._database.transaction(self._deadline) as connection:
            regions.before_change(connection, key)
            if before is None:
                regions.delete(connection, key)
            else:
                regions.put(connection, *before)

    def requests(self, uuids: Collection[str] = ()) -> tuple[AcceleratorRequest, ...]:
        """Return all accelerator requests, or the given ones, with their leases.

        :raises NotFound: one of the given requests does not exist.
        """
        with self._database.transaction(self._deadline) as connection:
            leases = self._load(connection)
            made = records.select_requests(connection)
            wanted = [each for each in made if not uuids or each.uuid in uuids]
            found = records.with_leases(wanted, leases)
        check_found(set(uuids), found, leases)
        return found

    def add_requests(self, made: Iterable[AcceleratorRequest]) -> None:
        """Record new requests, all or none."""
        with self._database.transaction(self._deadline) as connection:
            records.put_requests(connection, made)

    def change_requests(self, changed: Iterable[AcceleratorRequest]) -> None:
        """Update requests, all or none.

        :raises NotFound: one of them no longer exists.
        """
        wanted = tuple(changed)
        with self._database.transaction(self._deadline) as connection:
            recorded = {each.uuid for each in records.select_requests(connection)}
            if not recorded.issuperset(each.uuid for each in wanted):
                raise exception.NotFound(
                    "an accelerator request was deleted meanwhile",
                    kind=exception.ObjectKind.REQUEST,
                )
            records.put_requests(connection, wanted)

    def delete_requests(self, uuids: Iterable[str]) -> None:
        """Delete requests, all or none."""
        with self._database.transaction(self._deadline) as connection:
            connection.executemany(
                "DELETE FROM requests WHERE uuid = ?", [(each,) for each in uuids]
            )

    def events(self, limit: int) -> tuple[Event, ...]:
        """Return the newest events, in chronological order."""
        with self._database.transaction(self._deadline) as connection:
            return journal.newest(connection, limit)

    def recorded_state(self) -> RecordedState:
        """Return all leases, and all else that must not be offered."""
        with self._database.transaction(self._deadline) as connection:
            return self._all(connection)

    def _all(self, connection: sqlite3.Connection) -> RecordedState:
        leases = self._load(connection)
        return snapshot.recorded_state(RecordedState, connection, leases)

    def record_helper_claims(
        self, claimed: Mapping[DeviceAddress, str], seen: str
    ) -> None:
        """Record functions and slots that the helper claims for leases missing here."""
        with self._database.transaction(self._deadline) as connection:
            self._check_identity(seen)
            connection.execute("DELETE FROM helper_claims")
            rows = [(str(address), lease) for address, lease in claimed.items()]
            schema.HELPER_CLAIMS.put(connection, rows)

    def damaged_claims(self) -> tuple[DeviceAddress, ...]:
        """Return functions and slots of leases with damaged records; not offered."""
        return self.recorded_state().damaged_claims

    def forget_damaged(self, address: DeviceAddress) -> None:
        """Delete the damaged record that claims a function, to free the function.

        :raises NotFound: no damaged record claims it.
        """
        with self._database.transaction(self._deadline) as connection:
            healthy = self._load(connection)
            if not records.delete_damaged(connection, address):
                raise exception.NotFound(
                    f"no damaged lease claims {address}",
                    kind=exception.ObjectKind.LEASE,
                )
            for lease in healthy:
                records.restore_claims(connection, lease)
            journal.record(
                connection, self._now(), Operation.FORGET, address=str(address)
            )

    def _check(self) -> None:
        with self._database.transaction(self._deadline, thorough=True) as connection:
            # An event with too high a number makes all others too old to be kept.
            for table in (schema.EVENTS, schema.REQUESTS):
                table.delete_damaged(connection)
            regions.log_damage(connection)
            for lease in restore_leases(connection):
                self._record(connection, Operation.RESTORE, lease)
                LOG.info("The record of lease %s can be read again.", lease.uuid)
            for lease in self._load(connection):
                records.restore_claims(connection, lease)

    def _check_identity(self, seen: str) -> None:
        """Check that this is the store that the caller has read; '' accepts any."""
        # Each transaction compares it with the file.
        if seen not in ("", self._database.identity):
            raise StoreReplaced("the store was replaced after it had been read")

    def _load(self, connection: sqlite3.Connection, *where: str) -> tuple[Lease, ...]:
        """Return the intact leases that match; set the damaged records aside."""
        leases, damaged = records.load(connection, *where)
        for row, why in damaged:
            records.set_aside(connection, row, why)
            journal.record(
                connection,
                self._now(),
                Operation.DAMAGED,
                consumer=str(row.consumer),
                detail=f"lease {row.uuid}: {why}",
            )
            LOG.error(
                "The record of lease %s of consumer %s is damaged: %s. Its devices"
                " are not offered until an operator releases them.",
                *(row.uuid, row.consumer, why),
            )
        return leases

    def _stamped(
        self,
        connection: sqlite3.Connection,
        leases: Iterable[Lease],
        accepted: AcceptedEpochs | None = None,
    ) -> tuple[Lease, ...]:
        epoch = records.next_epoch(connection, self._now(), accepted)
        fresh = []
        for lease in leases:
            # The epoch of a lease may be ahead of the counter, and calls that carry it
            # may be queued. The epoch only falls if the helper would reject those too.
            own = epoch if accepted else min(max(epoch, lease.epoch + 1), LIMIT)
            fresh.append(dataclasses.replace(lease, epoch=own))
        return tuple(fresh)

    def _record(
        self,
        connection: sqlite3.Connection,
        operation: Operation,
        lease: Lease,
        detail: str = "",
    ) -> None:
        journal.record(
            connection,
            self._now(),
            operation,
            consumer=lease.erasure.consumer if lease.erasure else lease.consumer,
            address=str(lease.address),
            state=lease.state.value,
            detail=detail or lease.reason,
        )

    def _now(self) -> int:
        return self._clock() // 1000
