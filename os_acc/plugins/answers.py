# SPDX-License-Identifier: Apache-2.0

"""Checks of the devices that a plugin returns, each on its own.

A device that breaks a rule of the contract is rejected with that rule, and the
plugin's other devices are offered.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from os_acc import exception
from os_acc.objects.candidate import DeviceTags
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
from os_acc.plugins import base, values

_T = TypeVar("_T")

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


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts, besides its candidates, with which a plugin's answer is compared.

    :ivar functions: all functions of the host.
    :ivar offered: the functions and types that devices of the plugins before it are
        named after or consist of, with the name of the plugin.
    """

    functions: Mapping[PciAddress, PciFunction]
    offered: Mapping[DeviceAddress | DeviceName, str] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )


def ask(
    plugin: base.PluginBase, candidates: base.Candidates, around: Surroundings
) -> PluginAnswer:
    """Let a plugin discover its devices, and check each of them.

    It runs the vendor's code to its end: call it as a plugin's method.

    :raises ValueError: the plugin returns devices without end.
    """
    count = len(candidates.usable) + len(candidates.mdev_types)
    most = 2 * count + _MORE_ANSWERS
    found: list[object] = list(itertools.islice(plugin.discover(candidates), most + 1))
    if len(found) > most:
        raise ValueError(
            f"discover() returned more than {most} devices for "
            f"{count} functions and types"
        )
    if not found:
        # Most plugins recognise no device of a host.
        return PluginAnswer((), (), ())
    return _Review(plugin, candidates, around, found).answer()


