# SPDX-License-Identifier: Apache-2.0

"""The known traits of providers, and how reliable they are.

They may differ from those that the scheduler saw: a region may have been
programmed since, and traits set by others come from Nova's copy, which Nova
refreshes only every five minutes
(``[compute] resource_provider_association_refresh``).
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TypeAlias

from os_acc.objects.request import FlavorRequest
from os_acc.objects.selection import Allocations

_Traits: TypeAlias = Mapping[str, frozenset[str]]


def _nothing() -> _Traits:
    return MappingProxyType({})


class TraitDoubt(enum.IntEnum):
    """Levels of doubt about traits; each includes the previous ones."""

    #: Unknown traits only.
    UNKNOWN = 0
    #: Traits that change with a device's use.
    CHANGING = 1
    #: Traits set by others.
    HEARD = 2
    ALL = 3


def _never(_trait: str) -> bool:
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class TraitView:
    """The known traits of providers, by uuid.

    :ivar own: traits that os_acc reports for each device, from the last discovery.
    :ivar heard: traits in Nova's provider tree or in Placement, of any provider.
    :ivar changes: returns whether a trait changes with a device's use.
    """

    own: _Traits = dataclasses.field(default_factory=_nothing)
    heard: _Traits = dataclasses.field(default_factory=_nothing)
    changes: Callable[[str], bool] = _never

    def unheard(
        self, request: FlavorRequest, selection: Allocations, ours: Collection[str]
    ) -> frozenset[str]:
        """Return providers with unknown traits that may affect the assignment.

        The result is empty if each of our classes is allocated from one provider
        or requested by one group: traits are then irrelevant.

        :param ours: the resource classes of this host's providers.
        """
        given = Counter(name for _at, found in selection.entries for name, _n in found)
        asked = Counter(
            name for group in request.groups for name, _n in group.resources
        )
        open_ = {name for name in ours if given[name] > 1 and asked[name] > 1}
        deciding = frozenset[str]().union(
            *(
                group.required | group.forbidden
                for group in request.groups
                if open_.intersection(dict(group.resources))
            )
        )
        published = frozenset[str]().union(*self.own.values())
        return frozenset(
            provider
            for provider, resources in selection.entries
            if provider not in self.heard
            and open_.intersection(dict(resources))
            and (deciding - published if provider in self.own else deciding)
        )

    def doubting(self, doubt: TraitDoubt, traits: frozenset[str]) -> TraitReading:
        """Return the view of these traits at a level of doubt."""
        doubted = traits if doubt is TraitDoubt.ALL else frozenset[str]()
        if doubt >= TraitDoubt.CHANGING:
            doubted |= {trait for trait in traits if self.changes(trait)}
        published = traits & frozenset[str]().union(*self.own.values())
        return TraitReading(self, doubt, traits, published, doubted)


@dataclasses.dataclass(frozen=True, slots=True)
class TraitReading:
    """The known traits among a set of traits.

    :ivar published: traits that os_acc itself reports for some device.
    :ivar doubted: traits that are uncertain for every provider.
    """

    known: TraitView
    doubt: TraitDoubt
    traits: frozenset[str]
    published: frozenset[str]
    doubted: frozenset[str]

    def of(self, provider: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return the traits that a provider has, and those that it may have."""
        own, heard = self.known.own.get(provider), self.known.heard.get(provider)
        has = self.traits & ((own or frozenset()) | (heard or frozenset()))
        # For its own devices os_acc knows the traits that it publishes.
        others = self.traits if own is None else self.traits - self.published
        unsure = self.doubted
        if self.doubt >= TraitDoubt.HEARD:
            unsure |= others
        elif heard is None:
            unsure |= others - has
        return has - unsure, unsure
