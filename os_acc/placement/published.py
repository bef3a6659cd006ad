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
from os_acc.objects.published import NO_NAMES, NameKind, PublishedNames, classes, traits


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

    :param names: the record at the start.
    """

    def __init__(self, names: PublishedNames) -> None:
        self._names = names
        self._ended = NO_NAMES
        self.forget()

    def forget(self) -> None:
        """Replace the lock; in a forked child no thread holds it."""
        # Held while the record is written; readers do not wait.
        self._guard = threading.Lock()

    @property
    def names(self) -> PublishedNames:
        """The names that Placement may have by now."""
        return self._names

    def end(self, provider: str, ended: Collection[str]) -> None:
        """Note traits that a provider lost; the next write removes them."""
        self._ended |= PublishedNames({provider: traits(ended)})

    def tell(self, offered: Collection[Provider], ledger: PublishedRecord) -> None:
        """Record the names that are about to be assigned to providers.

        :raises StateUnavailable: the record cannot be written.
        """
        assigned = names_of(offered)
        with self._guard:
            ended, self._ended = self._ended, NO_NAMES
            added, removed = assigned - self._names, ended - assigned
            if added or removed:
                self._change(ledger, added, removed)

    def above(self, ledger: PublishedRecord) -> PublishedRecord:
        """Return a record that also updates this cache."""
        return _Above(self, ledger)

    def change(
        self, ledger: PublishedRecord, added: PublishedNames, removed: PublishedNames
    ) -> None:
        """Record a change.

        :raises StateUnavailable: the record cannot be written.
        """
        with self._guard:
            self._change(ledger, added, removed)

    def _change(
        self, ledger: PublishedRecord, added: PublishedNames, removed: PublishedNames
    ) -> None:
        ledger.change_published_names(added, removed)
        self._names = (self._names - removed) | added


@dataclasses.dataclass(frozen=True, slots=True)
class _Above:
    memory: PublishedCache
    ledger: PublishedRecord

    def published_names(self) -> PublishedNames:
        return self.ledger.published_names()

    def change_published_names(
        self, added: PublishedNames, removed: PublishedNames = NO_NAMES
    ) -> None:
        self.memory.change(self.ledger, added, removed)


def names_of(offered: Collection[Provider]) -> PublishedNames:
    """Return the names to assign to each provider."""
    return PublishedNames.of_mapping(
        {
            each.uuid: classes([each.device.resource_class])
            | traits(each.device.traits)
            for each in offered
        }
    )


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


def classes_of(
    recorded: frozenset[str], there: Iterable[str], given: Collection[str]
) -> frozenset[str]:
    """Return the resource classes of our provider that os_acc may withdraw.

    :param recorded: the classes on record; if the record is lost, the classes
        that os_acc may have published are assumed.
    :param there: the classes that the provider has.
    :param given: the classes that os_acc gives to any provider.
    """
    if recorded:
        return recorded
    return frozenset(
        name
        for name in there
        if name in given or name in _OF_DEVICES or name.startswith(_PREFIX)
    )