class _Review:
    """The checks of one answer; see :func:`ask`."""

    def __init__(
        self,
        plugin: base.PluginBase,
        candidates: base.Candidates,
        around: Surroundings,
        found: Iterable[object],
    ) -> None:
        self._name = plugin.name
        self._erases = type(plugin).erase is not base.PluginBase.erase
        self._around = around
        self._found = tuple(found)
        self._usable = {each.function.address: each for each in candidates.usable}
        self._types = {each.type: each for each in candidates.mdev_types}
        self._tags: dict[DeviceName, DeviceTags] = {
            **{address: each.tags for address, each in self._usable.items()},
            **{kind: each.tags for kind, each in self._types.items()},
        }
        self._ours = {address: each.handle() for address, each in self._usable.items()}
        self._slots = {
            handle.address: handle
            for each in candidates.mdev_types
            for handle in each.handles
        }
        self._leaders: dict[DeviceName, DeviceName] = {
            member: each.function.address
            for each in candidates.usable
            for member in (each.function.address, *each.members)
        }
        self._leaders |= {each: each for each in self._types}
        self._nameable = candidates.provider_addresses.union(
            *(
                (each.function.address, each.parent.address)
                for each in candidates.usable
            ),
            *(
                (each.function.address, each.parent.address)
                for each in candidates.matched
            ),
        )
        self._taken = frozenset(
            address for each in self._found for address in self._functions_of(each)
        )
        self._devices: dict[DeviceName, Device] = {}
        self._offered: dict[DeviceAddress | DeviceName, Device] = {}
        self._rejected: dict[DeviceName, RejectedDevice] = {}
        self._broken: list[tuple[str, frozenset[DeviceName]]] = []

    def answer(self) -> PluginAnswer:
        """Return the valid devices, and the others with the rules that they break."""
        # A device of a function that is rejected as well is unsafe: it comes second.
        for each in self._found:
            if isinstance(each, RejectedDevice):
                self._review(each, self._reject)
        for each in self._found:
            if not isinstance(each, RejectedDevice):
                self._review(each, self._offer)
        broken = tuple(self._broken_rules())
        return PluginAnswer(
            tuple(self._devices.values()), tuple(self._rejected.values()), broken
        )

    def _review(self, found: _T, accept: Callable[[_T], None]) -> None:
        try:
            accept(found)
        except ValueError as error:
            self._broken.append((str(error), self._meant_by(found)))

    def _broken_rules(self) -> Iterator[BrokenRule]:
        for rule, meant in self._broken:
            kept = sorted(meant - self._offered.keys() - self._rejected.keys(), key=str)
            for address in kept:
                self._rejected[address] = RejectedDevice(
                    address, RejectReason.INVALID, f"{self._name}: {rule}"
                )
            yield BrokenRule(self._name, rule, tuple(kept))

    # -- rejected devices --------------------------------------------------

    def _reject(self, found: RejectedDevice) -> None:
        if not isinstance(found.address, MdevType):
            values.expect("RejectedDevice.address", found.address, PciAddress)
        if found.address not in self._usable and found.address not in self._types:
            raise ValueError(
                f"RejectedDevice.address {found.address} is not a usable candidate"
            )
        values.expect("RejectedDevice.reason", found.reason, RejectReason)
        if found.reason not in _REASONS:
            raise ValueError(
                f"RejectedDevice.reason is {found.reason.name}, which is not for "
                "plugins"
            )
        detail = values.plain(found.detail)
        values.expect_text("RejectedDevice.detail", detail)
        if found.vendor_reason is not None:
            values.expect(
                "RejectedDevice.vendor_reason", found.vendor_reason, VendorReason
            )
            reason = found.vendor_reason.value
            values.expect_text("the value of vendor_reason", reason)
            if type(reason) is not str:
                raise ValueError("the value of vendor_reason is no plain str")
            kind = type(found.vendor_reason)
            if kind.__hash__ not in (VendorReason.__hash__, str.__hash__):
                raise ValueError("the class of vendor_reason has an __eq__ of its own")
        name = self._name_of(found.address)
        rejected = RejectedDevice(name, found.reason, detail, found.vendor_reason)
        self._rejected.setdefault(name, rejected)

    def _name_of(self, address: DeviceName) -> DeviceName:
        """Return the library's own object for the function or type of a candidate."""
        if isinstance(address, MdevType):
            return self._types[address].type
        return self._usable[address].function.address

    # -- devices -----------------------------------------------------------

    def _offer(self, found: object) -> None:
        if not isinstance(found, Device):
            raise ValueError(
                f"discover() returned {exception.show(found)}, which is neither a "
                "Device nor a RejectedDevice"
            )
        if found.plugin != self._name:
            raise ValueError(
                f"Device.plugin is {exception.show(found.plugin)}, not {self._name!r}"
            )
        handles = self._handles(found)
        device = self._plain(found, handles)
        self._check_name(device, handles)
        values.check_placement_names(device)
        self._check_class(device)
        if device.numa_node is not None:
            values.expect_number("Device.numa_node", device.numa_node)
        if device.region is not None:
            values.check_region(device.region)
            values.check_shared(device.region, handles)
        values.check_erasure(device, erases=self._erases)
        if device.erasure is Erasure.NONE and not self._may_stay_unerased(device):
            self._rejected |= {
                name: RejectedDevice(name, RejectReason.NO_ERASE)
                for name in self._functions_of(device)
            }
            return
        self._devices[device.address] = device
        self._offered |= dict.fromkeys((each.address for each in handles), device)
        if isinstance(device.address, MdevType):
            self._offered[device.address] = device

    def _plain(self, found: Device, handles: tuple[AttachHandle, ...]) -> Device:
        """Return a device of the library's own types, as far as the values allow it."""
        address, identity = found.address, found.identity
        function = None
        if isinstance(address, PciAddress):
            if type(address) is not PciAddress:
                address = values.plain(address)
            function = self._around.functions.get(address)
        elif isinstance(address, MdevType) and address in self._types:
            address = self._name_of(address)
        # Most plugins pass on the identity that they got.
        if function is None or identity is not function.identity:
            identity = values.plain(identity)
        return Device(
            self._name,
            address,
            identity,
            values.plain(found.resource_class),
            values.plain(found.traits),
            handles,
            values.plain(found.numa_node),
            values.plain(found.region),
            found.erasure,
        )

    def _check_class(self, device: Device) -> None:
        """Check that a class is no other service's, unless the operator has named it.

        Nova would count such units as its own.
        """
        name = device.resource_class
        if values.is_of_accelerators(name):
            return
        places = self._functions_of(device)
        if name not in {self._tags[each].resource_class for each in places}:
            raise ValueError(
                f"Device.resource_class is {name}, a class of Nova or Neutron that the "
                "operator has not named"
            )

    def _may_stay_unerased(self, device: Device) -> bool:
        """Return whether the operator permits it for all accelerators of a device."""
        return all(
            self._tags[name].allow_no_erase for name in self._functions_of(device)
        )

    def _handles(self, device: Device) -> tuple[AttachHandle, ...]:
        """Return the library's own handles, with the faults that the plugin added."""
        values.expect_all("Device.handles", device.handles, tuple, AttachHandle)
        if not device.handles:
            raise ValueError("Device.handles is empty: a device has one handle or more")
        found = {handle.address: handle for handle in map(self._handle, device.handles)}
        if len(found) < len(device.handles):
            raise ValueError("Device.handles has one handle twice")
        return tuple(found.values())

    def _handle(self, handle: AttachHandle) -> AttachHandle:
        if not isinstance(handle.address, MdevSlot):
            values.expect("AttachHandle.address", handle.address, PciAddress)
        own = self._own_handle(handle.address)
        if own is None:
            raise ValueError(
                f"AttachHandle.address {handle.address} is not a usable candidate"
            )
        fault = values.plain(handle.fault)
        values.expect_text("AttachHandle.fault", fault)
        if fault is not handle.fault:
            handle = dataclasses.replace(handle, fault=fault)
        ours = own
        if handle != own:
            ours = dataclasses.replace(own, fault=fault or own.fault)
            if dataclasses.replace(handle, fault=ours.fault) != ours:
                raise ValueError(
                    f"the handle of {handle.address} was altered: a plugin changes "
                    "its fault alone"
                )
        if handle.address in self._offered:
            other = self._offered[handle.address].address
            raise ValueError(f"{handle.address} is offered twice, also by {other}")
        if handle.address in self._rejected:
            raise ValueError(f"{handle.address} is offered, and rejected as well")
        return ours

    def _own_handle(self, address: DeviceAddress) -> AttachHandle | None:
        if isinstance(address, MdevSlot):
            return self._slots.get(address)
        return self._ours.get(address)

    def _check_type(
        self, device: Device, kind: MdevType, handles: Iterable[AttachHandle]
    ) -> None:
        """Check that the device consists of units of the type that names it.

        :raises ValueError: it does not, or another device is named after the type.
        """
        offered = self._types.get(kind)
        if offered is None:
            raise ValueError(f"Device.address {kind} is not among mdev_types")
        if kind in self._rejected:
            raise ValueError(f"{kind} is offered, and rejected as well")
        for each in handles:
            if not isinstance(each.address, MdevSlot) or each.address.type != kind:
                raise ValueError(f"Device.handles has {each.address}, not of {kind}")
        if kind in self._devices:
            raise ValueError(
                f"Device.address {kind} is that of two devices: offer one device with "
                "all handles"
            )
        identity = offered.parent.identity if offered.parent else None
        if device.identity != identity:
            raise ValueError(
                f"Device.identity is {exception.show(device.identity)}, but that of "
                f"{kind.parent} is {identity}"
            )
        if device.region is not None:
            raise ValueError("Device.region is not for mediated devices")

    def _check_name(self, device: Device, handles: Iterable[AttachHandle]) -> None:
        """Check that the provider can be named after the function or type.

        :raises ValueError: it cannot, or another device is named after it.
        """
        address = device.address
        if isinstance(address, MdevType):
            self._check_type(device, address, handles)
            return
        values.expect("Device.address", address, PciAddress)
        function = self._around.functions.get(address)
        if function is None:
            raise ValueError(f"Device.address {address} is not on this host")
        places = [each.address for each in handles]
        if not all(isinstance(each, PciAddress) for each in places):
            raise ValueError(f"Device.address {address} is not a type of its handles")
        if address not in self._nameable and not any(
            isinstance(each, PciAddress) and address.same_slot(each) for each in places
        ):
            raise ValueError(
                f"Device.address {address} is neither a candidate nor its card"
            )
        leader = self._leaders.get(address)
        if address in self._around.offered:
            other = self._around.offered[address]
            raise ValueError(f"Device.address {address} is a device of plugin {other}")
        if leader is not None and leader not in self._taken:
            raise ValueError(
                f"Device.address {address} is a usable function that the plugin "
                "neither offers nor rejects"
            )
        if address in self._devices:
            raise ValueError(
                f"Device.address {address} is that of two devices: offer one device "
                "with all handles"
            )
        values.check_identity("Device.identity", device.identity)
        if device.identity is None or not device.identity.may_be(function.identity):
            raise ValueError(
                f"Device.identity is {device.identity}, but that of {address} is "
                f"{function.identity}"
            )

    # -- functions of an invalid device ------------------------------------

    def _functions_of(self, found: object) -> frozenset[DeviceName]:
        """Return the functions and types that an answer of any form is about."""
        meant: object = found
        if isinstance(found, Device):
            # A device is named after its type, or after any function of its card.
            is_type = isinstance(found.address, MdevType)
            meant = (found.handles, found.address) if is_type else found.handles
        return frozenset(
            self._leaders[each]
            for each in values.addresses(meant)
            if each in self._leaders
        )

    def _meant_by(self, found: object) -> frozenset[DeviceName]:
        """Return the usable functions that an invalid answer is about.

        Without usable handles it may be about all functions of its card that no other
        answer takes.
        """
        own = self._functions_of(found)
        if own or not isinstance(found, Device):
            return own
        near = frozenset(values.addresses(found.address))
        return frozenset(
            address
            for address, each in self._usable.items()
            if address not in self._taken
            and not near.isdisjoint({*each.members, address, each.parent.address})
        )
