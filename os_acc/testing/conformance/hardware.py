# SPDX-License-Identifier: Apache-2.0

"""Checks of a plugin on one device of a real host.

Each check plugs the one unit that is named, for instances of its own, and gives it back
as it was. No other unit and no other lease is touched. The UUIDs of the instances
follow from the unit: after an interrupted run the next one finds its leases, and
unplugs them. A lock, which the kernel releases when the process ends, separates such
leases from those of a run that is still at work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any, Final, Self

from os_acc import exception
from os_acc.attach import device_state, verification
from os_acc.attach.manager import Manager
from os_acc.host import attributes, mdev, pci, vfio
from os_acc.inventory.catalog import Reading
from os_acc.inventory.discovery import Inventory
from os_acc.objects.device import AttachHandle, Provider
from os_acc.objects.lease import Lease, LeaseState, PriorBinding
from os_acc.objects.mdev import DeviceAddress, MdevSlot, function_of
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.testing.conformance import steps
from os_acc.testing.conformance.common import RuleBroken, finish_erasures, require
from os_acc.testing.conformance.touches import Touches
from os_acc.testing.nova import request

#: Instances of a run: the first for most checks, all of them for threads.
_INSTANCES: Final = 3
#: Seconds for a worker of a killed process to end.
_SETTLE: Final = 60.0
_PAUSE: Final = 0.2
#: Seconds that an erasure may take: an overwrite of a large drive takes hours.
_ERASURE: Final = 86_400.0
_NUMVFS: Final = "sys/bus/pci/devices/{}/sriov_numvfs"


class Skipped(Exception):
    """A check that is not possible on this host."""


@dataclasses.dataclass(frozen=True, slots=True)
class UnitState:
    """The state of a unit that a plug changes.

    :ivar created: the mediated devices of its type, by UUID.
    :ivar vfs: ``sriov_numvfs`` of each of its functions that has it.
    :ivar offered: whether the driver of each of its functions offers it to guests.
    :ivar vgpu_types: ``current_vgpu_type`` of each of its functions that has it.
    """

    bindings: tuple[PriorBinding, ...]
    created: tuple[str, ...]
    vfs: tuple[str, ...]
    offered: tuple[bool, ...]
    vgpu_types: tuple[int | None, ...]


class Bench:
    """One unit of a real host, and the services that offer it.

    The caller holds the lock of the run: :meth:`alone` returns a bench with it.

    :param make: builds another manager, as a restart of the service does.
    :param address: the function, or the slot of mediated devices.
    :param plugin: the plugin that has to offer it; empty: any.
    :param manager: the first manager; None: build one.
    :ivar kills: the part of its kills that :func:`kills_lose_nothing` does; ``(2, 9)``
        is each ninth from the second.
    :raises NotFound: it is not offered.
    :raises Conflict: it is in use.
    :raises InvalidInput: another plugin offers it.
    """

    def __init__(
        self,
        make: Callable[[], Manager],
        address: DeviceAddress,
        plugin: str = "",
        manager: Manager | None = None,
    ) -> None:
        self._make = make
        self.address = address
        self.kills = (1, 1)
        self.manager = manager or make()
        self._unplug()
        self.provider, self.handle = _free_unit(self.manager, address)
        if plugin not in ("", self.plugin):
            raise exception.InvalidInput(
                f"the plugin {self.plugin} offers {address}, not {plugin}"
            )
        _narrow(self.manager, address)

    @classmethod
    @contextlib.contextmanager
    def alone(
        cls, make: Callable[[], Manager], address: DeviceAddress, plugin: str = ""
    ) -> Iterator[Self]:
        """Hold the lock of a run on a unit, and yield the bench.

        The parameters and errors are those of the class.

        :raises Conflict: another run is at work, or the unit is in use.
        """
        manager = make()
        with manager.locks.try_hold([_lock_of(address)]) as is_held:
            if not is_held:
                raise exception.Conflict(
                    f"another conformance run is at work on {_device_of(address)}",
                    hint="wait until it ends, or end it with Ctrl-C: it gives the "
                    "device back; then run this command again",
                )
            yield cls(make, address, plugin, manager)

    @property
    def plugin(self) -> str:
        """The name of the plugin."""
        return self.provider.device.plugin

    def restart(self) -> None:
        """Replace the manager, as a restart of the service does."""
        self.manager = self._make()
        _narrow(self.manager, self.address)

    def unit(self) -> tuple[Provider, AttachHandle]:
        """Return the unit as a scan finds it now.

        :raises RuleBroken: it is not offered.
        """
        try:
            return _free_unit(self.manager, self.address)
        except exception.OsAccError as error:
            raise RuleBroken(f"{self.address} is offered, not: {error}") from error

    def plug(self, number: int = 0) -> list[Any]:
        """Plug the unit for an instance of this run; return its entries."""
        # That of a process that was killed.
        self._finish_erasures()
        selected, specs = request(self.provider)
        return list(self.manager.plug(self.instance(number), selected, specs))

    def unplug(self, number: int = 0) -> int:
        """Unplug an instance of this run; return the number of its accelerators.

        A unit that its plugin erases is erased when it returns.
        """
        count = self.manager.unplug(self.instance(number))
        self._finish_erasures()
        return count

    def instance(self, number: int) -> dict[str, str]:
        """Return an instance of this run, as Nova passes it."""
        name = f"os-acc conformance {number} {self.address}"
        own = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
        return {"uuid": own, "name": f"conformance-{number}"}

    def leases(self) -> tuple[Lease, ...]:
        """Return the leases of this run, also of units that are being erased."""
        return tuple(filter(self._is_own, self.manager.store.leases()))

    def state(self) -> UnitState:
        """Return the state of the unit."""
        root = self.manager.root
        functions: tuple[PciAddress, ...] = ()
        created: tuple[str, ...] = ()
        if isinstance(self.address, MdevSlot):
            made = mdev.read_mdevs(root)
            created = tuple(
                sorted(each.uuid for each in made if each.type == self.address.type)
            )
        else:
            functions = tuple(
                each for each in self.handle.members if not isinstance(each, MdevSlot)
            )
        paths = [os.path.join(root, _NUMVFS.format(each)) for each in functions]
        prior = verification.read_prior(root, functions, time.monotonic() + _SETTLE)
        return UnitState(
            prior,
            created,
            tuple(attributes.read_text(path) or "" for path in paths),
            tuple(vfio.is_offered(root, each.address, each.driver) for each in prior),
            tuple(mdev.vgpu_type(root, each) for each in functions),
        )

    def require_prepared(self, rule: str) -> None:
        """Check that the unit is leased by this run, and ready for its guest.

        A unit that is ready already, as a ``prebound`` function is, need not change.

        :raises RuleBroken: it is not.
        """
        root, leases = self.manager.root, self.leases()
        require(len(leases) == 1, rule)
        (lease,) = leases
        if isinstance(self.address, MdevSlot):
            require(lease.uuid in self.state().created, rule)
        for address in lease.functions:
            function = pci.read_function(root, address)
            require(
                function is not None
                and device_state.is_prepared(root, lease, function),
                rule,
            )

    def require_returned(self, before: UnitState, rule: str) -> None:
        """Check that no lease of this run is left, and that the unit is as before.

        :raises RuleBroken: it is not.
        """
        left = ", ".join(f"{each.address} {each.state.value}" for each in self.leases())
        require(not left, f"{rule}; still leased: {left}")
        after = self.state()
        require(after == before, f"{rule}; before: {before}, after: {after}")

    @property
    def function(self) -> PciFunction | None:
        """The function of the unit, or of its parent; None: a virtual parent."""
        address = function_of(self.address)
        functions = self.manager.discover().host.functions
        return None if address is None else functions.get(address)

    def close(self) -> None:
        """Unplug all instances of this run.

        :raises OsAccError: the unit cannot be given back.
        """
        self._unplug()

    def _unplug(self) -> None:
        for number in range(_INSTANCES):
            self.unplug(number)

    def _is_own(self, lease: Lease) -> bool:
        own = {self.instance(number)["uuid"] for number in range(_INSTANCES)}
        former = lease.erasure.consumer if lease.erasure else ""
        return not own.isdisjoint({lease.consumer, former})

    def _finish_erasures(self) -> None:
        finish_erasures(self.manager, self._is_own, _ERASURE, _PAUSE)


Check = Callable[[Bench], None]


def discovery_is_stable(bench: Bench) -> None:
    """Two scans find equal devices."""
    require(bench.unit() == bench.unit(), "two scans find equal devices")


def discovery_only_reads(bench: Bench) -> None:
    """A scan changes no binding of the device."""
    before = bench.state()
    # Its first scan; then another one.
    bench.restart()
    bench.unit()
    require(bench.state() == before, "a scan changes no binding of the device")


def names_survive_restart(bench: Bench) -> None:
    """The provider has the same name after the service starts again."""
    before, _handle = bench.unit()
    bench.restart()
    after, _handle = bench.unit()
    same = (before.uuid, before.name) == (after.uuid, after.name)
    require(same, f"the provider {before.name} keeps its name; it is {after.name}")


def unplug_restores_the_host(bench: Bench) -> None:
    """An unplug restores the binding that the plug changed."""
    before = bench.state()
    bench.plug()
    bench.require_prepared("a plug prepares the device")
    bench.unplug()
    bench.require_returned(before, "an unplug restores the device")


def plug_and_unplug_are_idempotent(bench: Bench) -> None:
    """A second plug returns the same accelerator; a second unplug does nothing."""
    before, first = bench.state(), bench.plug()
    require(bench.plug() == first, "a second plug returns the same accelerator")
    require(bench.unplug() == 1, "an unplug returns one accelerator")
    require(bench.unplug() == 0, "a second unplug returns none")
    bench.require_returned(before, "an unplug restores the device")


def nothing_is_left_open(bench: Bench) -> None:
    """A scan, a plug and an unplug leave no descriptor open and no thread running."""

    def use_once() -> None:
        bench.unit()
        bench.plug()
        bench.unplug()

    steps.require_nothing_left(use_once, steps.PATIENCE)


def kills_lose_nothing(bench: Bench) -> None:
    """A kill of the process at any step of a plug or an unplug loses nothing."""
    before = bench.state()

    def plug_and_unplug() -> None:
        bench.plug()
        bench.unplug()

    complete = Touches(bench.manager, bench.plugin)
    try:
        complete.run(plug_and_unplug)
    except RuleBroken as error:
        if "HelperUnavailable" in str(error):
            raise Skipped("a process of its own cannot start the helper") from error
        raise
    bench.require_returned(before, "an unplug restores the device")
    first, step = bench.kills
    if first > complete.count:
        raise Skipped(f"there are {complete.count} kills, and none from {first} on")
    for place in range(first, complete.count + 1, step):
        trial = Touches(bench.manager, bench.plugin, place)
        trial.run(plug_and_unplug)
        rule = f"a kill before {trial.last} loses nothing"
        bench.restart()
        _persist(plug_and_unplug, rule)
        bench.require_returned(before, rule)


def concurrent_plugs_share_no_unit(bench: Bench) -> None:
    """Of threads that plug the device at once one gets it, and gives it back."""
    before, numbers = bench.state(), range(_INSTANCES)
    with futures.ThreadPoolExecutor(_INSTANCES) as threads:
        plugs = [threads.submit(bench.plug, each) for each in numbers]
        errors = [each.exception() for each in plugs]
    for error in errors:
        if error is not None and not isinstance(error, exception.OsAccError):
            raise RuleBroken(f"an error is an OsAccError, not {error!r}") from error
    require(errors.count(None) == 1, "one of the plugs gets the device")
    require(len(bench.leases()) == 1, "the device is leased once")
    bench.close()
    bench.require_returned(before, "an unplug restores the device")


CHECKS: Final[tuple[Check, ...]] = (
    discovery_is_stable,
    discovery_only_reads,
    names_survive_restart,
    unplug_restores_the_host,
    plug_and_unplug_are_idempotent,
    nothing_is_left_open,
    concurrent_plugs_share_no_unit,
    kills_lose_nothing,
)


def _device_of(address: DeviceAddress) -> str:
    """Return the function, or the parent of a slot.

    The slots of a parent share its capacity: two runs would change each other's.
    """
    return address.type.parent if isinstance(address, MdevSlot) else str(address)


def _lock_of(address: DeviceAddress) -> str:
    # Names of parents have characters that those of locks have not. The rank is the
    # first one: a run acquires all other locks.
    own = uuid.uuid5(uuid.NAMESPACE_URL, f"os-acc conformance {_device_of(address)}")
    return f"0-conformance-{own}"


def _persist(job: Callable[[], None], rule: str) -> None:
    """Repeat a job after errors that can pass: a worker may still be at work."""
    until = time.monotonic() + _SETTLE
    while True:
        try:
            job()
            return
        except exception.OsAccError as error:
            if not error.retryable or time.monotonic() > until:
                raise RuleBroken(f"{rule}; then: {error}") from error
        time.sleep(_PAUSE)


def _free_unit(
    manager: Manager, address: DeviceAddress
) -> tuple[Provider, AttachHandle]:
    """Return a unit that no guest has, with its provider.

    :raises NotFound: it is not offered.
    :raises Conflict: it is leased, or out of order.
    """
    inventory = manager.discover()
    for provider in inventory.providers.values():
        for handle in provider.device.handles:
            if handle.address == address:
                _check_free(inventory, handle)
                return provider, handle
    reason, hint = _why_missing(inventory, address)
    raise exception.NotFound(
        f"{address} is not offered: {reason}",
        hint=hint,
        kind=exception.ObjectKind.DEVICE,
    )


def _why_missing(inventory: Inventory, address: DeviceAddress) -> tuple[str, str]:
    """Return why a unit is not offered, and the remedy."""
    name = address.type if isinstance(address, MdevSlot) else address
    host = inventory.host
    for each in inventory.refused:
        if each.address == name:
            return str(each), "remove the cause: 'os-acc check' has the remedies"
    if error := host.unreadable.get(str(address)):
        return f"it is unreadable: {error}", "see the log of the kernel"
    if not isinstance(address, MdevSlot) and address not in host.functions:
        return "there is none", "compare the address with the output of 'lspci -D'"
    handles = [
        handle
        for provider in inventory.providers.values()
        for handle in provider.device.handles
    ]
    for handle in handles:
        if address in handle.members:
            return (
                f"it goes to a guest together with {handle.address}, in whose IOMMU "
                "group it is",
                f"check that one: --device {handle.address}",
            )
    of_type = (each.address for each in handles if isinstance(each.address, MdevSlot))
    units = [each for each in of_type if each.type == name]
    if units:
        return f"it has {len(units)} units", f"check another one: --device {units[-1]}"
    return (
        "no entry of [os_acc] device_spec offers it",
        "add an entry for it, and its tags if it needs any; see 'os-acc device list'",
    )


def _check_free(inventory: Inventory, handle: AttachHandle) -> None:
    recorded = inventory.recorded_state
    for lease in recorded.leases:
        if not set(lease.members) & set(handle.members):
            continue
        if lease.state is LeaseState.QUARANTINED:
            raise exception.Conflict(
                f"{handle.address} of {lease.consumer_title} is quarantined: "
                f"{lease.reason}",
                hint=f"run 'os-acc device release {lease.address}', or take a free "
                "device",
            )
        is_erased = lease.state is LeaseState.ERASING
        other = "wait until it is erased" if is_erased else "unplug it first"
        raise exception.Conflict(
            f"{handle.address} is leased to {lease.consumer_title}",
            hint=f"take a free device, or {other}",
        )
    if recorded.taken & set(handle.members) or handle.fault:
        why = handle.fault or "its record is damaged"
        raise exception.Conflict(f"{handle.address} cannot be used: {why}")


def _narrow(manager: Manager, address: DeviceAddress) -> None:
    """Let a manager offer this unit alone, so that a plug can get no other."""
    look, catalog = manager.catalog.look, vars(manager.catalog)

    def narrowed(deadline: float = math.inf, read: Reading | None = None) -> Inventory:
        found = look(deadline, read)
        return dataclasses.replace(found, providers=_alone(found, address))

    catalog["look"] = narrowed


def _alone(inventory: Inventory, address: DeviceAddress) -> Mapping[str, Provider]:
    return {
        provider.uuid: dataclasses.replace(
            provider, device=dataclasses.replace(provider.device, handles=(handle,))
        )
        for provider in inventory.providers.values()
        for handle in provider.device.handles
        if handle.address == address
    }
