# SPDX-License-Identifier: Apache-2.0

"""The results of plugins that are asked one after another, and the rest for the next.

A device belongs to the first plugin that offers it. One that a plugin has to release,
or has offered before it failed, waits for that plugin.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Set

from os_acc import plugins
from os_acc.objects.candidate import OfferedType, UsableFunction
from os_acc.objects.device import Device, RejectedDevice, RejectReason
from os_acc.objects.mdev import DeviceAddress, DeviceName, in_order
from os_acc.objects.vfio_driver import is_vfio_driver
from os_acc.plugins import answers


@dataclasses.dataclass(slots=True)
class Discovered:
    """The results of the plugins that were asked so far."""

    left: tuple[UsableFunction, ...]
    left_types: tuple[OfferedType, ...]
    devices: list[Device] = dataclasses.field(default_factory=list)
    refused: list[RejectedDevice] = dataclasses.field(default_factory=list)
    set_aside: list[plugins.SetAside] = dataclasses.field(default_factory=list)
    broken_rules: list[answers.BrokenRule] = dataclasses.field(default_factory=list)
    offered: dict[DeviceAddress | DeviceName, str] = dataclasses.field(
        default_factory=dict
    )

    def add(self, name: str, answer: answers.PluginAnswer) -> None:
        """Add the answer of a plugin."""
        self.devices.extend(answer.devices)
        self.refused.extend(answer.refused)
        self.broken_rules.extend(answer.broken)
        taken = answer.taken
        if not taken:
            return
        self.offered |= dict.fromkeys(
            taken.union(each.address for each in answer.devices), name
        )
        self._take(taken)

    def candidates_for(
        self,
        plugin: str,
        owed: Mapping[DeviceAddress, str],
        waiting: Set[str],
        own_drivers: Set[str],
    ) -> tuple[tuple[UsableFunction, ...], tuple[OfferedType, ...]]:
        """Return the functions and types that are left for a plugin.

        A function or slot that another plugin has to release is not for it. A type
        that has such a slot is, but not while the other plugin may still take it.

        :param waiting: the plugins that have not answered, and may do so later.
        :param own_drivers: those on which functions of the plugin stay. A function that
            stays on another driver is not for it.
        """
        usable = self._left_on(own_drivers)
        others = {address: name for address, name in owed.items() if name != plugin}
        if not others:
            return usable, self.left_types
        own = (each for each in usable if each.function.address not in others)
        types = (
            _without_owed(each, others)
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

    def keep(
        self, idle: plugins.SetAside, offered: Mapping[DeviceName, Collection[str]]
    ) -> None:
        """Reject the functions and types that an idle plugin has offered.

        Else another plugin would offer them under another class, without the
        preparation of the idle one.
        """
        name = idle.name
        by_it = {address for address, names in offered.items() if name in names}
        if not by_it:
            return
        kept: set[DeviceName] = {
            each.function.address
            for each in self.left
            if not by_it.isdisjoint((each.function.address, each.parent.address))
        }
        kept.update(each.type for each in self.left_types if each.type in by_it)
        detail = f"{name} has offered it before: {idle.reason}"
        self.refused.extend(
            RejectedDevice(address, RejectReason.PLUGIN_FAILED, detail)
            for address in sorted(kept, key=in_order)
        )
        self._take(kept)

    def _take(self, taken: Collection[DeviceAddress | DeviceName]) -> None:
        self.left = tuple(
            each for each in self.left if each.function.address not in taken
        )
        self.left_types = tuple(
            each for each in self.left_types if each.type not in taken
        )

    def reject_rest(
        self, owed: Mapping[DeviceAddress, str], own_drivers: Set[str]
    ) -> None:
        """Reject all that no plugin offers; a plugin that failed may be the reason.

        :param own_drivers: the drivers that plugins declare.
        """
        detail = "; ".join(each.reason for each in self.set_aside)
        reason = RejectReason.PLUGIN_FAILED if detail else RejectReason.NO_PLUGIN
        left: dict[DeviceName, set[str]] = {
            each.type: _owners(each, owed) for each in self.left_types
        }
        for usable in self.left:
            address = usable.function.address
            left[address] = {owed[address]} if address in owed else set()
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


def _owners(offered: OfferedType, owed: Mapping[DeviceAddress, str]) -> set[str]:
    """Return the plugins that have to release slots of a type."""
    return {owed[each.address] for each in offered.handles if each.address in owed}


def _without_owed(
    offered: OfferedType, owed: Mapping[DeviceAddress, str]
) -> OfferedType:
    """Return a type in which the slots that other plugins have to release are faulty.

    The kernel creates a mediated device for each guest, so no other slot is affected.
    """
    if not _owners(offered, owed):
        return offered
    handles = tuple(
        dataclasses.replace(each, fault=f"waits for {owed[each.address]}")
        if each.address in owed
        else each
        for each in offered.handles
    )
    return dataclasses.replace(offered, handles=handles)
