# SPDX-License-Identifier: Apache-2.0

"""Discovery of the devices that the host offers, and of the rejected ones."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import os_resource_classes
import os_traits
from oslo_log import log

from os_acc import deadlines, exception, plugins
from os_acc.host import attributes, pci, usage
from os_acc.host.view import Host
from os_acc.inventory import accepted_regions, eligibility
from os_acc.objects import device_spec, naming
from os_acc.objects.candidate import DeviceTags, MatchedFunction, UsableFunction
from os_acc.objects.device import (
    AttachHandle,
    CardProvider,
    Device,
    Provider,
    RejectedDevice,
    RejectReason,
)
from os_acc.objects.lease import RecordedState
from os_acc.objects.naming import ProviderOrigin
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.region import Region, check_functions
from os_acc.objects.request import PLACEMENT_NAME
from os_acc.placement import cell_traits, region_traits
from os_acc.plugins import base

LOG = log.getLogger(__name__)

_CUSTOM = re.compile("CUSTOM_.")

# A plugin only reads, and discovery is part of every plug.
_DISCOVER_SECONDS = 10.0

_MAYBE_UNKNOWN = frozenset({RejectReason.UNKNOWN_STATE, RejectReason.NOT_ISOLATED})


@dataclasses.dataclass(frozen=True, slots=True)
class Inventory:
    """The result of a scan of the host.

    :ivar set_aside: the plugins whose discovery failed.
    :ivar provider_origins: the devices and cards that providers are named after.
    :ivar recorded_state: the leases that the scan was checked against; device
        selection uses them, too.
    :ivar prebound: functions that the operator declared to be on vfio-pci.
    """

    host: Host
    providers: Mapping[str, Provider]
    refused: tuple[RejectedDevice, ...]
    set_aside: tuple[plugins.SetAside, ...] = ()
    provider_origins: Mapping[str, ProviderOrigin] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    recorded_state: RecordedState = dataclasses.field(default_factory=RecordedState)
    prebound: frozenset[PciAddress] = frozenset()

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


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorRules:
    """The operator's configuration of devices, in our options and in Nova's.

    :ivar max_uncorrectable_errors: those of a device that is offered; 0: any number.
    """

    named: device_spec.DeviceSpec
    nova: device_spec.DeviceSpec
    nova_policies: device_spec.DeviceSpec
    nova_mdev_parents: frozenset[PciAddress]
    nova_mdev_types: frozenset[str]
    max_uncorrectable_errors: int = 0


class RejectionLog:
    """Logs rejected devices and failed plugins, each once."""

    def __init__(self) -> None:
        self._texts: frozenset[str] = frozenset()

    def log_new(self, inventory: Inventory) -> None:
        """Log the rejections that are new since the last call."""
        now = [
            f"{each.address} is named in [os_acc] device_spec but not offered: {each}"
            for each in inventory.refused
        ]
        now += [
            f"the plugin {each.name} is not used: {each.reason}"
            for each in inventory.set_aside
        ]
        before, self._texts = self._texts, frozenset(now)
        for text in now:
            if text not in before:
                LOG.warning("%s", text)


def discover(
    root: str,
    rules: OperatorRules,
    loaded: plugins.Plugins,
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
    :raises HostStepFailed: the host cannot be read at all.
    :raises DeviceStuck: the deadline has passed.
    """
    host = host or pci.scan(root)
    evidence = _evidence(root, rules, recorded, host)
    usable, refused = _usable(evidence)
    there = _still_there(recorded.provider_origins, host)
    candidates = base.Candidates(
        usable,
        tuple(_named(evidence, address) for address in sorted(evidence.named)),
        frozenset(there.values()),
    )
    offered = _last_offered(recorded.provider_plugins, there)
    devices, unknown, set_aside = _discover(
        root, loaded, candidates, recorded, offered, deadline
    )
    recorded = accepted_regions.accepting(recorded, devices, rules.named, host)
    devices = [
        cell_traits.described(
            region_traits.described(_with_faults(device, faults), recorded)
        )
        for device in devices
    ]
    names = naming.ProviderNames(
        node_name, recorded.provider_origins, _origins(host, devices)
    )
    providers = [_provider(names, device) for device in devices]
    return Inventory(
        host=host,
        providers=MappingProxyType({each.uuid: each for each in providers}),
        refused=(*refused, *unknown),
        set_aside=set_aside,
        provider_origins=names.origins,
        recorded_state=recorded,
        prebound=frozenset(_prebound(evidence, usable)),
    )


def _evidence(
    root: str, rules: OperatorRules, recorded: RecordedState, host: Host
) -> eligibility.HostEvidence:
    return eligibility.HostEvidence(
        root=root,
        host=host,
        usage=usage.read_usage(root, host),
        named=_with_policies(
            _match(rules.named, host), _match(rules.nova_policies, host)
        ),
        nova=frozenset(_match(rules.nova, host)) | rules.nova_mdev_parents,
        nova_mdev_types=rules.nova_mdev_types,
        leased=recorded.leased,
        taken=recorded.taken,
        in_parts=recorded.leased_in_parts,
        helper_claims=recorded.helper_claims,
    )


