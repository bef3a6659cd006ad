# SPDX-License-Identifier: Apache-2.0

"""The names that os_acc has published in Placement, and the ones that it owns.

A name is recorded in the store before it is published, and kept in memory for
callers that cannot wait for the store. The name of a provider shows whether it
belongs to os_acc, also after the record is lost.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Iterable
from typing import Final, Protocol

import os_resource_classes as orc

from os_acc.objects.device import Provider
from os_acc.objects.records import NO_NAMES, NameKind, PublishedNames, classes, traits


class PublishedRecord(Protocol):
    """The record of published names; the store implements it."""

    def published_names(self) -> PublishedNames:
        """Return all published names."""

    def change_published_names(
        self, added: PublishedNames, removed: PublishedNames = NO_NAMES
    ) -> None:
        """Record names as published, and others as no longer published.

        The change is durable on return.
        """


class PublishedCache:
    """The published names on record, as cached in this process.

    :ivar names: the names that Placement may have by now.
    """

    def __init__(self, names: PublishedNames) -> None:
        self.names = names
        self._gone = NO_NAMES
        self.forget()

    def forget(self) -> None:
        """Replace the lock; in a forked child no thread holds it."""
        # Held while the record is written; readers do not wait.
        self._guard = threading.Lock()

    def note_gone(self, names: PublishedNames) -> None:
        """Note names that Nova's tree lacks; the next :meth:`record` removes them."""
        self._gone |= names

    def record(self, offered: Collection[Provider], store: PublishedRecord) -> None:
        """Record the names that are about to be assigned to providers.

        :raises StateUnavailable: the record cannot be written.
        """
        assigned = PublishedNames(
            {
                each.uuid: classes([each.device.resource_class])
                | traits(each.device.traits)
                for each in offered
            }
        )
        with self._guard:
            gone, self._gone = self._gone, NO_NAMES
            added, removed = assigned - self.names, gone - assigned
            if added or removed:
                self._change(store, added, removed)

    def above(self, store: PublishedRecord) -> PublishedRecord:
        """Return a record that also updates this cache."""
        return _Above(self, store)

    def _change(
        self, store: PublishedRecord, added: PublishedNames, removed: PublishedNames
    ) -> None:
        store.change_published_names(added, removed)
        self.names = (self.names - removed) | added


@dataclasses.dataclass(frozen=True, slots=True)
class _Above:
    cache: PublishedCache
    store: PublishedRecord

    def published_names(self) -> PublishedNames:
        return self.store.published_names()

    def change_published_names(
        self, added: PublishedNames, removed: PublishedNames = NO_NAMES
    ) -> None:
        with self.cache._guard:
            self.cache._change(self.store, added, removed)


#: The prefix of os_acc's own resource classes, and the standard classes that
#: operators who come from Cyborg configure.
_PREFIX: Final = "CUSTOM_ACCELERATOR_"
_OF_DEVICES: Final = frozenset({orc.FPGA, orc.PGPU, orc.VGPU})


def given_classes(named: Collection[str], names: PublishedNames) -> frozenset[str]:
    """Return the resource classes that os_acc publishes, or has published.

    :param named: the classes that the operator configured for devices.
    """
    return frozenset(named) | {
        name.text
        for each in (*names.assigned.values(), names.created)
        for name in each
        if name.kind is NameKind.RESOURCE_CLASS
    }


def classes_of(there: Iterable[str], given: Collection[str]) -> frozenset[str]:
    """Return the classes that os_acc may have published, if no record shows it.

    :param there: the resource classes of a provider.
    :param given: the classes that os_acc gives to any provider.
    """
    return frozenset(
        name
        for name in there
        if name in given or name in _OF_DEVICES or name.startswith(_PREFIX)
    )
