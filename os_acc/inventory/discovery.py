# SPDX-License-Identifier: Apache-2.0

"""Discovery of the devices that the host offers, and of the rejected ones."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.host import attributes, pci
from os_acc.host.pci import Host
from os_acc.inventory import (
    discovered,
    eligibility,
    kept_capacity,
    mdev_types,
    named_providers,
)
from os_acc.inventory.evidence import HostEvidence, OperatorRules
from os_acc.objects import naming
from os_acc.objects.device import (
    Device,
    DeviceTags,
    MatchedFunction,
    OfferedType,
    Provider,
    RejectedDevice,
    RejectReason,
    UsableFunction,
)
from os_acc.objects.mdev import DeviceAddress, DeviceName, MdevType, function_of
from os_acc.objects.naming import ProviderOrigin
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.records import RecordedState
from os_acc.objects.region import Region
from os_acc.placement import device_traits
from os_acc.plugins import answers, base, loader
from os_acc.store import state_files

LOG = log.getLogger(__name__)

# Python prints an object with its address in memory, which differs in each scan.
_OBJECT = re.compile(" at 0x[0-9a-f]+")

# A plugin only reads, and discovery is part of every plug.
_DISCOVER_SECONDS = 10.0

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
    """

    host: Host
    providers: Mapping[str, Provider]
    refused: tuple[RejectedDevice, ...]
    set_aside: tuple[loader.SetAside, ...] = ()
    broken_rules: tuple[str, ...] = ()
    provider_origins: Mapping[str, ProviderOrigin] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    recorded_state: RecordedState = dataclasses.field(default_factory=RecordedState)
    prebound: frozenset[PciAddress] = frozenset()
    mdev_totals: Mapping[MdevType, int] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    absent: frozenset[str] = frozenset()
    claimed: Mapping[DeviceAddress | DeviceName, str] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )

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
    usable, refused = _usable(evidence)
    types, refused_types = _types(evidence, recorded)
    there = named_providers.still_there(recorded.provider_origins, host)
    candidates = base.Candidates(
        usable,
        tuple(_named(evidence, address) for address in sorted(evidence.named)),
        frozenset(there.values()),
        mdev_types=types,
    )
    offered = named_providers.last_plugins(node_name, recorded, there, types)
    owners = named_providers.owners(recorded, there, loaded.enabled)
    found = _discover(
        root, loaded, candidates, recorded, offered, owners, host, deadline
    )
    recorded = _accepting(recorded, found.devices, evidence.named)
    absent = kept_capacity.absent(root, host, found.devices, recorded)
    refused_before = state_files.recorded_refusals(rules.state_path, root)
    devices = [
        device_traits.described(
            _with_faults(device, faults, refused_before, loaded), recorded
        )
        for device in kept_capacity.keep(host, found.devices, recorded, absent)
    ]
    names = naming.ProviderNames(
        node_name, recorded.provider_origins, named_providers.origins(host, devices)
    )
    providers = [named_providers.provider(names, device) for device in devices]
    return Inventory(
        host=host,
        providers=MappingProxyType({each.uuid: each for each in providers}),
        refused=(*refused, *refused_types, *found.refused),
        set_aside=tuple(found.set_aside),
        broken_rules=tuple(found.broken_rules),
        provider_origins=names.origins,
        recorded_state=recorded,
        prebound=frozenset(_prebound(evidence, usable)),
        mdev_totals=MappingProxyType({each.type: len(each.handles) for each in types}),
        absent=frozenset(each.uuid for each in absent),
        claimed=MappingProxyType(found.claimed),
    )


def _types(
    evidence: HostEvidence, recorded: RecordedState
) -> tuple[tuple[OfferedType, ...], list[RejectedDevice]]:
    named = evidence.rules.named
    virtual = {
        name: tags
        for name in named.parent_names
        if (tags := named.match_parent(name)) is not None
    }
    found = list(mdev_types.offered_types(evidence, virtual, recorded))
    types = tuple(each for each in found if isinstance(each, OfferedType))
    return types, [each for each in found if isinstance(each, RejectedDevice)]


