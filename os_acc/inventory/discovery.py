# SPDX-License-Identifier: Apache-2.0

"""Discovery of the devices that the host offers, and of the rejected ones."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from oslo_log import log

from os_acc.host import pci
from os_acc.host.pci import Host
from os_acc.inventory import eligibility, mdev_types, migration, plugin_discovery
from os_acc.inventory.eligibility import HostEvidence
from os_acc.objects import provider_names
from os_acc.objects.device import (
    CardProvider,
    Device,
    DeviceTags,
    MatchedFunction,
    OfferedType,
    Provider,
    RejectedDevice,
    RejectReason,
    UsableFunction,
)
from os_acc.objects.device_spec import OperatorRules
from os_acc.objects.mdev import DeviceAddress, DeviceName, MdevType, function_of
from os_acc.objects.migration import MigrationSupport
from os_acc.objects.pci import PciAddress
from os_acc.objects.provider_names import ProviderOrigin
from os_acc.objects.records import RecordedState
from os_acc.placement import device_traits
from os_acc.plugins import base, loader
from os_acc.store import state_files

LOG = log.getLogger(__name__)

# Python prints an object with its address in memory, which differs in each scan.
_OBJECT = re.compile(" at 0x[0-9a-f]+")

_MAYBE_UNKNOWN = frozenset({RejectReason.UNKNOWN_STATE, RejectReason.NOT_ISOLATED})


@dataclasses.dataclass(frozen=True, slots=True)
class Inventory:
    """The result of a scan of the host.

    :ivar set_aside: the plugins whose discovery failed.
    :ivar broken_rules: the rules that plugins broke without the loss of a device.
    :ivar provider_origins: the devices and cards that providers are named after.
    :ivar recorded_state: the leases that the scan was checked against; device
        selection uses them, too.
    :ivar prebound: functions that the operator declared to be on vfio-pci.
    :ivar mdev_totals: the units of each type of mediated devices.
    :ivar absent: the UUIDs of held leases whose devices do not exist, and for which
        units of other types are reserved.
    :ivar claimed: about leased devices that several plugins serve, by address.
    :ivar migrations: what VFIO has answered about the migration of the devices of each
        provider, by UUID; None: it has not been asked.
    """

    host: Host
    providers: Mapping[str, Provider]
    refused: tuple[RejectedDevice, ...]
    set_aside: tuple[loader.SetAside, ...]
    broken_rules: tuple[str, ...]
    provider_origins: Mapping[str, ProviderOrigin]
    recorded_state: RecordedState
    prebound: frozenset[PciAddress]
    mdev_totals: Mapping[MdevType, int]
    absent: frozenset[str]
    claimed: Mapping[DeviceAddress | DeviceName, str]
    migrations: Mapping[str, MigrationSupport | None]

    @property
    def classes(self) -> Mapping[str, str]:
        """The resource class of each provider, by UUID."""
        return {
            uuid: each.device.resource_class for uuid, each in self.providers.items()
        }

    @property
    def provider_plugins(self) -> Mapping[str, str]:
        """The plugin of each provider, by UUID."""
        return {uuid: each.device.plugin for uuid, each in self.providers.items()}

    @property
    def unknown(self) -> frozenset[RejectedDevice]:
        """The devices that may be prepared for a guest without a lease.

        Such a device may also be the reason why another one is not isolated.
        """
        return frozenset(each for each in self.refused if each.reason in _MAYBE_UNKNOWN)


class RejectionLog:
    """Logs rejected devices and failed plugins, each once."""

    def __init__(self) -> None:
        self._texts: frozenset[str] = frozenset()

    def log_new(self, inventory: Inventory) -> None:
        """Log the rejections that are new since the last call."""
        now: dict[str, BaseException | None] = {
            f"{each.address} is named in [os_acc] device_spec but not offered: "
            f"{each}": None
            for each in inventory.refused
        }
        now |= dict.fromkeys(
            f"a plugin broke a rule of the contract: {rule}"
            for rule in inventory.broken_rules
        )
        now |= dict.fromkeys(f"{at} {why}" for at, why in inventory.claimed.items())
        for aside in inventory.set_aside:
            now[f"the plugin {aside.name} is not used: {aside.reason}"] = aside.error
        before = self._texts
        self._texts = frozenset(_OBJECT.sub("", text) for text in now)
        for text, error in now.items():
            if _OBJECT.sub("", text) not in before:
                LOG.warning("%s", text, exc_info=error)


def discover(
    root: str,
    rules: OperatorRules,
    loaded: loader.Plugins,
    node_name: str,
    recorded: RecordedState,
    deadline: float = math.inf,
    host: Host | None = None,
    faults: Mapping[PciAddress, str] = MappingProxyType({}),
) -> Inventory:
    """Scan the host, check the named devices, and run the plugins.

    :param recorded: the leases, which decide on the state of functions.
    :param host: the result of an earlier scan.
    :param faults: faults that the kernel has reported, by function.
    :raises HostStepFailed: the host cannot be read at all, or not now, for lack of
        descriptors or memory; the last inventory stays.
    :raises PluginFailed: a plugin lacked these.
    :raises DeviceStuck: the deadline has passed.
    """
    host = host or pci.scan(root)
    evidence = HostEvidence(root, rules, recorded, host)
    matched = _matched(evidence)
    usable, refused = _usable(evidence, matched)
    found_types = list(mdev_types.offered_types(evidence, recorded))
    types = tuple([each for each in found_types if isinstance(each, OfferedType)])
    refused.extend([each for each in found_types if isinstance(each, RejectedDevice)])
    there = _still_there(recorded.provider_origins, host)
    candidates = base.Candidates(
        usable, matched, frozenset(there.values()), mdev_types=types
    )
    found = plugin_discovery.ask_all(
        root, loaded, candidates, host, node_name, recorded, there, deadline
    )
    recorded = _accepting(recorded, found.devices, evidence.named)
    kept, absent = mdev_types.keep_capacity(root, host, found.devices, recorded)
    refused_before = state_files.recorded_refusals(rules.state_path, root)
    faulty = [_with_faults(each, faults, refused_before, loaded) for each in kept]
    supports = migration.supports(root, host, faulty, rules.state_path)
    movable = map(migration.published, faulty, supports)
    devices = [device_traits.described(each, recorded) for each in movable]
    names = provider_names.ProviderNames(
        node_name, recorded.provider_origins, _origins(host, devices)
    )
    providers = [_provider(names, device) for device in devices]
    prebound = [
        address
        for each in usable
        for address in each.members
        if evidence.named.get(address, each.tags).prebound
    ]
    return Inventory(
        host=host,
        providers=MappingProxyType({each.uuid: each for each in providers}),
        refused=(*refused, *found.refused),
        set_aside=tuple(found.set_aside),
        broken_rules=tuple(found.broken_rules),
        provider_origins=names.origins,
        recorded_state=recorded,
        prebound=frozenset(prebound),
        mdev_totals=MappingProxyType({each.type: len(each.handles) for each in types}),
        absent=absent,
        claimed=MappingProxyType(found.claimed),
        migrations=MappingProxyType(
            {each.uuid: found for each, found in zip(providers, supports, strict=True)}
        ),
    )


def _with_faults(
    device: Device,
    faults: Mapping[PciAddress, str],
    refused: Mapping[tuple[str, str], str],
    loaded: loader.Plugins,
) -> Device:
    """Return the device with the faults and refusals of each handle and its group."""
    if not (faults or refused):
        return device
    options = loaded.options_of(device.plugin)
    handles = []
    for each in device.handles:
        places = filter(None, map(function_of, each.members))
        found = [f"{at} {faults[at]}" for at in places if at in faults]
        refusal = refused.get((str(each.address), options), "")
        fault = "; ".join(filter(None, (each.fault, *found, refusal)))
        handles.append(dataclasses.replace(each, fault=fault))
    return dataclasses.replace(device, handles=tuple(handles))


def _matched(evidence: HostEvidence) -> tuple[MatchedFunction, ...]:
    found = []
    for address in sorted(evidence.named):
        function = evidence.host.functions[address]
        # In a guest, the PF of a VF is not visible.
        pf = function.physfn or address
        parent = evidence.host.functions.get(pf, function)
        found.append(MatchedFunction(function, parent, evidence.named[address]))
    return tuple(found)


def _usable(
    evidence: HostEvidence, matched: Sequence[MatchedFunction]
) -> tuple[tuple[UsableFunction, ...], list[RejectedDevice]]:
    usable: list[UsableFunction] = []
    refused: list[RejectedDevice] = []
    taken: set[PciAddress] = set()
    for each in matched:
        # It is usable as a member of another function's group, or stays with its
        # driver for mediated devices.
        if each.function.address in taken or each.tags.mdev_types:
            continue
        found = eligibility.check(evidence, each)
        if isinstance(found, RejectedDevice):
            refused.append(found)
        else:
            usable.append(found)
            taken.update(found.members)
    return tuple(usable), refused


def _accepting(
    recorded: RecordedState,
    devices: Collection[Device],
    named: Mapping[PciAddress, DeviceTags],
) -> RecordedState:
    """Return the records with the regions that are tagged ``trust_guest_contents``."""
    tagged = {at for at, tags in named.items() if tags.trust_guest_contents}
    accepted = frozenset(
        device.region.key
        for device in devices
        if device.region is not None
        and any(not tagged.isdisjoint(each.members) for each in device.handles)
    )
    regions = dataclasses.replace(recorded.unverified_regions, accepted=accepted)
    return dataclasses.replace(recorded, unverified_regions=regions)


def _still_there(
    origins: Mapping[str, ProviderOrigin], host: Host
) -> dict[str, PciAddress]:
    """Return the functions that recorded providers are named after, by UUID."""
    return {
        uuid: origin.address
        for uuid, origin in origins.items()
        if (function := host.functions.get(origin.address)) is not None
        and origin.is_of(function.identity, function.address)
    }


def _origins(host: Host, devices: Sequence[Device]) -> Iterator[ProviderOrigin]:
    """Yield the origins of functions with a serial number, and of the devices."""
    for function in host.functions.values():
        # VFs may report the serial number of their PF.
        if function.identity.serial and function.physfn is None:
            yield provider_names.place(function.identity, function.address)
    for device in devices:
        named = function_of(device.address)
        if named is not None and device.identity is not None:
            yield provider_names.place(device.identity, named)
        if device.region is not None:
            yield provider_names.place(device.region.identity, device.region.card)


def _provider(names: provider_names.ProviderNames, device: Device) -> Provider:
    """Return a device with its provider; a region also has that of its card."""
    address, identity = device.address, device.identity
    function = function_of(address)
    if function is None or identity is None:
        assert isinstance(address, MdevType)
        uuid, name = names.of_virtual(address)
    elif isinstance(address, MdevType):
        name_of = functools.partial(provider_names.of_mdev_type, address.name)
        uuid, name = names.give(name_of, identity, function)
    else:
        uuid, name = names.give(provider_names.of_device, identity, function)
    if device.region is None:
        return Provider(uuid, name, device)
    region = device.region
    card = names.give(provider_names.of_card, region.identity, region.card)
    return Provider(uuid, name, device, CardProvider(*card))