def _prebound(
    evidence: eligibility.HostEvidence, usable: Sequence[UsableFunction]
) -> Iterator[PciAddress]:
    for each in usable:
        for address in each.members:
            if evidence.named.get(address, each.tags).prebound:
                yield address


def _with_faults(device: Device, faults: Mapping[PciAddress, str]) -> Device:
    if not faults:
        return device
    handles = tuple(_with_fault(handle, faults) for handle in device.handles)
    return dataclasses.replace(device, handles=handles)


def _with_fault(handle: AttachHandle, faults: Mapping[PciAddress, str]) -> AttachHandle:
    """Return the handle, marked faulty if any function of its group is."""
    found = [f"{each} {faults[each]}" for each in handle.members if each in faults]
    if not found:
        return handle
    own = [handle.fault] if handle.fault else []
    return dataclasses.replace(handle, fault="; ".join([*own, *found]))


def _match(spec: device_spec.DeviceSpec, host: Host) -> dict[PciAddress, DeviceTags]:
    if not spec.entries:
        return {}
    found = (
        (address, spec.match(function, host.netdevs, host.functions))
        for address, function in host.functions.items()
    )
    return {address: tags for address, tags in found if tags is not None}


def _with_policies(
    named: Mapping[PciAddress, DeviceTags], aliases: Mapping[PciAddress, DeviceTags]
) -> dict[PciAddress, DeviceTags]:
    """Return the device tags; a NUMA policy of Nova's alias takes precedence."""
    return {
        address: (
            dataclasses.replace(tags, numa_policy=aliases[address].numa_policy)
            if address in aliases
            else tags
        )
        for address, tags in named.items()
    }


def _usable(
    evidence: eligibility.HostEvidence,
) -> tuple[tuple[UsableFunction, ...], list[RejectedDevice]]:
    usable: list[UsableFunction] = []
    refused: list[RejectedDevice] = []
    taken: set[PciAddress] = set()
    for address in sorted(evidence.named):
        if address in taken:
            # It is usable as a member of another function's group.
            continue
        verdict = eligibility.judge(evidence, address)
        if isinstance(verdict, RejectedDevice):
            refused.append(verdict)
            continue
        usable.append(_usable_function(evidence, address, verdict))
        taken.update(verdict)
    return tuple(usable), refused


def _named(evidence: eligibility.HostEvidence, address: PciAddress) -> MatchedFunction:
    function = evidence.host.function(address)
    return MatchedFunction(
        function, _parent(evidence.host, function), evidence.named[address]
    )


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


def _last_offered(
    plugins: Mapping[str, str], there: Mapping[str, PciAddress]
) -> dict[PciAddress, set[str]]:
    """Return the recorded plugins of each function."""
    found: dict[PciAddress, set[str]] = {}
    for uuid, name in plugins.items():
        if uuid in there:
            found.setdefault(there[uuid], set()).add(name)
    return found


def _usable_function(
    evidence: eligibility.HostEvidence,
    address: PciAddress,
    members: tuple[PciAddress, ...],
) -> UsableFunction:
    function = evidence.host.function(address)
    return UsableFunction(
        function=function,
        parent=_parent(evidence.host, function),
        tags=evidence.named[address],
        members=members,
        iommu_group=evidence.host.group_of(address).number,
    )


def _parent(host: Host, function: PciFunction) -> PciFunction:
    # In a guest, the PF of a VF is not visible.
    return host.functions.get(function.physfn or function.address, function)


def _leased_regions(
    root: str, recorded: RecordedState, plugin: str
) -> Mapping[PciAddress, Region]:
    """Return the regions of a plugin's leased functions, which no scan can read."""
    this_boot = attributes.boot_id(root)
    return MappingProxyType(
        {
            address: lease.programming.region_in(this_boot)
            for lease in recorded.leases
            if lease.programming is not None and lease.plugin == plugin
            for address in lease.members
        }
    )


def _discover(
    root: str,
    loaded: plugins.Plugins,
    candidates: base.Candidates,
    recorded: RecordedState,
    offered: Mapping[PciAddress, Collection[str]],
    deadline: float,
) -> tuple[list[Device], list[RejectedDevice], tuple[plugins.SetAside, ...]]:
    devices: list[Device] = []
    refused: list[RejectedDevice] = []
    aside: list[plugins.SetAside] = []
    left = candidates.usable
    owed = recorded.owed_releases
    for idle in loaded.set_aside:
        left = _keep(left, idle, offered, refused)
    for plugin in loaded.loaded:
        deadlines.left(deadline)
        seconds = deadlines.patience(deadline, _DISCOVER_SECONDS)
        regions = _leased_regions(root, recorded, plugin.name)
        # A function that a plugin has to release is offered by no other one.
        others = {address for address, name in owed.items() if name != plugin.name}
        mine = tuple(each for each in left if each.function.address not in others)
        try:
            found, not_offered = loaded.call(
                plugin,
                seconds,
                _take,
                plugin,
                dataclasses.replace(candidates, usable=mine, leased_regions=regions),
            )
        except exception.PluginFailed as error:
            aside.append(idle := plugins.SetAside(plugin.name, error.message))
            left = _keep(left, idle, offered, refused)
            continue
        devices.extend(found)
        refused.extend(not_offered)
        gone = {handle.address for device in found for handle in device.handles}
        gone.update(each.address for each in not_offered)
        left = tuple(each for each in left if each.function.address not in gone)
    # Functions that no plugin offers; a plugin that failed may be the reason.
    detail = "; ".join(each.reason for each in aside)
    reason = RejectReason.PLUGIN_FAILED if aside else RejectReason.NO_PLUGIN
    for address in (each.function.address for each in left):
        why = f"it waits for {owed[address]}" if address in owed else detail
        refused.append(RejectedDevice(address, reason, why))
    return devices, refused, tuple(aside)