def _prebound(
    evidence: HostEvidence, usable: Sequence[UsableFunction]
) -> Iterator[PciAddress]:
    for each in usable:
        for address in each.members:
            if evidence.named.get(address, each.tags).prebound:
                yield address


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


def _usable(
    evidence: HostEvidence,
) -> tuple[tuple[UsableFunction, ...], list[RejectedDevice]]:
    usable: list[UsableFunction] = []
    refused: list[RejectedDevice] = []
    taken: set[PciAddress] = set()
    for address in sorted(evidence.named):
        # It is usable as a member of another function's group, or stays with its
        # driver for mediated devices.
        if address in taken or evidence.named[address].mdev_types:
            continue
        members = eligibility.check(evidence, address)
        if isinstance(members, RejectedDevice):
            refused.append(members)
            continue
        usable.append(_usable_function(evidence, address, members))
        taken.update(members)
    return tuple(usable), refused


def _named(evidence: HostEvidence, address: PciAddress) -> MatchedFunction:
    function = evidence.host.functions[address]
    return MatchedFunction(
        function, _parent(evidence.host, function), evidence.named[address]
    )


def _usable_function(
    evidence: HostEvidence,
    address: PciAddress,
    members: tuple[PciAddress, ...],
) -> UsableFunction:
    function = evidence.host.functions[address]
    return UsableFunction(
        function=function,
        parent=_parent(evidence.host, function),
        tags=evidence.named[address],
        members=members,
        iommu_group=evidence.host.group_of(function).number,
        driver=eligibility.driver_of(evidence, function),
    )


def _parent(host: Host, function: PciFunction) -> PciFunction:
    # In a guest, the PF of a VF is not visible.
    return host.functions.get(function.physfn or function.address, function)


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


def _discover(
    root: str,
    loaded: loader.Plugins,
    candidates: base.Candidates,
    recorded: RecordedState,
    offered: Mapping[DeviceName, Collection[str]],
    owners: Mapping[DeviceAddress | DeviceName, str],
    host: Host,
    deadline: float,
) -> discovered.Discovered:
    found = discovered.Discovered(candidates.usable, candidates.mdev_types, owners)
    waiting, own_drivers = set(loaded.enabled), loaded.own_vfio_drivers
    regions = _leased_regions(root, recorded)
    for each in loaded.enabled.values():
        found.note_served(each)
    for idle in loaded.set_aside:
        found.keep(idle, offered, loaded.enabled[idle.name])
    for plugin in loaded.loaded:
        deadlines.left(deadline)
        seconds = deadlines.patience(deadline, _DISCOVER_SECONDS)
        usable, types = found.candidates_for(
            plugin.name, waiting, own_drivers[plugin.name]
        )
        given = dataclasses.replace(
            candidates,
            usable=usable,
            leased_regions=MappingProxyType(regions.get(plugin.name, {})),
            mdev_types=types,
        )
        try:
            answer = loaded.call(
                *(plugin, seconds, answers.ask),
                *(plugin, given, host.functions, found.offered),
            )
        except exception.PluginFailed as error:
            if exception.is_exhaustion(error.__cause__):
                raise
            found.set_aside.append(idle := loader.SetAside.after(plugin.name, error))
            found.keep(idle, offered, loaded.enabled[plugin.name])
            continue
        waiting.discard(plugin.name)
        found.add(plugin.name, answer)
        found.release(plugin.name, recorded)
        reason = RejectReason.INVALID
        invalid = [each.detail for each in answer.refused if each.reason is reason]
        for rule in (*invalid, *answer.broken_rules):
            # An invalid answer may lack functions that it had before.
            found.keep(loader.SetAside(plugin.name, rule), offered)
    found.reject_rest(frozenset().union(*own_drivers.values()))
    return found


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
