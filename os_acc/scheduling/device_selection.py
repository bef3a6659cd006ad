# SPDX-License-Identifier: Apache-2.0

"""Select free devices for a request."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from os_acc import exception
from os_acc.numa.nearest import DevicePool, GroupDemand, divide
from os_acc.numa.policies import NOTHING_SAID, GuestCells, Policies, allows
from os_acc.objects.device import AttachHandle, Provider
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.numa import Affinity, NUMAPolicy, NUMATopology
from os_acc.objects.request_group import GroupAllocation, title

#: A guest whose cells are unknown.
ANYWHERE: Final = GuestCells(NUMATopology())
#: The functions that may serve a group on a provider, by group suffix and provider.
Reaching: TypeAlias = Mapping[tuple[str, str], frozenset[DeviceAddress]]
_MOST_SHOWN: Final = 4
_CONSUMERS: Final = "see 'os-acc device list' for the consumers of its devices"
_REPAIR: Final = "repair or replace the device; see 'os-acc device list --state faulty'"


@dataclasses.dataclass(frozen=True, slots=True)
class SelectedDevice:
    """One device for one accelerator of the request.

    :ivar affinity: None if the guest's cells are unknown.
    """

    wanted: GroupAllocation
    provider: Provider
    handle: AttachHandle
    affinity: Affinity | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSelector:
    """Select devices for one guest.

    :ivar policies: ignored if the guest's cells are unknown.
    :ivar reaching: the functions that reach what a group requests of a region; a
        group and provider without an entry may have each free function.
    """

    guest: GuestCells = ANYWHERE
    policies: Policies = NOTHING_SAID
    reaching: Reaching = dataclasses.field(default_factory=lambda: MappingProxyType({}))

    def choose(
        self,
        wanted: Sequence[GroupAllocation],
        providers: Mapping[str, Provider],
        taken: frozenset[DeviceAddress],
    ) -> tuple[SelectedDevice, ...]:
        """Select free devices of each provider, in the order of the request.

        The nearest devices allowed by the policies are selected, evenly over the
        guest's cells; among equals, the first. Faulty devices are skipped.

        :param taken: functions claimed by a lease or by a damaged record.
        :raises DeviceGone: a provider no longer exists on this host.
        :raises NoDeviceAvailable: NOT_FREE: a provider has too few free devices, or
            too few that reach the requested function of its region.
            NUMA_POLICY: enough are free, but too few are near enough.
        """
        _check_offered(wanted, providers)
        free = {
            each.provider_uuid: _free(providers[each.provider_uuid], taken)
            for each in wanted
        }
        _check_enough(wanted, providers, free)
        pools = self._pools(free)
        shares = divide(
            [self._demand(each, pools) for each in wanted],
            [DevicePool(uuid, alike[0].numa_node, len(alike)) for uuid, alike in pools],
            self.guest,
        )
        left = [iter(alike) for _uuid, alike in pools]
        chosen: list[SelectedDevice] = []
        for each, share in zip(wanted, shares, strict=True):
            provider = providers[each.provider_uuid]
            if sum(share) < each.amount:
                raise self._unmet(each, provider, free[provider.uuid], sum(share))
            chosen += [
                SelectedDevice(each, provider, handle, self._affinity(handle))
                for alike, number in zip(left, share, strict=True)
                for handle in itertools.islice(alike, number)
            ]
        return tuple(chosen)

    def _pools(
        self, free: Mapping[str, Sequence[AttachHandle]]
    ) -> list[tuple[str, list[AttachHandle]]]:
        """Return the free devices of each provider that are alike for the guest."""
        pools: dict[tuple[str, object], list[AttachHandle]] = {}
        for provider, handles in free.items():
            for handle in handles:
                near = (handle.numa_node, handle.numa_policy)
                groups = tuple(
                    key
                    for key, those in self.reaching.items()
                    if handle.address in those
                )
                alike = groups, near if self.guest.cells else None
                pools.setdefault((provider, alike), []).append(handle)
        return [(provider, handles) for (provider, _), handles in pools.items()]

    def _demand(
        self, wanted: GroupAllocation, pools: Sequence[tuple[str, list[AttachHandle]]]
    ) -> GroupDemand:
        allowed = tuple(
            place
            for place, (provider, (first, *_)) in enumerate(pools)
            if provider == wanted.provider_uuid
            and self._reaches(wanted, first)
            and self._allows(wanted, first)
        )
        return GroupDemand(wanted.amount, allowed)

    def _policy(self, wanted: GroupAllocation, handle: AttachHandle) -> NUMAPolicy:
        return self.policies.sources(wanted, handle).effective

    def _allows(self, wanted: GroupAllocation, handle: AttachHandle) -> bool:
        policy = self._policy(wanted, handle)
        return allows(policy, self.guest.affinity(handle.numa_node))

    def _reaches(self, wanted: GroupAllocation, handle: AttachHandle) -> bool:
        those = self.reaching.get((wanted.group_suffix, wanted.provider_uuid))
        return those is None or handle.address in those

    def _affinity(self, handle: AttachHandle) -> Affinity | None:
        return self.guest.affinity(handle.numa_node) if self.guest.cells else None

    def _unmet(
        self,
        wanted: GroupAllocation,
        provider: Provider,
        free: Sequence[AttachHandle],
        got: int,
    ) -> exception.NoDeviceAvailable:
        free = [each for each in free if self._reaches(wanted, each)]
        fitting = sum(self._allows(wanted, each) for each in free)
        if len(free) < wanted.amount or fitting == len(free):
            return self._unreached(wanted, provider, got)
        policies = {self._policy(wanted, each).value for each in free}
        cells = ", ".join(map(str, self.guest.cells))
        others = fitting - got
        rest = f" ({others} of {fitting} go to other groups)" if others else ""
        return exception.NoDeviceAvailable(
            f"{provider.name} has too few devices for "
            f"{title(wanted.group_suffix)} in guest cells {cells} under "
            f"the NUMA policy {' or '.join(sorted(policies))}: "
            f"{wanted.amount} requested, {got} available{rest}; free: "
            f"{self._found(free)}",
            reason=exception.NoDeviceReason.NUMA_POLICY,
        )

    def _unreached(
        self, wanted: GroupAllocation, provider: Provider, got: int
    ) -> exception.NoDeviceAvailable:
        those = sorted(self.reaching[wanted.group_suffix, provider.uuid])
        return exception.NoDeviceAvailable(
            f"{provider.name} has too few free PCI functions that reach the function "
            f"requested by {title(wanted.group_suffix)}: {wanted.amount} requested, "
            f"{got} available; {exception.some(list(map(str, those)), _MOST_SHOWN)} "
            "reach it",
            hint=_CONSUMERS,
        )

    def _found(self, free: Sequence[AttachHandle]) -> str:
        """Describe free devices by cell, shortened: a card may have hundreds of VFs."""
        places: dict[int | None, list[str]] = {}
        for each in free:
            places.setdefault(each.numa_node, []).append(str(each.address))
        return "; ".join(
            f"{len(there)} {self._place(node)}: {exception.some(there, _MOST_SHOWN)}"
            for node, there in places.items()
        )

    def _place(self, node: int | None) -> str:
        affinity = self.guest.affinity(node).value
        return "in no known cell" if node is None else f"in cell {node} ({affinity})"


def _check_offered(
    wanted: Sequence[GroupAllocation], providers: Mapping[str, Provider]
) -> None:
    for each in wanted:
        if each.provider_uuid not in providers:
            raise exception.DeviceGone(
                f"the device of provider {each.provider_uuid}, "
                f"{each.resource_class}, is no longer offered",
                hint="see 'os-acc device list' for its state",
            )


def _check_enough(
    wanted: Sequence[GroupAllocation],
    providers: Mapping[str, Provider],
    free: Mapping[str, Sequence[AttachHandle]],
) -> None:
    left = {uuid: len(handles) for uuid, handles in free.items()}
    for each in wanted:
        left[each.provider_uuid] -= each.amount
        if left[each.provider_uuid] < 0:
            provider = providers[each.provider_uuid]
            handles = provider.device.handles
            faults = [f"{at.address} {at.fault}" for at in handles if at.fault]
            broken = f"; out of order: {', '.join(faults)}" if faults else ""
            raise exception.NoDeviceAvailable(
                f"{provider.name} has no free device left for "
                f"{title(each.group_suffix)}{broken}",
                hint=_REPAIR if faults else _CONSUMERS,
            )


def _free(provider: Provider, taken: frozenset[DeviceAddress]) -> list[AttachHandle]:
    return [
        handle
        for handle in provider.device.handles
        if not handle.fault and taken.isdisjoint(handle.members)
    ]
