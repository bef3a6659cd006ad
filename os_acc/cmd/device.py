# SPDX-License-Identifier: Apache-2.0

"""``os-acc device``: states of devices, their repair and their history."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from os_acc import exception
from os_acc.cmd import arguments, base, device_migration, environment
from os_acc.cmd.device_states import (
    DeviceState,
    DeviceStatus,
    device_states,
    shown_state,
)
from os_acc.host import attributes
from os_acc.objects.lease import Lease, LeaseState, PriorBinding
from os_acc.objects.mdev import DeviceAddress, function_of
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.store import journal
from os_acc.store.journal import Event

if TYPE_CHECKING:
    from os_acc.attach.manager import Manager

# Seconds between two steps of an erasure, and until one without progress is left.
_ERASE_PAUSE = 1.0
_ERASE_PATIENCE = 1800.0
# The state, in this command alone, of a lease that has ended: its device is erased.
_ENDED = LeaseState.RELEASING
_ADDRESS = arguments.DEVICE | {
    "help": "PCI address, such as 0000:3b:02.1, or slot of a mediated device, such as "
    "mtty/mtty-1/0"
}
# Events that the history shows by default.
_LIMIT = 100


class DeviceList(base.Listing):
    """List every function that is named in [os_acc] device_spec, or leased.

    Changes nothing, and needs no privileged helper.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--long",
            action="store_true",
            help="also show provider, IOMMU group, identity and SR-IOV role",
        )
        parser.add_argument(
            "--state",
            choices=[state.value for state in DeviceStatus],
            action="append",
            help="show only devices in this state; several: in one of them",
        )
        parser.add_argument(
            "--class", metavar="CLASS", dest="resource_class", help="of this class"
        )
        parser.add_argument("--consumer", **arguments.UUID, help="of this instance")
        parser.add_argument(
            "--numa-node", metavar="NUMBER", type=int, help="on this node"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        look = self.look()
        found = list(device_states(look))
        models = self.models(look)
        self.remark_if_none_named()
        self.remark_missing_vfs(look)
        columns = _columns(models.short)
        for name, value in {
            "Resource Class": parsed_args.resource_class,
            "Consumer": parsed_args.consumer,
            "NUMA Node": parsed_args.numa_node,
        }.items():
            if value is not None:
                found = [each for each in found if columns[name](each) == value]
        if states := parsed_args.state:
            found = [each for each in found if each.state.value in states]
        return base.table(columns | _LONG if parsed_args.long else columns, found)


class DeviceShow(base.Showing):
    """Show all details of one function.

    Changes nothing, and needs no privileged helper.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("address", **_ADDRESS)

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        look = self.look()
        models = self.models(look)
        for found in device_states(look):
            if found.address == parsed_args.address:
                columns = _columns(models.full) | _LONG | _OFFER
                names, values = base.fields(columns, found)
                if found.provider:
                    support = look.inventory.migrations[found.provider.uuid]
                    shown = device_migration.text(support, found.address)
                    names, values = (*names, "Live Migration"), (*values, shown)
                lease = self._lease(found.lease) if found.lease else {}
                return (*names, *lease), (*values, *lease.values())
        # Raises an error if the function does not exist at all.
        if isinstance(parsed_args.address, PciAddress):
            look.inventory.host.function(parsed_args.address)
        raise exception.NotFound(
            f"os_acc does not manage {parsed_args.address}",
            hint="add the device to [os_acc] device_spec",
            kind=exception.ObjectKind.DEVICE,
        )

    def _lease(self, lease: Lease) -> dict[str, Any]:
        this_boot = attributes.boot_id(self.os_acc.root)
        shown: dict[str, Any] = {
            "Lease": lease.uuid,
            "Owner": lease.owner.value,
            "Request Group": lease.group,
            "Instance Name": lease.guest.name or None,
            "Project": lease.guest.project_id or None,
            "Goes Back To": [_prior(prior) for prior in lease.prior],
            "Recorded In This Boot": lease.boot_id == this_boot,
            "To Be Erased": lease.needs_erase,
        }
        if lease.erasure:
            shown["Former Consumer"] = lease.erasure.consumer
            shown["Erased"] = lease.erased
        return shown


class DeviceRelease(base.Showing):
    """Give a quarantined or unknown device back to the host.

    Releases a device from quarantine, a device that is prepared for an unknown
    guest, and a device whose record is damaged.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("address", **_ADDRESS)
        _add_driver(parser, "to which an unknown device goes back")
        parser.add_argument(
            "--force",
            action="store_true",
            help="forget the lease even if the device cannot be given back; "
            "restore its driver by other means",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        from os_acc.attach import operator_actions

        operator_actions.release_device(
            self.manager(),
            parsed_args.address,
            parsed_args.driver,
            siblings=dict(parsed_args.sibling),
            force=parsed_args.force,
        )
        return _now(self, parsed_args)


class DeviceAdopt(base.Showing):
    """Record the instance of an unknown device; the device itself is left alone."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("address", **_ADDRESS)
        parser.add_argument(
            "--consumer",
            **arguments.UUID,
            required=True,
            help="the instance that uses the device",
        )
        _add_driver(parser, "to which it goes back when that instance is unplugged")

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        from os_acc.attach import operator_actions

        operator_actions.adopt_device(
            self.manager(),
            parsed_args.address,
            parsed_args.consumer,
            parsed_args.driver,
            siblings=dict(parsed_args.sibling),
        )
        return _now(self, parsed_args)


class DeviceErase(base.Listing):
    """Continue the erasure of devices that have been given back.

    A running service does so by itself. With --wait, goes on until all are erased, and
    prints the progress. Ends with 1 if one fails.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "address", **arguments.DEVICE, nargs="*", help="only these devices"
        )
        parser.add_argument("--wait", action="store_true", help="until they are erased")

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        manager, wanted = self.manager(), frozenset(parsed_args.address)
        manager.life.eraser.due(self.deadline())
        found = {
            each.uuid: each
            for each in manager.store.leases()
            if each.erasure and (not wanted or each.address in wanted)
        }
        if not found:
            self.remark("no device is being erased")
        changed = time.monotonic()
        while True:
            before = dict(found)
            found = {
                uuid: self._advanced(manager, each) for uuid, each in before.items()
            }
            if found != before:
                changed = time.monotonic()
                self._show(found.values(), before)
            going = [e for e in found.values() if e.state is LeaseState.ERASING]
            is_over = time.monotonic() >= changed + _ERASE_PATIENCE
            if not parsed_args.wait or not going or is_over:
                break
            time.sleep(_ERASE_PAUSE)
        self.end_progress()
        is_left = any(each.state is not _ENDED for each in found.values())
        self.is_failed = is_left and (parsed_args.wait or not going)
        rows = [
            (str(each.address), f"{each.erased:.0%}", each.reason or None)
            for each in found.values()
        ]
        return ("Address", "Erased", "Reason"), rows

    def _advanced(self, manager: Manager, lease: Lease) -> Lease:
        """Make one step of an erasure; return the lease, also after its end."""
        if lease.state is LeaseState.ERASING:
            # The lease has the reason of a failure.
            with contextlib.suppress(exception.OsAccError):
                manager.life.eraser.advance(lease.uuid, self.deadline())
        left = manager.store.leases(lease.uuid)
        return left[0] if left else lease.with_erased(1.0, state=_ENDED)

    def _show(self, found: Collection[Lease], before: Mapping[str, Lease]) -> None:
        """Print the progress: one bar on a terminal, or what has changed."""
        devices = [str(each.address) for each in found]
        what = devices[0] if len(devices) == 1 else f"{len(devices)} devices"
        mean = sum(each.erased for each in found) / len(devices)
        self.progress(f"{what} {base.bar(mean)}")
        if self.app.stderr.isatty():
            return
        for each in found:
            if each.erased != before[each.uuid].erased:
                self.remark(f"{each.address}: {each.erased:.0%} erased")


class DevicePrepare(base.Listing):
    """Make the VFs that num_vfs in [os_acc] device_spec requests.

    Without --write, lists what would be made, and changes nothing. A service makes them
    when it starts. Ends with 1 if VFs cannot be made.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--write", action="store_true", help="make them")

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        from os_acc import inspection
        from os_acc.inventory import sriov

        failures: Mapping[PciAddress, str] = {}
        if parsed_args.write:
            failures = self.manager(makes_vfs=True).vfs.failures
        look = self.look()
        rules = inspection.rules(self.settings, unmanaged=True)
        host, recorded = look.inventory.host, look.inventory.recorded_state
        rows = []
        for function, tags in sriov.requests(rules, host):
            reason = failures.get(function.address)
            try:
                sriov.plan(self.os_acc.root, rules, host, function, tags, recorded)
            except exception.HostStepFailed as error:
                reason = reason or str(error)
            self.is_failed |= reason is not None
            missing = 0 if function.vfs or reason else tags.num_vfs
            vfs = len(function.vfs)
            rows.append((str(function.address), tags.num_vfs, vfs, missing, reason))
        if not rows:
            self.remark("no entry of [os_acc] device_spec requests VFs with num_vfs")
        elif parsed_args.write:
            self.is_failed |= any(row[3] for row in rows)
        elif any(row[3] for row in rows):
            self.remark("nothing was changed; os-acc device prepare --write makes them")
        return ("PF", "Requested", "VFs", "To Be Made", "Reason"), rows


def _add_driver(parser: argparse.ArgumentParser, when: str) -> None:
    parser.add_argument(
        "--driver",
        metavar="NAME",
        help=f"the host's driver {when}; '' for none",
    )
    parser.add_argument(
        "--sibling",
        metavar="ADDRESS=NAME",
        type=arguments.sibling,
        action="append",
        default=[],
        help="the same for another function of its IOMMU group; may be repeated",
    )


def _columns(model: Callable[[PciIdentity], str]) -> base.Columns[DeviceState]:
    """Return the columns of a listing.

    :param model: returns the name of a model.
    """
    return {
        "Address": lambda each: str(each.address),
        "Model": lambda each: model(each.function.identity) if each.function else None,
        "Resource Class": lambda each: each.resource_class,
        "State": lambda each: each.state.value,
        "Consumer": lambda each: (
            each.lease.consumer if each.lease and not each.lease.erasure else None
        ),
        "NUMA Node": lambda each: each.function.numa_node if each.function else None,
        "Driver": lambda each: each.function.driver if each.function else None,
        "Reason": lambda each: each.reason or None,
    }


_LONG: base.Columns[DeviceState] = {
    "Provider": lambda each: each.provider.uuid if each.provider else None,
    "IOMMU Group": lambda each: each.function.iommu_group if each.function else None,
    "Identity": lambda each: str(each.function.identity) if each.function else None,
    "Role": lambda each: each.function.role.value if each.function else None,
}
_OFFER: base.Columns[DeviceState] = {
    "Provider Name": lambda each: each.provider.name if each.provider else None,
    "Plugin": lambda each: each.provider.device.plugin if each.provider else None,
    "Traits": lambda each: sorted(each.provider.device.traits) if each.provider else [],
    "Members": lambda each: [str(address) for address in each.members],
    "Reset Methods": lambda each: (
        list(each.function.reset_methods) if each.function else []
    ),
}


def _prior(prior: PriorBinding) -> str:
    override = f", override {prior.driver_override}" if prior.driver_override else ""
    return f"{prior.address}: {prior.driver or 'no driver'}{override}"


def _now(command: base.Acting, parsed_args: argparse.Namespace) -> base.ShownObject:
    """Return the device's row of the listing after an action."""
    look = command.look()
    found = {each.address: each for each in device_states(look)}
    device = found.get(parsed_args.address)
    if device is None:
        return ("Address", "State"), (str(parsed_args.address), None)
    return base.fields(_columns(command.models(look).full), device)


class DeviceHistory(base.Listing):
    """List the recorded events of devices, the newest last.

    Changes nothing, and needs no privileged helper.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "address",
            **arguments.DEVICE,
            nargs="?",
            help="show only the events of this device",
        )
        parser.add_argument(
            "--consumer",
            **arguments.UUID,
            help="show only the events of this instance or migration",
        )
        parser.add_argument(
            "--limit",
            metavar="NUMBER",
            type=arguments.number,
            default=_LIMIT,
            help=f"show only so many of the newest events; default {_LIMIT}",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        # Reading a store that does not exist gives no events, without an error.
        environment.check_owner(self.settings.state_path)
        address = str(parsed_args.address) if parsed_args.address else None
        consumer = parsed_args.consumer
        found = [
            event
            for event in self.recorded(events=journal.KEPT).events
            if address in (None, event.address)
            # The event of a rekey has the new consumer; its detail names the old one.
            and (
                consumer in (None, event.consumer) or event.detail == f"from {consumer}"
            )
        ]
        if not found:
            self.remark(self._reason_for_none(parsed_args.address))
        return base.table(_EVENT, found[-parsed_args.limit :])

    def _reason_for_none(self, address: DeviceAddress | None) -> str:
        # Events are listed on a host that cannot be inspected, too.
        with contextlib.suppress(exception.OsAccError):
            for each in device_states(self.look()) if address else ():
                if address in each.members and each.address != address:
                    device = function_of(each.address)
                    return (
                        f"{address} is assigned together with {device}, which has the "
                        f"events: os-acc device history {device}"
                    )
        return f"no such event is recorded in {self.settings.state_path}"


def _moment(when: datetime.datetime) -> str:
    return when.isoformat(timespec="milliseconds")


_EVENT: base.Columns[Event] = {
    "Time": lambda event: _moment(event.when),
    "Operation": lambda event: event.operation,
    "State": lambda event: shown_state(event.state) or None,
    "Address": lambda event: event.address or None,
    "Consumer": lambda event: event.consumer or None,
    "Detail": lambda event: event.detail or None,
}
