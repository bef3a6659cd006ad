# SPDX-License-Identifier: Apache-2.0

"""What is known of the traits of providers, and how far it is to be trusted.

It is not always what the scheduler knew. A region may have been programmed
since; and of what others set, os_acc has Nova's copy, which Nova reads anew
every five minutes only (``[compute] resource_provider_association_refresh``).
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
    """What of it is doubted; each includes those before it."""

    #: What nobody knows, alone.
    UNKNOWN = 0
    #: What comes and goes with what a device does.
    CHANGING = 1
    #: What others have set.
    HEARD = 2
    ALL = 3


def _never(_trait: str) -> bool:
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class TraitView:
    """What is known of providers' traits, by their uuids.

    :ivar own: what os_acc itself says of each device, by its last look.
    :ivar heard: what Nova's provider tree had, or Placement has, of any provider.
    :ivar changes: whether a trait comes and goes with what a device does.
    """

    own: _Traits = dataclasses.field(default_factory=_nothing)
    heard: _Traits = dataclasses.field(default_factory=_nothing)
    changes: Callable[[str], bool] = _never

    def unheard(
        self, request: FlavorRequest, selection: Allocations, ours: Collection[str]
    ) -> frozenset[str]:
        """The providers of which a trait may decide that nobody has told of.

        That is none where each of our classes is allocated from one provider,
        or asked for by one group: traits decide nothing then.

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
        """What is known of these traits while this much is doubted."""
        doubted = traits if doubt is TraitDoubt.ALL else frozenset[str]()
        if doubt >= TraitDoubt.CHANGING:
            doubted |= {trait for trait in traits if self.changes(trait)}
        published = traits & frozenset[str]().union(*self.own.values())
        return TraitReading(self, doubt, traits, published, doubted)


@dataclasses.dataclass(frozen=True, slots=True)
class TraitReading:
    """What is known of some traits.

    :ivar published: those that os_acc itself says of some device.
    :ivar doubted: those that are doubted of every provider.
    """

    known: TraitView
    doubt: TraitDoubt
    traits: frozenset[str]
    published: frozenset[str]
    doubted: frozenset[str]

    def of(self, provider: str) -> tuple[frozenset[str], frozenset[str]]:
        """Which of the traits a provider has, and which it may have."""
        own, heard = self.known.own.get(provider), self.known.heard.get(provider)
        has = self.traits & ((own or frozenset()) | (heard or frozenset()))
        # Of its own devices os_acc knows whether they have what it publishes.
        others = self.traits if own is None else self.traits - self.published
        unsure = self.doubted
        if self.doubt >= TraitDoubt.HEARD:
            unsure |= others
        elif heard is None:
            unsure |= others - has
        return has - unsure, unsure
