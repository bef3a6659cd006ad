# SPDX-License-Identifier: Apache-2.0

"""Read the store without side effects.

Opening a :class:`os_acc.store.leases.Store` creates missing files and lock files, and
replaces a damaged store. Reading a snapshot does none of this; an older schema is
upgraded in memory alone.
"""

from __future__ import annotations

import dataclasses

from os_acc.objects.accelerator_request import AcceleratorRequest
from os_acc.objects.records import NO_NAMES, PublishedNames, RecordedState
from os_acc.store import journal, providers, records, requests, schema
from os_acc.store.database import Database
from os_acc.store.errors import StoreDamaged
from os_acc.store.journal import Event


@dataclasses.dataclass(frozen=True, slots=True)
class StoreSnapshot(RecordedState):
    """The contents of a store; empty if there is no store yet.

    :ivar damaged_files: damaged stores that were set aside.
    :ivar published_names: the names that os_acc published in Placement.
    :ivar requests: accelerator requests made from device profiles, with their
        leases.
    :ivar events: the events that were requested, in chronological order.
    """

    damaged_files: tuple[str, ...] = ()
    published_names: PublishedNames = NO_NAMES
    requests: tuple[AcceleratorRequest, ...] = ()
    events: tuple[Event, ...] = ()


def read(state_path: str, *, events: int = 0) -> StoreSnapshot:
    """Return the current contents of the store below a state directory.

    :param events: number of the newest events to read as well.
    :raises StoreDamaged: the store is damaged; it is left in place.
    :raises StateUnavailable: the store cannot be read.
    """
    database = Database(state_path)
    image = database.read()
    if image is None:
        return StoreSnapshot(damaged_files=database.damaged)
    try:
        with schema.opened(image, database.path) as connection:
            schema.check(connection, database.path)
            leases, damaged = records.load(connection)
            for row, why in damaged:
                records.set_aside(connection, row, why)
            return providers.recorded_state(
                StoreSnapshot,
                connection,
                leases,
                damaged_files=database.damaged,
                published_names=providers.read_published_names(connection),
                requests=requests.with_leases(requests.select(connection), leases),
                events=journal.newest(connection, events) if events else (),
            )
    except schema.Damaged as error:
        raise StoreDamaged(
            f"{database.path} is damaged ({error})",
            path=database.path,
            hint="restart nova-compute: it sets the file aside, and saves what can "
            "be read of it",
        ) from error
