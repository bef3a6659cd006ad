# SPDX-License-Identifier: Apache-2.0

"""Crash-safe state: leases, the journal of events, and the locks."""

from __future__ import annotations

from os_acc.store.database import owner_of
from os_acc.store.errors import AlreadyLeased, StaleLease, StoreDamaged
from os_acc.store.journal import Event, Operation
from os_acc.store.leases import Store
from os_acc.store.locks import Locks, consumer_lock, device_lock

__all__ = [
    "AlreadyLeased",
    "Event",
    "Locks",
    "Operation",
    "StaleLease",
    "Store",
    "StoreDamaged",
    "consumer_lock",
    "device_lock",
    "owner_of",
]
