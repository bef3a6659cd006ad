# SPDX-License-Identifier: Apache-2.0

"""The installed plugins by the metadata of their distributions; nothing is imported."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.metadata import EntryPoint
from typing import Any, Final

import stevedore

from os_acc.objects.pci import PciIdentity

NAMESPACE: Final = "os_acc"
#: A distribution declares here which PCI functions a plugin serves: ``ace0:0e10``, or
#: ``ace0:*`` for all of a vendor, with the same value as the plugin's entry point.
_IDS: Final = "os_acc.ids"
_ID: Final = re.compile(r"[0-9a-f]{4}:([0-9a-f]{4}|\*)", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin that may be loaded.

    :ivar points: its entry points: one, unless several distributions have the name.
    :ivar ids: the declared PCI ids, as text.
    """

    name: str
    points: tuple[EntryPoint, ...]
    ids: frozenset[str] = frozenset()

    @property
    def conflict(self) -> str:
        """The reason why the metadata cannot be used; '' if they can."""
        if len(self.points) > 1:
            return f"several distributions have it: {', '.join(self.sources)}"
        wrong = sorted(each for each in self.ids if not _ID.fullmatch(each))
        return f"its distribution declares the PCI ids {wrong[0]!r}" if wrong else ""

    @property
    def sources(self) -> tuple[str, ...]:
        """The distributions with their versions, or the values of the entry points."""
        return tuple(
            " ".join(filter(None, distribution_of(each))) or each.value
            for each in self.points
        )

    def serves(self, identity: PciIdentity) -> bool:
        """Return whether the distribution declares the ids of a function."""
        vendor = f"{identity.vendor:04x}"
        return not self.ids.isdisjoint(
            {f"{vendor}:{identity.product:04x}", f"{vendor}:*"}
        )


def installed(names: Sequence[str] = ()) -> tuple[InstalledPlugin, ...]:
    """Return the installed plugins of these names, or all, sorted by name."""
    points, ids = _points(NAMESPACE), _points(_IDS)
    found = []
    for name in sorted({each.name for each in points}):
        if names and name not in names:
            continue
        own = tuple(each for each in points if each.name == name)
        values = {each.value for each in own}
        declared = frozenset(each.name.lower() for each in ids if each.value in values)
        found.append(InstalledPlugin(name, own, declared))
    return tuple(found)


def distribution_of(point: EntryPoint) -> tuple[str, str]:
    """Return the name and the version of an entry point's distribution, or ''."""
    # The cache of stevedore does not have the distributions.
    for each in metadata.entry_points(group=NAMESPACE, name=point.name):
        if each.value == point.value and each.dist is not None:
            return each.dist.name, each.dist.version
    return "", ""


def _points(group: str) -> Iterable[EntryPoint]:
    # Without names, it loads none.
    manager: Any = stevedore.NamedExtensionManager(group, [])
    return tuple(manager.list_entry_points())
