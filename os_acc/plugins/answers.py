# SPDX-License-Identifier: Apache-2.0

"""Checks of the devices that a plugin returns.

A device or a rejection that breaks a rule of the contract is rejected with that rule,
and the plugin's other devices are offered.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import os_resource_classes
import os_traits

from os_acc import exception
from os_acc.objects.device import (
    AttachHandle,
    Device,
    DeviceTags,
    Erasure,
    OfferedType,
    RejectedDevice,
    RejectReason,
    UsableFunction,
    VendorReason,
)
from os_acc.objects.drivers import is_vfio_driver
from os_acc.objects.mdev import DeviceAddress, DeviceName, MdevSlot, MdevType, in_order
from os_acc.objects.pci import PciAddress, PciFunction, function_named
from os_acc.objects.request_group import ACCELERATOR_CLASSES, PLACEMENT_NAME
from os_acc.objects.typed import expect, expect_text, plain_text
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
class PluginAnswer:
    """The result of a plugin's discovery, after the checks.

    :ivar refused: the functions and types that the plugin rejects, and those of its
        invalid devices, each with the rule that its device breaks.
    :ivar broken_rules: the rules that cost no function or type: it is no candidate, or
        another device has it.
    """

    devices: tuple[Device, ...]
    refused: tuple[RejectedDevice, ...]
    broken_rules: tuple[str, ...] = ()

    @property
    def taken(self) -> frozenset[DeviceAddress | DeviceName]:
        """The functions and types that no other plugin may offer."""
        offered: set[DeviceAddress | DeviceName] = {
            each.address for device in self.devices for each in device.handles
        }
        offered |= {
            each.address for each in self.devices if isinstance(each.address, MdevType)
        }
        return frozenset(offered.union([each.address for each in self.refused]))


def ask(
    name: str,
    plugin: base.PluginBase,
    candidates: base.Candidates,
    functions: Mapping[PciAddress, PciFunction],
    offered: Mapping[DeviceAddress | DeviceName, str],
) -> PluginAnswer:
    """Let a plugin discover its devices, and check each of them.

    It runs the vendor's code to its end: call it as a plugin's method.

    :param name: under which the plugin was loaded.
    :param functions: all functions of the host.
    :param offered: the functions and types that devices of the plugins before it are
        named after or consist of, with the name of the plugin.
    :raises ValueError: the plugin returns devices without end.
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
        return PluginAnswer((), ())
    return _Review(name, plugin, candidates, functions, offered, found).answer()


