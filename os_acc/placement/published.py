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
from os_acc.objects.published import NOTHING, NameKind, PublishedNames, classes, traits


class PublishedRecord(Protocol):
    """Where it is on record what Placement was told; the store."""

    def told(self) -> PublishedNames:
        """All of it."""

    def change_published(
        self, more: PublishedNames, gone: PublishedNames = NOTHING
    ) -> None:
        """Add to it, and strike out; durable when it returns."""


class PublishedCache:
    """What is on record, as far as one process knows.

    :param told: what the record says at first.
    """

    def __init__(self, told: PublishedNames) -> None:
        self._told = told
        self._ended = NOTHING
        self.forget()

    def forget(self) -> None:
        """Know of nobody who writes: in a forked child nobody does."""
        # Held while the record is written; whoever only reads does not wait.
        self._guard = threading.Lock()

    @property
    def told(self) -> PublishedNames:
        """What Placement may have by now."""
        return self._told

    def end(self, provider: str, ended: Collection[str]) -> None:
        """A provider was seen without these: the next to write strikes them out."""
        self._ended |= PublishedNames({provider: traits(ended)})

    def tell(self, offered: Collection[Provider], ledger: PublishedRecord) -> None:
        """Put on record what providers are about to be given.

        :raises StateUnavailable: it cannot be.
        """
        given = given_to(offered)
        with self._guard:
            ended, self._ended = self._ended, NOTHING
            more, gone = given - self._told, ended - given
            if more or gone:
                self._change(ledger, more, gone)

    def above(self, ledger: PublishedRecord) -> PublishedRecord:
        """The record, for whoever else changes it: it is known here as well."""
        return _Above(self, ledger)

    def change(
        self, ledger: PublishedRecord, more: PublishedNames, gone: PublishedNames
    ) -> None:
        """Put a change on record.

        :raises StateUnavailable: it cannot be.
        """
        with self._guard:
            self._change(ledger, more, gone)

    def _change(
        self, ledger: PublishedRecord, more: PublishedNames, gone: PublishedNames
    ) -> None:
        ledger.change_published(more, gone)
        self._told = (self._told - gone) | more


@dataclasses.dataclass(frozen=True, slots=True)
class _Above:
    memory: PublishedCache
    ledger: PublishedRecord

    def told(self) -> PublishedNames:
        return self.ledger.told()

    def change_published(
        self, more: PublishedNames, gone: PublishedNames = NOTHING
    ) -> None:
        self.memory.change(self.ledger, more, gone)


def given_to(offered: Collection[Provider]) -> PublishedNames:
    """What each of the providers is given."""
    return PublishedNames.of_mapping(
        {
            each.uuid: classes([each.device.resource_class])
            | traits(each.device.traits)
            for each in offered
        }
    )


#: What a resource class of os_acc's own choice begins with, and those that
#: operators choose who come from Cyborg.
_PREFIX: Final = "CUSTOM_ACCELERATOR_"
_OF_DEVICES: Final = frozenset({orc.FPGA, orc.PGPU, orc.VGPU})


def given_classes(named: Collection[str], told: PublishedNames) -> frozenset[str]:
    """The classes that are known to be, or to have been, what os_acc gives.

    :param named: those that the operator has given devices.
    """
    return frozenset(named) | {
        name.text
        for names in (*told.given.values(), told.made)
        for name in names
        if name.kind is NameKind.RESOURCE_CLASS
    }


def classes_of(
    recorded: frozenset[str], there: Iterable[str], given: Collection[str]
) -> frozenset[str]:
    """The classes of a provider of ours that are ours to withdraw.

    :param recorded: those that it was given; where the record is lost, they are
        the ones that it may have been given.
    :param there: those that it has.
    :param given: those that any provider is known to be given.
    """
    if recorded:
        return recorded
    return frozenset(
        name
        for name in there
        if name in given or name in _OF_DEVICES or name.startswith(_PREFIX)
    )
