# SPDX-License-Identifier: Apache-2.0

"""Attribute allocations without mappings, as Nova compute passes them.

The allocations are Placement's decision, but traits may differ from those that the
scheduler saw: a region may have been programmed since, and traits set by others come
from Nova's copy, which Nova refreshes only every five minutes (``[compute]
resource_provider_association_refresh``). A trait therefore excludes an assignment only
if no possible value of the unverified traits allows it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from os_acc import exception
from os_acc.objects.request_group import (
    Allocations,
    FlavorRequest,
    GroupAllocation,
    GroupPolicy,
    RequestGroup,
)
from os_acc.scheduling.assignment import (
    NO_PINS,
    Assignment,
    ProviderAllocation,
    assign,
)

#: Classes that Nova adds from a flavor's own fields to the unnumbered group
#: (``nova.scheduler.utils.ResourceRequest``).
_OF_THE_FLAVOR: Final = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})

_Traits: TypeAlias = Mapping[str, frozenset[str]]


def _none() -> _Traits:
    return MappingProxyType({})


class Leniency(enum.IntEnum):
    """The unverified traits; each level includes those of the previous ones."""

    #: Unknown traits; a provider can serve only groups that do not name them.
    STRICT = 0
    #: Unknown traits. Here and below, unverified traits fit each group.
    UNKNOWN = 1
    #: Traits that change with a device's use.
    CHANGING = 2
    #: Traits set by others.
    FOREIGN = 3
    ALL = 4


#: The levels of a new decision; a recorded one is confirmed whatever the traits.
_LEVELS: Final = tuple(Leniency)[: Leniency.ALL]


def _traits(groups: Iterable[RequestGroup]) -> frozenset[str]:
    """Return the traits that decide about the assignment of groups."""
    return frozenset[str]().union(*(each.required | each.forbidden for each in groups))


@dataclasses.dataclass(frozen=True, slots=True)
class TraitView:
    """The known traits of providers, by uuid.

    :ivar own: traits that os_acc reports for each device, from the last discovery.
    :ivar published: traits in Nova's provider tree or in Placement, of any provider.
    :ivar changes: returns whether a trait changes with a device's use.
    """

    own: _Traits = dataclasses.field(default_factory=_none)
    published: _Traits = dataclasses.field(default_factory=_none)
    changes: Callable[[str], bool] = lambda _trait: False

    @property
    def reported(self) -> frozenset[str]:
        """The traits that os_acc reports for some device."""
        return frozenset[str]().union(*self.own.values())

    def unread(
        self, request: FlavorRequest, selection: Allocations, ours: Collection[str]
    ) -> frozenset[str]:
        """Return providers with unknown traits that may affect the assignment.

        The result is empty if each of our classes is allocated from one provider
        or requested by one group: traits are then irrelevant.

        :param ours: the resource classes of this host's providers.
        """
        given = Counter(name for _at, found in selection.entries for name, _n in found)
        wanted = (name for group in request.groups for name, _n in group.resources)
        asked = Counter(wanted)
        open_ = {name for name in ours if given[name] > 1 and asked[name] > 1}
        deciding = _traits(
            group
            for group in request.groups
            if open_.intersection(dict(group.resources))
        )
        others = deciding - self.reported
        return frozenset(
            provider
            for provider, resources in selection.entries
            if provider not in self.published
            and open_.intersection(dict(resources))
            and (others if provider in self.own else deciding)
        )

    def allocated(
        self,
        selection: Allocations,
        ours: Collection[str],
        traits: frozenset[str],
        leniency: Leniency,
    ) -> list[ProviderAllocation]:
        """Return all allocations; only providers of this host must be used up.

        :param traits: the traits that decide.
        """
        others = traits - self.reported
        unverified = frozenset[str]()
        if leniency >= Leniency.CHANGING:
            unverified = frozenset(filter(self.changes, traits))
        if leniency is Leniency.ALL:
            unverified = traits
        found = []
        for provider, resources in selection.entries:
            own, published = self.own.get(provider), self.published.get(provider)
            has = traits & ((own or frozenset()) | (published or frozenset()))
            # For its own devices os_acc knows the traits that it publishes.
            foreign = traits if own is None else others
            unsure = unverified
            if leniency >= Leniency.FOREIGN:
                unsure |= foreign
            elif published is None:
                unsure |= foreign - has
            sets = has | unsure, has - unsure
            satisfies, violates = sets[::-1] if leniency is Leniency.STRICT else sets
            is_ours = provider in ours
            found.append(
                ProviderAllocation(provider, resources, is_ours, satisfies, violates)
            )
        return found


def without_mappings(
    request: FlavorRequest,
    selection: Allocations,
    ours: Mapping[str, str],
    known: TraitView,
    recorded: Assignment,
) -> list[GroupAllocation]:
    """Attribute allocations to the groups that request accelerators.

    :param ours: this host's providers: uuid to resource class.
    :param recorded: the previous decision, if any. It stays valid as long as it
        answers the request, even if traits have changed.
    :raises InvalidAllocation: the allocations cannot belong to this request, there
        are too many groups or providers (TOO_LARGE), or no answer was found within
        the budget (TOO_HARD).
    """
    cases = _cases(request, selection, ours)
    attempts = [(groups, _LEVELS, NO_PINS) for groups in cases]
    if recorded:
        attempts[:0] = [(groups, (Leniency.ALL,), recorded) for groups in cases]
    for groups, levels, pins in attempts:
        traits = _traits(groups)
        views = [known.allocated(selection, ours, traits, each) for each in levels]
        try:
            served = _first_assignment(groups, request.policy, views, pins)
            break
        except exception.InvalidAllocation as error:
            failed = error
    else:
        raise failed
    asking = {group.suffix: group for group in request.groups}
    return [
        GroupAllocation(suffix, provider, name, asking[suffix].amount(name))
        for (suffix, name), provider in sorted(served.items())
        if provider in ours
    ]


def _first_assignment(
    groups: Collection[RequestGroup],
    policy: GroupPolicy | None,
    views: Sequence[Sequence[ProviderAllocation]],
    pins: Assignment,
) -> Assignment:
    """Return the assignment of the first view of the providers that has one."""
    for at, allocated in enumerate(views):
        # Skip a view that differs in nothing from the next one.
        if allocated in views[at + 1 : at + 2]:
            continue
        try:
            return assign(groups, policy, allocated, pins)
        except exception.InvalidAllocation as error:
            failed = error
            if at and error.reason is not exception.AllocationReason.NO_ASSIGNMENT:
                raise
    raise failed


def _cases(
    request: FlavorRequest, selection: Allocations, ours: Mapping[str, str]
) -> list[list[RequestGroup]]:
    """Return all groups, then the groups with accelerators only, if these are fewer.

    The first case is preferred. The second serves if Nova requested something other
    than the flavor specifies: such changes do not concern accelerators.
    """
    offered = set(ours.values())
    # The smallest amount of each class on one provider: during a migration the
    # allocations include those of two hosts.
    amounts: dict[str, int] = {}
    for _provider, resources in selection.entries:
        for name, amount in resources:
            amounts[name] = min(amount, amounts.get(name, amount))
    all_groups, asking = [], []
    for group in request.groups:
        sent = group
        if not group.suffix:
            sent = _as_nova_has_it(request, group, amounts, offered)
        if offered.intersection(dict(group.resources)):
            asking.append(sent)
            all_groups.append(sent)
        elif sent.resources and all(name in amounts for name, _n in sent.resources):
            all_groups.append(sent)
    return [all_groups, asking] if len(all_groups) > len(asking) else [asking]


def _as_nova_has_it(
    request: FlavorRequest,
    group: RequestGroup,
    amounts: Mapping[str, int],
    offered: Collection[str],
) -> RequestGroup:
    """Return the unnumbered group with every class that may contribute a trait.

    :param amounts: the allocated amounts. Nova may have replaced a class that is
        not allocated, unless it is an accelerator.
    """
    kept = {
        name: amount
        for name, amount in group.resources
        if name in amounts or name in offered
    }
    if group.required or group.forbidden:
        asked = {name for each in request.groups for name, _amount in each.resources}
        added = _OF_THE_FLAVOR.difference(asked, request.zeroed)
        kept |= {name: amounts[name] for name in added & amounts.keys()}
    return dataclasses.replace(group, resources=tuple(sorted(kept.items())))
