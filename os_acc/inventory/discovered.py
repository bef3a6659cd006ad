# SPDX-License-Identifier: Apache-2.0

"""Collect the devices of each plugin, and pass the other functions to the next plugin.

A device belongs to the first plugin that offers it. A leased one stays with the plugin
of its lease. One that a plugin has offered, or declares to serve, waits for that plugin
while it fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Set

from os_acc.objects.device import (
    Device,
    OfferedType,
    RejectedDevice,
    RejectReason,
    UsableFunction,
)
from os_acc.objects.drivers import is_vfio_driver
from os_acc.objects.mdev import DeviceAddress, DeviceName, in_order
from os_acc.objects.records import RecordedState
from os_acc.plugins import answers, loader
from os_acc.plugins.loader import InstalledPlugin


@dataclasses.dataclass(slots=True)
class Discovered:
    """The results of the plugins that were asked so far.

    :ivar owners: see :func:`.named_providers.owners`.
    :ivar claimed: about leased devices that several plugins serve, by address.
    """

    left: tuple[UsableFunction, ...]
    left_types: tuple[OfferedType, ...]
    owners: Mapping[DeviceAddress | DeviceName, str]
    claimed: dict[DeviceAddress | DeviceName, str] = dataclasses.field(
        default_factory=dict
    )
    devices: list[Device] = dataclasses.field(default_factory=list)
    refused: list[RejectedDevice] = dataclasses.field(default_factory=list)
    set_aside: list[loader.SetAside] = dataclasses.field(default_factory=list)
    broken_rules: list[str] = dataclasses.field(default_factory=list)
    offered: dict[DeviceAddress | DeviceName, str] = dataclasses.field(
        default_factory=dict
    )

    def add(self, name: str, answer: answers.PluginAnswer) -> None:
        """Add the answer of a plugin, without devices of another one's providers."""
        self.broken_rules.extend(answer.broken_rules)
        if not (answer.devices or answer.refused):
            # Most plugins recognise no device of a host.
            return
        foreign = [
            each for each in answer.devices if self._is_anothers(each.address, name)
        ]
        if foreign:
            own = tuple([each for each in answer.devices if each not in foreign])
            answer = dataclasses.replace(answer, devices=own)
            self._claim(name, [each.address for each in foreign])
        self.devices.extend(answer.devices)
        self.refused.extend(answer.refused)
        taken = answer.taken
        if not taken:
            return
        self.offered |= dict.fromkeys(
            taken.union(each.address for each in answer.devices), name
        )
        self._take(taken)

    def release(self, plugin: str, recorded: RecordedState) -> None:
        """Leave leased devices that a plugin did not offer to the plugins after it.

        Those that it has to release or erase stay with it.
        """
        own = {address for address, name in self.owners.items() if name == plugin}
        if not own:
            return
        kept = {
            address
            for lease in recorded.leases
            if lease.needs_release or lease.needs_erase
            for address in lease.members
        }
        self.owners = {
            address: name
            for address, name in self.owners.items()
            if address not in own or address in kept
        }
        why = f"is not offered by {plugin}, the plugin of its lease"
        for each in self.left:
            if (at := each.function.address) in own and at not in kept:
                self.claimed[at] = why

    def candidates_for(
        self,
        plugin: str,
        waiting: Set[str],
        own_drivers: Set[str],
    ) -> tuple[tuple[UsableFunction, ...], tuple[OfferedType, ...]]:
        """Return the functions and types that are left for a plugin.

        A function or slot that stays with another plugin is not for it. A type that
        has such a slot is, but not while the other plugin may still take it.

        :param waiting: the plugins that have not answered, and may do so later.
        :param own_drivers: those on which functions of the plugin stay. A function that
            stays on another driver is not for it.
        """
        usable = self._left_on(own_drivers)
        if not self.owners:
            return usable, self.left_types
        others = {at: name for at, name in self.owners.items() if name != plugin}
        own = (each for each in usable if each.function.address not in others)
        types = (
            _without_others(each, others)
            for each in self.left_types
            if waiting.isdisjoint(_owners(each, others))
        )
        return tuple(own), tuple(types)

    def _left_on(self, own_drivers: Set[str]) -> tuple[UsableFunction, ...]:
        """Return the functions left that are bound for guests, or stay on a driver."""
        present = {each.driver for each in self.left}
        foreign = {each for each in present - own_drivers if not is_vfio_driver(each)}
        if not foreign:
            return self.left
        return tuple(each for each in self.left if each.driver not in foreign)

    def note_served(self, plugin: InstalledPlugin) -> None:
        """Note the leased functions that stay with another plugin than this one."""
        if not self.owners:
            return
        others = [
            each.function
            for each in self.left
            if self._is_anothers(each.function.address, plugin.name)
        ]
        served = [each.address for each in others if plugin.serves(each.identity)]
        self._claim(plugin.name, served)

    def _is_anothers(self, address: DeviceAddress | DeviceName, plugin: str) -> bool:
        return self.owners.get(address, plugin) != plugin

    def _claim(
        self, plugin: str, addresses: Iterable[DeviceAddress | DeviceName]
    ) -> None:
        for each in addresses:
            self.claimed[each] = (
                f"stays with {self.owners[each]} while it is leased; {plugin} serves it"
            )

    def keep(
        self,
        idle: loader.SetAside,
        offered: Mapping[DeviceName, Collection[str]],
        plugin: InstalledPlugin | None = None,
    ) -> None:
        """Reject the functions and types that an idle plugin has offered.

        Else another plugin would offer them under another class, without the
        preparation of the idle one.

        :param plugin: reject also those whose ids it declares; None: it only broke a
            rule.
        """
        name = idle.name
        by_it = {address for address, names in offered.items() if name in names}
        kept: dict[DeviceName, str] = {}
        for each in self.left:
            function = each.function
            if not by_it.isdisjoint((function.address, each.parent.address)):
                kept[function.address] = "has offered it before"
            elif plugin is not None and plugin.serves(function.identity):
                kept[function.address] = "serves it"
        for kind in self.left_types:
            if kind.type in by_it:
                kept[kind.type] = "has offered it before"
            elif plugin and kind.parent and plugin.serves(kind.parent.identity):
                kept[kind.type] = "serves it"
        own = {
            each: f"{name} {why}: {idle.reason}"
            for each, why in kept.items()
            if not self._is_anothers(each, name)
        }
        self.refused.extend(
            RejectedDevice(each, RejectReason.PLUGIN_FAILED, own[each])
            for each in sorted(own, key=in_order)
        )
        self._take(own)

    def _take(self, taken: Collection[DeviceAddress | DeviceName]) -> None:
        self.left = tuple(
            each for each in self.left if each.function.address not in taken
        )
        self.left_types = tuple(
            each for each in self.left_types if each.type not in taken
        )

    def reject_rest(self, own_drivers: Set[str]) -> None:
        """Reject all that no plugin offers; a plugin that failed may be the reason.

        :param own_drivers: the drivers that plugins declare.
        """
        detail = "; ".join(each.reason for each in self.set_aside)
        reason = RejectReason.PLUGIN_FAILED if detail else RejectReason.NO_PLUGIN
        left: dict[DeviceName, set[str]] = {
            each.type: _owners(each, self.owners) for each in self.left_types
        }
        for usable in self.left:
            address = usable.function.address
            owner = self.owners.get(address)
            left[address] = {owner} if owner else set()
        stays: dict[DeviceName, str] = {
            each.function.address: (
                f"it stays on {each.driver}"
                if each.driver in own_drivers
                else f"no plugin has {each.driver} in own_vfio_drivers"
            )
            for each in self.left
            if not is_vfio_driver(each.driver)
        }
        for name, owners in left.items():
            waits = f"it waits for {', '.join(sorted(owners))}" if owners else ""
            why = waits or "; ".join(filter(None, (stays.get(name), detail)))
            self.refused.append(RejectedDevice(name, reason, why))


def _owners(
    offered: OfferedType, owners: Mapping[DeviceAddress | DeviceName, str]
) -> set[str]:
    """Return the plugins with which slots of a type stay."""
    return {owners[each.address] for each in offered.handles if each.address in owners}


def _without_others(
    offered: OfferedType, owners: Mapping[DeviceAddress | DeviceName, str]
) -> OfferedType:
    """Return a type in which the slots that stay with other plugins are faulty."""
    if not _owners(offered, owners):
        return offered
    handles = tuple(
        dataclasses.replace(each, fault=f"waits for {owners[each.address]}")
        if each.address in owners
        else each
        for each in offered.handles
    )
    return dataclasses.replace(offered, handles=handles)