class _Review:
    """The checks of one answer; see :func:`ask`."""

    def __init__(
        self,
        name: str,
        plugin: base.PluginBase,
        candidates: base.Candidates,
        functions: Mapping[PciAddress, PciFunction],
        others: Mapping[DeviceAddress | DeviceName, str],
        found: Iterable[object],
    ) -> None:
        self._name = name
        self._plugin = plugin
        self._functions = functions
        self._others = others
        known: tuple[base.MatchedFunction, ...] = (
            *candidates.usable,
            *candidates.matched,
        )
        self._usable = candidates.usable
        self._nameable = candidates.provider_addresses.union(
            *[(each.function.address, each.parent.address) for each in known]
        )
        self._candidates: dict[DeviceName, UsableFunction | OfferedType] = {
            **{each.function.address: each for each in candidates.usable},
            **{each.type: each for each in candidates.mdev_types},
        }
        # The function or type to which an address belongs.
        self._leaders: dict[DeviceName, DeviceName] = {
            **{
                at: each.function.address
                for each in candidates.usable
                for at in each.members
            },
            **{name: name for name in self._candidates},
        }
        self._handles: dict[DeviceAddress, AttachHandle] = {
            **{each.function.address: each.handle() for each in candidates.usable},
            **{
                each.address: each
                for of_type in candidates.mdev_types
                for each in of_type.handles
            },
        }
        # A device of a function that is rejected as well is unsafe: it comes second.
        ordered = sorted(found, key=lambda each: isinstance(each, Device))
        self._found = [(each, self._names(each)) for each in ordered]
        self._taken = frozenset[DeviceName]().union(
            *[names for _, names in self._found]
        )
        self._refused: dict[DeviceName, RejectedDevice] = {}
        self._devices: dict[DeviceName, Device] = {}
        self._offered: set[DeviceAddress | DeviceName] = set()

    def answer(self) -> PluginAnswer:
        """Return the valid devices, and the others with the rules that they break."""
        invalid: list[tuple[str, frozenset[DeviceName]]] = []
        for each, names in self._found:
            try:
                self._review(each, names)
            except ValueError as error:
                rule = f"{self._name}: {error}"
                invalid.append((rule, names or self._near(each)))
        broken = []
        for rule, names in invalid:
            left = names - self._offered - self._refused.keys()
            self._refused |= {
                name: RejectedDevice(name, RejectReason.INVALID, rule)
                for name in sorted(left, key=in_order)
            }
            if not left:
                broken.append(rule)
        return PluginAnswer(
            tuple(self._devices.values()), tuple(self._refused.values()), tuple(broken)
        )

    def _review(self, found: object, names: frozenset[DeviceName]) -> None:
        """Check one answer, and add it to the devices or to the rejected ones.

        :param names: the functions and types that it is about.
        :raises ValueError: it breaks a rule of the contract.
        """
        if type(found) is RejectedDevice:
            if found.address not in self._candidates:
                raise ValueError(
                    f"RejectedDevice.address {found.address} is not a usable candidate"
                )
            self._refused.setdefault(found.address, _checked(found))
            return
        if type(found) is not Device:
            raise ValueError(
                f"discover() returned {exception.show(found)}, which is neither a "
                "Device nor a RejectedDevice"
            )
        device = dataclasses.replace(found, handles=self._own_handles(found))
        if self._check(device, names):
            self._devices[device.address] = device
            self._offered |= names.union([each.address for each in device.handles])
        else:
            self._refused |= {
                name: RejectedDevice(name, RejectReason.NO_ERASE) for name in names
            }

    def _own_handles(self, found: Device) -> tuple[AttachHandle, ...]:
        """Return the library's own handles, with the faults that the plugin added.

        :raises ValueError: there is none, or one twice; see :meth:`_handle`.
        """
        if not found.handles:
            raise ValueError("Device.handles is empty: a device has one handle or more")
        handles = {each.address: each for each in map(self._handle, found.handles)}
        if len(handles) < len(found.handles):
            raise ValueError("Device.handles has one handle twice")
        return tuple(handles.values())

    def _handle(self, found: AttachHandle) -> AttachHandle:
        """Return the library's own handle, with the fault that the plugin added.

        :raises ValueError: it is no candidate's, was altered, or is in another answer.
        """
        expect("AttachHandle.address", found.address, PciAddress, MdevSlot)
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
        kind = own.address.type if isinstance(own.address, MdevSlot) else own.address
        if kind in self._refused:
            raise ValueError(f"{kind} is offered, and rejected as well")
        return own

    def _check(self, device: Device, names: frozenset[DeviceName]) -> bool:
        """Check a device; return whether accelerators may be offered as it erases them.

        :raises ValueError: it breaks a rule of the contract.
        """
        if device.plugin != self._name:
            raise ValueError(f"Device.plugin is {device.plugin!r}, not {self._name!r}")
        if device.address in self._devices:
            raise ValueError(
                f"Device.address {device.address} is that of two devices: offer one "
                "device with all handles"
            )
        if isinstance(device.address, MdevType):
            self._check_type(device, device.address)
        else:
            self._check_function(device, device.address)
        tags = [self._candidates[each].tags for each in names]
        _check_placement_names(device, tags)
        _check_region(device)
        self._check_erasure(device)
        return device.erasure is not Erasure.NONE or all(e.allow_no_erase for e in tags)

    def _check_type(self, device: Device, kind: MdevType) -> None:
        """Check that the device consists of units of the type that names it."""
        offered = self._candidates.get(kind)
        if not isinstance(offered, OfferedType):
            raise ValueError(f"Device.address {kind} is not among mdev_types")
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
        if address in self._others:
            other = self._others[address]
            raise ValueError(f"Device.address {address} is a device of plugin {other}")
        if address in self._leaders and self._leaders[address] not in self._taken:
            raise ValueError(
                f"Device.address {address} is a usable function that the plugin "
                "neither offers nor rejects"
            )
        if not self._is_of_card(function, places):
            raise ValueError(
                f"Device.address {address} is no candidate of the card of its handles"
            )
        if device.identity is not None and device.identity is not function.identity:
            device.identity.check("Device.identity")
        if device.identity is None or not device.identity.may_be(function.identity):
            raise ValueError(
                f"Device.identity is {device.identity}, but that of {address} is "
                f"{function.identity}"
            )

    def _is_of_card(self, named: PciFunction, handles: Collection[PciAddress]) -> bool:
        """Return whether a function belongs to the card of one of these handles.

        An allocation of another card's provider would get a device of this one.
        """
        address = named.address
        if any(map(address.same_slot, handles)):
            return True
        if self._leaders.get(address) in handles:
            return True
        cards = [self._functions[each].physfn or each for each in handles]
        card = named.physfn or address
        return address in self._nameable and any(map(card.same_slot, cards))

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

    def _names(self, found: object) -> frozenset[DeviceName]:
        """Return the functions and types that an answer is about, also a wrong one."""
        places = _places(found)
        return frozenset([self._leaders[at] for at in places if at in self._leaders])

    def _near(self, found: object) -> frozenset[DeviceName]:
        """Return the functions of the card of an invalid device without usable handles.

        Those that another answer takes are not among them.
        """
        if not isinstance(found, Device):
            return frozenset()
        return frozenset(
            each.function.address
            for each in self._usable
            if found.address in (*each.members, each.parent.address)
        ).difference(self._taken)


def _places(value: object) -> set[DeviceName]:
    """Return the functions and types that a value states, also one of a wrong type."""
    found: set[DeviceName] = set()
    left, seen = [value], dict[int, object]()
    while left:
        each = left.pop()
        if id(each) in seen:
            # A value of a wrong type may contain itself.
            continue
        seen[id(each)] = each
        match each:
            case PciAddress() | MdevType():
                found.add(each)
            case MdevSlot() | OfferedType():
                found.add(each.type)
            case str():
                if (address := function_named(str.__str__(each))) is not None:
                    found.add(address)
            case AttachHandle():
                left += each.address, each.members
            case RejectedDevice():
                left.append(each.address)
            case Device():
                # A device may be named after any function of its card.
                is_type = isinstance(each.address, MdevType)
                left += (each.address, each.handles)[not is_type :]
            case UsableFunction():
                found.update(each.members)
            case tuple() | list() | set() | frozenset():
                left += each
    return found


def _checked(found: RejectedDevice) -> RejectedDevice:
    """Return a rejection whose reason a plugin may give.

    :raises ValueError: it may not.
    """
    if found.reason not in _REASONS:
        raise ValueError(
            f"RejectedDevice.reason is {found.reason.name}, which is not for plugins"
        )
    expect_text("RejectedDevice.detail", found.detail)
    if found.vendor_reason is not None:
        expect_text("the value of vendor_reason", found.vendor_reason.value)
        kind = type(found.vendor_reason)
        if kind.__hash__ not in (VendorReason.__hash__, str.__hash__):
            raise ValueError("the class of vendor_reason has an __eq__ of its own")
    return found


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
