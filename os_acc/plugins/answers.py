# SPDX-License-Identifier: Apache-2.0

"""Checks of the devices that a plugin returns, each on its own.

A device that breaks a rule of the contract is rejected with that rule, and the
plugin's other devices are offered.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Final

import os_resource_classes
import os_traits

from os_acc import exception
from os_acc.objects.candidate import DeviceTags, UsableFunction
from os_acc.objects.device import (
    AttachHandle,
    Device,
    Erasure,
    RejectedDevice,
    RejectReason,
    VendorReason,
)
from os_acc.objects.mdev import DeviceAddress, DeviceName, MdevSlot, MdevType
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.request import ACCELERATOR_CLASSES, PLACEMENT_NAME
from os_acc.objects.typed import expect_text, plain_text
from os_acc.objects.vfio_driver import is_vfio_driver
from os_acc.plugins import base

# The others are the library's own, and it acts on some of them.
_REASONS: Final = frozenset(
    {
        RejectReason.MANAGEMENT,
        RejectReason.NOT_ISOLATED,
        RejectReason.NO_INTERFACE,
        RejectReason.SEVERAL_REGIONS,
        RejectReason.UNSEEN_REGION,
        RejectReason.UNREADABLE,
        RejectReason.UNSUPPORTED,
    }
)
# Each valid answer takes a function of its own: a loop without end exceeds this.
_MORE_ANSWERS: Final = 256
_CUSTOM: Final = re.compile("CUSTOM_.")


@dataclasses.dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule of the contract that an answer of a plugin breaks.

    :ivar plugin: the name of the plugin.
    :ivar rule: the attribute, its value, and the rule; one phrase for the operator.
    :ivar addresses: the usable functions, and the types of mediated devices, that are
        not offered for this reason.
    """

    plugin: str
    rule: str
    addresses: tuple[DeviceName, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PluginAnswer:
    """The result of a plugin's discovery, after the checks.

    :ivar refused: the functions that the plugin rejects, and those of its invalid
        devices.
    :ivar broken: for each invalid device, the rule that it breaks.
    """

    devices: tuple[Device, ...]
    refused: tuple[RejectedDevice, ...]
    broken: tuple[BrokenRule, ...]

    @property
    def taken(self) -> frozenset[DeviceAddress | DeviceName]:
        """The functions and types that no other plugin may offer."""
        offered: set[DeviceAddress | DeviceName] = {
            each.address for device in self.devices for each in device.handles
        }
        offered |= {
            each.address for each in self.devices if isinstance(each.address, MdevType)
        }
        return frozenset(offered.union(each.address for each in self.refused))


def ask(
    plugin: base.PluginBase,
    candidates: base.Candidates,
    functions: Mapping[PciAddress, PciFunction],
    offered: Mapping[DeviceAddress | DeviceName, str],
) -> PluginAnswer:
    """Let a plugin discover its devices, and check each of them.

    It runs the vendor's code to its end: call it as a plugin's method.

    :param functions: all functions of the host.
    :param offered: the functions and types that devices of the plugins before it are
        named after or consist of, with the name of the plugin.
    :raises ValueError: the plugin returns devices without end.
    :raises TypeError: it returns an object that is no device and no rejection.
    """
    count = len(candidates.usable) + len(candidates.mdev_types)
    most = 2 * count + _MORE_ANSWERS
    found = list(itertools.islice(plugin.discover(candidates), most + 1))
    if len(found) > most:
        raise ValueError(
            f"discover() returned more than {most} devices for "
            f"{count} functions and types"
        )
    if not found:
        # Most plugins recognise no device of a host.
        return PluginAnswer((), (), ())
    for each in found:
        if type(each) not in (Device, RejectedDevice):
            raise TypeError(
                f"discover() returned {exception.show(each)}, which is neither a "
                "Device nor a RejectedDevice"
            )
    return _Review(plugin, candidates, functions, offered, found).answer()


class _Review:
    """The checks of one answer; see :func:`ask`."""

    def __init__(
        self,
        plugin: base.PluginBase,
        candidates: base.Candidates,
        functions: Mapping[PciAddress, PciFunction],
        others: Mapping[DeviceAddress | DeviceName, str],
        found: Iterable[Device | RejectedDevice],
    ) -> None:
        self._plugin = plugin
        self._functions = functions
        self._others = others
        self._found = tuple(found)
        self._nameable = candidates.provider_addresses.union(
            *(
                (each.function.address, each.parent.address)
                for each in (*candidates.usable, *candidates.matched)
            )
        )
        self._usable = {each.function.address: each for each in candidates.usable}
        self._types = {each.type: each for each in candidates.mdev_types}
        # The function or type to which an address belongs.
        self._leaders: dict[DeviceName, DeviceName] = {
            **{at: name for name, each in self._usable.items() for at in each.members},
            **{name: name for name in (*self._usable, *self._types)},
        }
        self._handles: dict[DeviceAddress, AttachHandle] = {
            each.address: each
            for of_type in candidates.mdev_types
            for each in of_type.handles
        }
        self._handles |= {at: each.handle() for at, each in self._usable.items()}
        self._taken = {at for each in self._found for at in self._named_by(each)}
        self._devices: dict[DeviceName, Device] = {}
        self._offered: set[DeviceAddress | DeviceName] = set()
        self._rejected: dict[DeviceName, RejectedDevice] = {}

    def answer(self) -> PluginAnswer:
        """Return the valid devices, and the others with the rules that they break."""
        broken: list[tuple[str, frozenset[DeviceName]]] = []
        # A device of a function that is rejected as well is unsafe: it comes second.
        for each in sorted(self._found, key=lambda each: isinstance(each, Device)):
            try:
                if isinstance(each, Device):
                    self._offer(each)
                else:
                    self._reject(each)
            except ValueError as error:
                broken.append((str(error), self._meant_by(each)))
        name = self._plugin.name
        rules = []
        for rule, meant in broken:
            kept = sorted(meant - self._offered - self._rejected.keys(), key=str)
            self._rejected |= {
                at: RejectedDevice(at, RejectReason.INVALID, f"{name}: {rule}")
                for at in kept
            }
            rules.append(BrokenRule(name, rule, tuple(kept)))
        devices, rejected = self._devices.values(), self._rejected.values()
        return PluginAnswer(tuple(devices), tuple(rejected), tuple(rules))

    def _reject(self, found: RejectedDevice) -> None:
        if found.address not in self._usable and found.address not in self._types:
            raise ValueError(
                f"RejectedDevice.address {found.address} is not a usable candidate"
            )
        if found.reason not in _REASONS:
            raise ValueError(
                f"RejectedDevice.reason is {found.reason.name}, which is not for "
                "plugins"
            )
        expect_text("RejectedDevice.detail", found.detail)
        if found.vendor_reason is not None:
            expect_text("the value of vendor_reason", found.vendor_reason.value)
            kind = type(found.vendor_reason)
            if kind.__hash__ not in (VendorReason.__hash__, str.__hash__):
                raise ValueError("the class of vendor_reason has an __eq__ of its own")
        self._rejected.setdefault(found.address, found)

    def _offer(self, found: Device) -> None:
        if found.plugin != self._plugin.name:
            raise ValueError(
                f"Device.plugin is {found.plugin!r}, not {self._plugin.name!r}"
            )
        if not found.handles:
            raise ValueError("Device.handles is empty: a device has one handle or more")
        device = dataclasses.replace(
            found, handles=tuple(map(self._handle, found.handles))
        )
        if len({each.address for each in device.handles}) < len(device.handles):
            raise ValueError("Device.handles has one handle twice")
        if isinstance(device.address, MdevType):
            self._check_type(device, device.address)
        else:
            self._check_function(device, device.address)
        if device.address in self._devices:
            raise ValueError(
                f"Device.address {device.address} is that of two devices: offer one "
                "device with all handles"
            )
        tags = [self._tags_of(each) for each in self._named_by(device)]
        _check_placement_names(device, tags)
        _check_region(device)
        self._check_erasure(device)
        if device.erasure is Erasure.NONE and not all(e.allow_no_erase for e in tags):
            self._rejected |= {
                name: RejectedDevice(name, RejectReason.NO_ERASE)
                for name in self._named_by(device)
            }
            return
        self._devices[device.address] = device
        self._offered.update(each.address for each in device.handles)
        if isinstance(device.address, MdevType):
            self._offered.add(device.address)

    def _handle(self, found: AttachHandle) -> AttachHandle:
        """Return the library's own handle, with the fault that the plugin added."""
        own = self._handles.get(found.address)
        if own is None:
            raise ValueError(
                f"AttachHandle.address {found.address} is not a usable candidate"
            )
        if found != own:
            fault = plain_text("AttachHandle.fault", found.fault)
            own = dataclasses.replace(own, fault=fault or own.fault)
            if dataclasses.replace(found, fault=own.fault) != own:
                raise ValueError(
                    f"the handle of {own.address} was altered: a plugin changes its "
                    "fault alone"
                )
        if own.address in self._offered:
            raise ValueError(f"{own.address} is offered twice")
        if own.address in self._rejected:
            raise ValueError(f"{own.address} is offered, and rejected as well")
        return own

    def _check_type(self, device: Device, kind: MdevType) -> None:
        """Check that the device consists of units of the type that names it."""
        offered = self._types.get(kind)
        if offered is None:
            raise ValueError(f"Device.address {kind} is not among mdev_types")
        if kind in self._rejected:
            raise ValueError(f"{kind} is offered, and rejected as well")
        for each in device.handles:
            if not isinstance(each.address, MdevSlot) or each.address.type != kind:
                raise ValueError(f"Device.handles has {each.address}, not of {kind}")
        identity = offered.parent.identity if offered.parent else None
        if device.identity != identity:
            raise ValueError(
                f"Device.identity is {exception.show(device.identity)}, but that of "
                f"{kind.parent} is {identity}"
            )
        if device.region is not None:
            raise ValueError("Device.region is not for mediated devices")

    def _check_function(self, device: Device, address: PciAddress) -> None:
        """Check that the provider can be named after the function."""
        function = self._functions.get(address)
        if function is None:
            raise ValueError(f"Device.address {address} is not on this host")
        handles = [each.address for each in device.handles]
        places = [each for each in handles if isinstance(each, PciAddress)]
        if len(places) < len(handles):
            raise ValueError(f"Device.address {address} is not a type of its handles")
        if address not in self._nameable and not any(map(address.same_slot, places)):
            raise ValueError(
                f"Device.address {address} is neither a candidate nor its card"
            )
        if address in self._others:
            other = self._others[address]
            raise ValueError(f"Device.address {address} is a device of plugin {other}")
        if address in self._leaders and self._leaders[address] not in self._taken:
            raise ValueError(
                f"Device.address {address} is a usable function that the plugin "
                "neither offers nor rejects"
            )
        if device.identity is not None and device.identity is not function.identity:
            device.identity.check("Device.identity")
        if device.identity is None or not device.identity.may_be(function.identity):
            raise ValueError(
                f"Device.identity is {device.identity}, but that of {address} is "
                f"{function.identity}"
            )

    def _check_erasure(self, device: Device) -> None:
        """Check that accelerators can forget a guest's data as their device states."""
        erasure = device.erasure
        is_mediated = isinstance(device.address, MdevType)
        # Each guest gets a new one, which its parent's driver alone can reset.
        if is_mediated and erasure in (Erasure.PLUGIN, Erasure.RESET):
            raise ValueError(f"Device.erasure is {erasure.name}, for mediated devices")
        erases = type(self._plugin).erase is not base.PluginBase.erase
        if erasure is Erasure.PLUGIN and not erases:
            raise ValueError("Device.erasure is PLUGIN, but the plugin has no erase()")
        is_bound = any(is_vfio_driver(each.driver) for each in device.handles)
        if erasure is Erasure.REMOVAL and is_bound and not is_mediated:
            raise ValueError(
                "Device.erasure is REMOVAL, for a function that a VFIO driver takes"
            )

    def _tags_of(self, name: DeviceName) -> DeviceTags:
        if isinstance(name, MdevType):
            return self._types[name].tags
        return self._usable[name].tags

    def _named_by(self, found: Device | RejectedDevice) -> frozenset[DeviceName]:
        """Return the functions and types that an answer takes."""
        names: set[DeviceName] = set()
        if isinstance(found, RejectedDevice) or isinstance(found.address, MdevType):
            # A device of functions may be named after any function of its card.
            names.add(found.address)
        if isinstance(found, Device):
            places = (at for e in found.handles for at in (e.address, *e.members))
            names.update(e.type if isinstance(e, MdevSlot) else e for e in places)
        return frozenset(self._leaders[each] for each in names if each in self._leaders)

    def _meant_by(self, found: Device | RejectedDevice) -> frozenset[DeviceName]:
        """Return the functions and types that an invalid answer is about.

        Without usable handles it may be about all functions of its card that no other
        answer takes.
        """
        own = self._named_by(found)
        if own or isinstance(found, RejectedDevice):
            return own
        return frozenset(
            address
            for address, each in self._usable.items()
            if address not in self._taken and found.address in _card(each)
        )


def _card(usable: UsableFunction) -> frozenset[DeviceName]:
    return frozenset({*usable.members, usable.parent.address})


def _check_region(device: Device) -> None:
    """Check that a region names all functions that lead to it, if there are several."""
    if device.region is None or len(device.handles) == 1:
        return
    places = {each.address for each in device.handles}
    if missing := places.difference(device.region.pci_functions):
        raise ValueError(
            "Region.pci_functions does not have the handles "
            f"{exception.some(map(str, sorted(missing)), 4)}"
        )


def _check_placement_names(device: Device, tags: Iterable[DeviceTags]) -> None:
    """Check resource class and traits.

    Placement would reject a wrong name, and Nova's update of the entire node would
    fail. Nova would count units of another service's class as its own.
    """
    name = device.resource_class
    for each in (name, *sorted(device.traits)):
        if not PLACEMENT_NAME.fullmatch(each):
            raise ValueError(f"{exception.show(each)} is no valid name for Placement")
    wrong = [each for each in sorted(device.traits) if not _is_trait(each)]
    if not _CUSTOM.match(name) and name not in os_resource_classes.STANDARDS:
        wrong.insert(0, name)
    if wrong:
        raise ValueError(
            f"{exception.show(wrong[0])} is neither a standard name of Placement nor "
            "begins with CUSTOM_"
        )
    if _CUSTOM.match(name) or name in ACCELERATOR_CLASSES:
        return
    if name not in {each.resource_class for each in tags}:
        raise ValueError(
            f"Device.resource_class is {name}, a class of Nova or Neutron that the "
            "operator has not named"
        )


@functools.lru_cache(4096)
def _is_trait(name: str) -> bool:
    return bool(_CUSTOM.match(name)) or not os_traits.check_traits([name])[1]
