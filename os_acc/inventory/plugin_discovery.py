# SPDX-License-Identifier: Apache-2.0

"""Ask each plugin for its devices, and pass the other functions to the next plugin.

A device belongs to the first plugin that offers it. A leased one stays with the plugin
of its lease. One that a plugin has offered, or declares to serve, waits for that plugin
while it fails.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final, TypeAlias

from os_acc import deadlines, exception
from os_acc.host import attributes
from os_acc.host.pci import Host
from os_acc.objects import provider_names
from os_acc.objects.device import (
    Device,
    OfferedType,
    RejectedDevice,
    RejectReason,
    UsableFunction,
    with_faults,
)
from os_acc.objects.drivers import is_vfio_driver
from os_acc.objects.mdev import DeviceAddress, DeviceName, in_order
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.records import RecordedState
from os_acc.objects.region import Region
from os_acc.plugins import answers, base
from os_acc.plugins.loader import InstalledPlugin, Plugins, SetAside

# A plugin only reads, and discovery is part of every plug.
_DISCOVER_SECONDS: Final = 10.0

_Owned: TypeAlias = DeviceAddress | DeviceName


def ask_all(
    root: str,
    loaded: Plugins,
    candidates: base.Candidates,
    host: Host,
    node_name: str,
    recorded: RecordedState,
    there: Mapping[str, PciAddress],
    deadline: float,
) -> Discovered:
    """Ask the plugins for their devices, in their order.

    :param there: the functions that recorded providers are named after, by UUID.
    :raises PluginFailed: a plugin lacked descriptors or memory.
    :raises DeviceStuck: the deadline has passed.
    """
    types = candidates.mdev_types
    owners = _owners_of(recorded, there, loaded.enabled)
    offered = _last_plugins(node_name, recorded, there, types)
    drivers = {each.driver for each in candidates.usable}
    staying = frozenset([each for each in drivers if not is_vfio_driver(each)])
    found = Discovered(candidates.usable, types, owners, staying)
    waiting, own_drivers = set(loaded.enabled), loaded.own_vfio_drivers
    regions = _leased_regions(root, recorded)
    for each in loaded.enabled.values() if owners else ():
        found.note_served(each)
    for idle in loaded.set_aside:
        found.keep(idle, offered, loaded.enabled[idle.name])
    for plugin in loaded.loaded:
        name = loaded.name_of(plugin)
        usable, types = found.candidates_for(name, waiting, own_drivers[name])
        if not usable and not types:
            waiting.discard(name)
            found.release(name, recorded)
            continue
        seconds = deadlines.patience(deadline, _DISCOVER_SECONDS)
        given = dataclasses.replace(
            candidates,
            usable=usable,
            leased_regions=MappingProxyType(regions.get(name, {})),
            mdev_types=types,
        )
        arguments = (name, plugin, given, host.functions, found.offered)
        try:
            answer = loaded.call(plugin, seconds, answers.ask, *arguments)
        except exception.PluginFailed as error:
            if exception.is_exhaustion(error.__cause__):
                raise
            found.set_aside.append(idle := SetAside.after(name, error))
            found.keep(idle, offered, loaded.enabled[name])
            continue
        waiting.discard(name)
        found.add(name, answer)
        found.release(name, recorded)
        reason = RejectReason.INVALID
        invalid = [each.detail for each in answer.refused if each.reason is reason]
        for rule in (*invalid, *answer.broken_rules):
            # An invalid answer may lack functions that it had before.
            found.keep(SetAside(name, rule), offered)
    found.reject_rest(frozenset().union(*own_drivers.values()))
    return found


def _leased_regions(
    root: str, recorded: RecordedState
) -> Mapping[str, Mapping[PciAddress, Region]]:
    """Return the regions of leased functions, which no scan can read, by plugin."""
    found: defaultdict[str, dict[PciAddress, Region]] = defaultdict(dict)
    this_boot = ""
    for lease in recorded.leases:
        if lease.programming is not None:
            this_boot = this_boot or attributes.boot_id(root)
            region = lease.programming.region_in(this_boot)
            found[lease.plugin] |= dict.fromkeys(lease.functions, region)
    return found


@dataclasses.dataclass(slots=True)
class Discovered:
    """The results of the plugins that were asked so far.

    :ivar left: the functions that no plugin has taken, as ``left_types`` the types.
    :ivar owners: see :func:`_owners_of`.
    :ivar staying: the drivers of the host on which functions stay.
    :ivar claimed: about leased devices that several plugins serve, by address.
    :ivar offered: the functions and types that are taken, each with its plugin.
    """

    left: tuple[UsableFunction, ...]
    left_types: tuple[OfferedType, ...]
    owners: Mapping[_Owned, str]
    staying: frozenset[str]
    claimed: dict[_Owned, str] = dataclasses.field(default_factory=dict)
    devices: list[Device] = dataclasses.field(default_factory=list)
    refused: list[RejectedDevice] = dataclasses.field(default_factory=list)
    set_aside: list[SetAside] = dataclasses.field(default_factory=list)
    broken_rules: list[str] = dataclasses.field(default_factory=list)
    offered: dict[_Owned, str] = dataclasses.field(default_factory=dict)

    def add(self, name: str, answer: answers.PluginAnswer) -> None:
        """Add the answer of a plugin, without devices of another one's providers."""
        self.broken_rules.extend(answer.broken_rules)
        if not (answer.devices or answer.refused):
            # Most plugins recognise no device of a host.
            return
        foreign = [e for e in answer.devices if self._is_anothers(e.address, name)]
        if foreign:
            own = tuple([each for each in answer.devices if each not in foreign])
            answer = dataclasses.replace(answer, devices=own)
            self._claim(name, [each.address for each in foreign])
        self.devices.extend(answer.devices)
        self.refused.extend(answer.refused)
        if taken := answer.taken:
            named = taken.union([each.address for each in answer.devices])
            self.offered |= dict.fromkeys(named, name)
            self._take(taken)

    def release(self, plugin: str, recorded: RecordedState) -> None:
        """Leave leased devices that a plugin did not offer to the plugins after it.

        Those that it has to release or erase stay with it.
        """
        if plugin not in self.owners.values():
            return
        own = {at for at, name in self.owners.items() if name == plugin}
        own -= recorded.outstanding_releases.keys()
        self.owners = {at: name for at, name in self.owners.items() if at not in own}
        why = f"is not offered by {plugin}, the plugin of its lease"
        left = (each.function.address for each in self.left)
        self.claimed |= dict.fromkeys((each for each in left if each in own), why)

    def candidates_for(
        self, plugin: str, waiting: Set[str], own_drivers: Set[str]
    ) -> tuple[tuple[UsableFunction, ...], tuple[OfferedType, ...]]:
        """Return the functions and types that are left for a plugin.

        A function or slot that stays with another plugin is not for it. A type that
        has such a slot is, but not while the other plugin may still take it.

        :param waiting: the plugins that have not answered, and may do so later.
        :param own_drivers: those on which functions of the plugin stay. A function that
            stays on another driver is not for it.
        """
        usable, types = self.left, self.left_types
        if foreign := self.staying - own_drivers:
            usable = tuple(each for each in usable if each.driver not in foreign)
        if not self.owners:
            return usable, types
        others = {at: name for at, name in self.owners.items() if name != plugin}
        own = (each for each in usable if each.function.address not in others)
        of_types = (
            _without_others(each, others)
            for each in types
            if waiting.isdisjoint(_slot_owners(each, others))
        )
        return tuple(own), tuple(of_types)

    def note_served(self, plugin: InstalledPlugin) -> None:
        """Note the leased functions that stay with another plugin than this one."""
        others = [
            each.function
            for each in self.left
            if self._is_anothers(each.function.address, plugin.name)
        ]
        served = [each.address for each in others if plugin.serves(each.identity)]
        self._claim(plugin.name, served)

    def _is_anothers(self, address: _Owned, plugin: str) -> bool:
        return self.owners.get(address, plugin) != plugin

    def _claim(self, plugin: str, addresses: Iterable[_Owned]) -> None:
        for each in addresses:
            self.claimed[each] = (
                f"stays with {self.owners[each]} while it is leased; {plugin} serves it"
            )

    def keep(
        self,
        idle: SetAside,
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
        places: list[tuple[DeviceName, PciAddress | None, PciFunction | None]] = [
            *((e.function.address, e.parent.address, e.function) for e in self.left),
            *((each.type, None, each.parent) for each in self.left_types),
        ]
        own: dict[DeviceName, str] = {}
        for address, parent, function in places:
            if address in by_it or parent in by_it:
                why = "has offered it before"
            elif plugin and function and plugin.serves(function.identity):
                why = "serves it"
            else:
                continue
            if not self._is_anothers(address, name):
                own[address] = f"{name} {why}: {idle.reason}"
        self.refused.extend(
            RejectedDevice(each, RejectReason.PLUGIN_FAILED, own[each])
            for each in sorted(own, key=in_order)
        )
        self._take(own)

    def _take(self, taken: Collection[_Owned]) -> None:
        self.left = tuple(e for e in self.left if e.function.address not in taken)
        self.left_types = tuple(e for e in self.left_types if e.type not in taken)

    def reject_rest(self, own_drivers: Set[str]) -> None:
        """Reject all that no plugin offers; a plugin that failed may be the reason.

        :param own_drivers: the drivers that plugins declare.
        """
        failures = "; ".join(each.reason for each in self.set_aside)
        reason = RejectReason.PLUGIN_FAILED if failures else RejectReason.NO_PLUGIN
        left: dict[DeviceName, tuple[Collection[str], str]] = {
            kind.type: (_slot_owners(kind, self.owners), "") for kind in self.left_types
        }
        for each in self.left:
            address, stays = each.function.address, ""
            if each.driver in own_drivers:
                stays = f"it stays on {each.driver}"
            elif each.driver in self.staying:
                stays = f"no plugin has {each.driver} in own_vfio_drivers"
            owner = self.owners.get(address)
            left[address] = ([owner] if owner else [], stays)
        for name, (owners, stays) in left.items():
            why = "; ".join(filter(None, (stays, failures)))
            if owners:
                why = f"it waits for {', '.join(sorted(owners))}"
            self.refused.append(RejectedDevice(name, reason, why))


def _slot_owners(offered: OfferedType, owners: Mapping[_Owned, str]) -> set[str]:
    """Return the plugins with which slots of a type stay."""
    return {owners[each.address] for each in offered.handles if each.address in owners}


def _without_others(offered: OfferedType, owners: Mapping[_Owned, str]) -> OfferedType:
    """Return a type in which the slots that stay with other plugins are faulty."""
    addresses = (each.address for each in offered.handles)
    faults = {at: f"waits for {owners[at]}" for at in addresses if at in owners}
    if not faults:
        return offered
    return dataclasses.replace(offered, handles=with_faults(offered.handles, faults))


# -- plugins on record -------------------------------------------------------


def _owners_of(
    recorded: RecordedState, there: Mapping[str, PciAddress], enabled: Container[str]
) -> dict[_Owned, str]:
    """Return the plugin with which each leased function or slot stays.

    So does the function that its provider is named after: two plugins would offer the
    provider. A plugin that has to release or erase the device owns it also if it is
    not enabled.
    """
    found: dict[_Owned, str] = {}
    for lease in recorded.leases:
        is_enabled = bool(lease.provider) and lease.plugin in enabled
        if is_enabled and lease.provider in there:
            found[there[lease.provider]] = lease.plugin
        if is_enabled or lease.needs_release or lease.needs_erase:
            found |= dict.fromkeys(lease.members, lease.plugin)
    return found


def _last_plugins(
    node_name: str,
    recorded: RecordedState,
    there: Mapping[str, PciAddress],
    types: Sequence[OfferedType],
) -> dict[DeviceName, set[str]]:
    """Return the plugins that last offered each function, and each of these types."""
    found: defaultdict[DeviceName, set[str]] = defaultdict(set)
    providers: defaultdict[PciAddress, list[str]] = defaultdict(list)
    for uuid, plugin in recorded.provider_plugins.items():
        if uuid in there:
            found[there[uuid]].add(plugin)
            providers[there[uuid]].append(uuid)
    for kind in types:
        if (parent := kind.parent) is None:
            names = {provider_names.of_virtual_type(node_name, kind.type)}
        else:
            near = providers.get(parent.address, ())
            keys = {recorded.provider_origins[uuid].key for uuid in near}
            keys.add(provider_names.key_of_place(parent.identity, parent.address))
            # A plugin that has offered the entire parent may prepare its types as well.
            names = {
                name
                for key in keys
                for name in (
                    provider_names.of_mdev_type(kind.type.name, node_name, key),
                    provider_names.of_device(node_name, key),
                )
            }
        uuids = map(provider_names.uuid_of, names)
        plugins = map(recorded.provider_plugins.get, uuids)
        found[kind.type] = {plugin for plugin in plugins if plugin is not None}
    return dict(found)