def _keep(
    usable: tuple[UsableFunction, ...],
    idle: plugins.SetAside,
    offered: Mapping[PciAddress, Collection[str]],
    refused: list[RejectedDevice],
) -> tuple[UsableFunction, ...]:
    """Reject functions that an idle plugin has offered; return the others.

    Else another plugin would offer them under another class, without the
    preparation of the idle one.
    """
    left: list[UsableFunction] = []
    for each in usable:
        address = each.function.address
        by = {*offered.get(address, ()), *offered.get(each.parent.address, ())}
        if idle.name in by:
            detail = f"{idle.name} has offered it before: {idle.reason}"
            refused.append(RejectedDevice(address, RejectReason.PLUGIN_FAILED, detail))
        else:
            left.append(each)
    return tuple(left)


def _take(
    plugin: base.PluginBase, candidates: base.Candidates
) -> tuple[list[Device], list[RejectedDevice]]:
    """Return a plugin's devices, after a check that it offers each usable function
    at most once.

    :raises ValueError: the plugin offers a function that is not usable.
    """
    free = {each.handle() for each in candidates.usable}
    candidate_addresses = {handle.address for handle in free}
    devices: list[Device] = []
    refused: list[RejectedDevice] = []
    for device in plugin.discover(candidates):
        if isinstance(device, RejectedDevice):
            if device.address not in candidate_addresses:
                raise ValueError(f"{device.address} is not a candidate")
            refused.append(device)
            continue
        _check(plugin, device)
        if any(device.address == other.address for other in devices):
            raise ValueError(
                f"{device.address} is offered as two devices: offer one device "
                "with all handles"
            )
        for handle in device.handles:
            # A plugin may not change a handle, except for its fault.
            healthy = dataclasses.replace(handle, fault="")
            if healthy not in free:
                raise ValueError(
                    f"{handle.address} is not a candidate, was altered, or is "
                    "offered twice"
                )
            free.remove(healthy)
        devices.append(device)
    return devices, refused


def _check(plugin: base.PluginBase, device: object) -> None:
    if not isinstance(device, Device):
        raise ValueError(f"discover() returned {device!r}, not a Device")
    if device.plugin != plugin.name:
        raise ValueError(
            f"{device.address} has the plugin {device.plugin!r}, not {plugin.name!r}"
        )
    if device.region is not None and len(device.handles) > 1:
        addresses = {handle.address for handle in device.handles}
        if not addresses.issubset(device.region.pci_functions):
            raise ValueError(
                f"the region of {device.address} does not include {addresses}"
            )
    if device.region is not None:
        check_functions(device.region)
    for name in (device.resource_class, *device.traits):
        if not PLACEMENT_NAME.fullmatch(name):
            raise ValueError(
                f"{device.address} has the invalid name {name!r} for Placement"
            )
    # Placement would reject it, and Nova's update of the whole node would fail.
    for name in _unknown_names(device):
        raise ValueError(
            f"{device.address} has {name!r}, which is neither a standard name nor "
            "begins with CUSTOM_"
        )


def _unknown_names(device: Device) -> Iterator[str]:
    name = device.resource_class
    if not _CUSTOM.match(name) and name not in os_resource_classes.STANDARDS:
        yield name
    traits = [name for name in sorted(device.traits) if not _CUSTOM.match(name)]
    if traits:
        _standard, others = os_traits.check_traits(traits)
        yield from sorted(others)


def _origins(host: Host, devices: Sequence[Device]) -> Iterator[ProviderOrigin]:
    """Yield the origins of functions with a serial number, and of the devices."""
    for function in host.functions.values():
        # VFs may report the serial number of their PF.
        if function.identity.serial and function.physfn is None:
            yield naming.place(function.identity, function.address)
    for device in devices:
        yield naming.place(device.identity, device.address)
        if device.region is not None:
            yield naming.place(device.region.identity, device.region.card)


def _provider(names: naming.ProviderNames, device: Device) -> Provider:
    uuid, name = names.give(naming.of_device, device.identity, device.address)
    if device.region is None:
        return Provider(uuid, name, device)
    region = device.region
    card = names.give(naming.of_card, region.identity, region.card)
    return Provider(uuid, name, device, CardProvider(*card))
