# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Allocations without mappings, as Nova compute has them of a flavor's groups.

They are Placement's decision, read back. So an assignment is not given up for
a trait before everything is doubted that may have changed since.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from os_acc import exception
from os_acc.assignment import Allocated, Served, assign
from os_acc.assignment.knowledge import Doubt, Known
from os_acc.assignment.problem import Pins
from os_acc.objects.request import FlavorRequest, RequestGroup
from os_acc.objects.selection import Allocations, Wanted

#: What Nova takes from a flavor's own fields and adds to the unnumbered group
#: (``nova.scheduler.utils.ResourceRequest``).
_OF_THE_FLAVOR: Final = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})


def without_mappings(
    request: FlavorRequest,
    selection: Allocations,
    ours: Mapping[str, str],
    known: Known,
    recorded: Pins,
) -> list[Wanted]:
    """Attribute allocations to the groups that ask for accelerators.

    :param ours: this host's providers: uuid to resource class.
    :param recorded: how it was decided before, if it was. That stands, if it
        still answers the request, whatever has become of traits.
    :raises NoAssignment: the allocations cannot be those of this request.
    :raises AssignmentTooLarge: there are too many groups or providers.
    :raises AssignmentTooHard: an answer was not found within the budget.
    """
    case = _Case.of(request, selection, ours, known)
    served = (case.recorded(recorded) if recorded else None) or case.found()
    groups = {group.suffix: group for group in request.groups}
    return [
        Wanted(
            group_suffix=each.suffix,
            provider_uuid=each.provider,
            resource_class=each.resource_class,
            amount=groups[each.suffix].amount(each.resource_class),
        )
        for each in served
        if each.provider in ours
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    """One request and its allocations.

    :ivar groups: those that ask for a class of this host's accelerators.
    """

    request: FlavorRequest
    groups: tuple[RequestGroup, ...]
    selection: Allocations
    ours: Mapping[str, str]
    known: Known

    @classmethod
    def of(
        cls,
        request: FlavorRequest,
        selection: Allocations,
        ours: Mapping[str, str],
        known: Known,
    ) -> _Case:
        """With the groups as Nova has sent them, as far as that is known."""
        offered = set(ours.values())
        groups = tuple(
            group if group.suffix else _as_nova_has_it(group, offered, selection)
            for group in request.groups
            if any(name in offered for name, _amount in group.resources)
        )
        return cls(request, groups, selection, ours, known)

    def recorded(self, pins: Pins) -> tuple[Served, ...] | None:
        """The assignment that was made before; None: it is no answer now."""
        try:
            return self._assigned(Doubt.ALL, pins=pins)
        except (exception.NoAssignment, exception.AssignmentTooHard):
            return None

    def found(self) -> tuple[Served, ...]:
        """The assignment that leaves the least in doubt."""
        unknown = self._allocated(Doubt.UNKNOWN)
        if any(each.unsure for each in unknown):
            try:
                return self._assigned(Doubt.UNKNOWN, certain=True)
            except (exception.NoAssignment, exception.AssignmentTooHard):
                pass
        for doubt in (Doubt.UNKNOWN, Doubt.CHANGING):
            # More doubt is of no use where it is about none of these.
            if self._allocated(doubt) != self._allocated(Doubt.HEARD):
                try:
                    return self._assigned(doubt)
                except exception.NoAssignment:
                    pass
        return self._assigned(Doubt.HEARD)

    def _assigned(
        self, doubt: Doubt, *, certain: bool = False, pins: Pins | None = None
    ) -> tuple[Served, ...]:
        allocated = self._allocated(doubt)
        return assign(
            self.groups, self.request.policy, allocated, pins=pins, certain=certain
        )

    def _allocated(self, doubt: Doubt) -> list[Allocated]:
        """Everything that is allocated; only what is ours has to be used up."""
        traits = frozenset[str]().union(
            *(group.required | group.forbidden for group in self.groups)
        )
        return [
            Allocated(
                provider,
                resources,
                provider in self.ours,
                *self.known.of(provider, doubt, traits),
            )
            for provider, resources in self.selection.entries
        ]


def _as_nova_has_it(
    group: RequestGroup, offered: set[str], selection: Allocations
) -> RequestGroup:
    """The unnumbered group with all that may bring it a trait, or forbid one.

    What is not an accelerator is left out where nothing of the kind is
    allocated: Nova may have asked for something else instead.
    """
    if not group.required and not group.forbidden:
        kept = {name: n for name, n in group.resources if name in offered}
    else:
        allocated = _smallest(selection)
        kept = {
            name: amount
            for name, amount in group.resources
            if name in offered or amount <= allocated.get(name, 0)
        }
        for name in _OF_THE_FLAVOR & allocated.keys():
            kept.setdefault(name, allocated[name])
    return dataclasses.replace(group, resources=tuple(sorted(kept.items())))


def _smallest(selection: Allocations) -> dict[str, int]:
    """The smallest amount of each class that one provider gives.

    While a guest is moved, its allocations are those of two hosts.
    """
    amounts: dict[str, int] = {}
    for _provider, resources in selection.entries:
        for name, amount in resources:
            amounts[name] = min(amount, amounts.get(name, amount))
    return amounts
