# SPDX-License-Identifier: Apache-2.0

"""``os-acc device``: states of devices, and their repair."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from os_acc import exception
from os_acc.cmd import arguments, base, device_states
from os_acc.host import attributes
from os_acc.objects.lease import Lease, PriorBinding
from os_acc.objects.pci import PciAddress, PciIdentity


class DeviceList(base.Listing):
    """List every function that is named in [os_acc] device_spec, or leased.

    Changes nothing, and needs no privileged helper.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--long",
            action="store_true",
            help="also show provider, IOMMU group, identity and SR-IOV role",
        )
        parser.add_argument(
            "--state",
            choices=[state.value for state in device_states.DeviceStatus],
            help="show only devices in this state",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        look = self.look()
        found = device_states.device_states(look)
        models = self.models(look)
        self.remark_if_none_named()
        if parsed_args.state:
            found = tuple(
                each for each in found if each.state.value == parsed_args.state
            )
        if not parsed_args.long:
            return _COLUMNS, [_row(each, models.short) for each in found]
        return (
            (*_COLUMNS, *_LONG_COLUMNS),
            [(*_row(each, models.short), *_long_row(each)) for each in found],
        )


class DeviceShow(base.Showing):
    """Show all details of one function.

    Changes nothing, and needs no privileged helper.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _with_address(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        look = self.look()
        models = self.models(look)
        for found in device_states.device_states(look):
            if found.address == parsed_args.address:
                this_boot = attributes.boot_id(self.os_acc.root)
                return _pairs(
                    *zip(_COLUMNS, _row(found, models.full), strict=True),
                    *zip(_LONG_COLUMNS, _long_row(found), strict=True),
                    *_offer(found),
                    *(_lease(found.lease, this_boot) if found.lease else ()),
                )
        # Raises an error if the function does not exist at all.
        if isinstance(parsed_args.address, PciAddress):
            look.inventory.host.function(parsed_args.address)
        raise exception.NotFound(
            f"os_acc does not manage {parsed_args.address}",
            hint="add the device to [os_acc] device_spec",
            kind=exception.ObjectKind.DEVICE,
        )


class DeviceRelease(base.Showing):
    """Give a quarantined or unknown device back to the host.

    Releases a device from quarantine, a device that is prepared for an unknown
    guest, and a device whose record is damaged.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = _with_address(super().get_parser(prog_name))
        _add_driver(parser, "to which an unknown device goes back")
        parser.add_argument(
            "--force",
            action="store_true",
            help="forget the lease even if the device cannot be given back; "
            "restore its driver by other means",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        from os_acc.attach import operations

        operations.release_device(
            self.manager(),
            parsed_args.address,
            parsed_args.driver,
            siblings=dict(parsed_args.sibling),
            force=parsed_args.force,
        )
        return _now(self, parsed_args)


class DeviceAdopt(base.Showing):
    """Record the instance of an unknown device; the device itself is left alone."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = _with_address(super().get_parser(prog_name))
        parser.add_argument(
            "--consumer",
            metavar="UUID",
            type=arguments.uuid,
            required=True,
            help="the instance that uses the device",
        )
        _add_driver(parser, "to which it goes back when that instance is unplugged")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        from os_acc.attach import operations

        operations.adopt_device(
            self.manager(),
            parsed_args.address,
            parsed_args.consumer,
            parsed_args.driver,
            siblings=dict(parsed_args.sibling),
        )
        return _now(self, parsed_args)


_COLUMNS = (
    "Address",
    "Model",
    "Resource Class",
    "State",
    "Consumer",
    "NUMA Node",
    "Driver",
    "Reason",
)
_LONG_COLUMNS = ("Provider", "IOMMU Group", "Identity", "Role")


def _with_address(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        type=arguments.device_address,
        help="PCI address, such as 0000:3b:02.1, or slot of a mediated device, such "
        "as mtty/mtty-1/0",
    )
    return parser


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


def _row(
    device: device_states.DeviceState, name: Callable[[PciIdentity], str]
) -> tuple[Any, ...]:
    function = device.function
    return (
        str(device.address),
        name(function.identity) if function else None,
        device.resource_class,
        device.state.value,
        device.lease.consumer if device.lease and not device.lease.erasure else None,
        function.numa_node if function else None,
        function.driver if function else None,
        device.reason or None,
    )


def _long_row(device: device_states.DeviceState) -> tuple[Any, ...]:
    function = device.function
    return (
        device.provider.uuid if device.provider else None,
        function.iommu_group if function else None,
        str(function.identity) if function else None,
        function.role.value if function else None,
    )


def _offer(device: device_states.DeviceState) -> tuple[tuple[str, Any], ...]:
    provider, function = device.provider, device.function
    return (
        ("Provider Name", provider.name if provider else None),
        ("Plugin", provider.device.plugin if provider else None),
        ("Traits", sorted(provider.device.traits) if provider else []),
        ("Members", [str(address) for address in device.members]),
        ("Reset Methods", list(function.reset_methods) if function else []),
    )


def _lease(lease: Lease, this_boot: str) -> tuple[tuple[str, Any], ...]:
    return (
        ("Lease", lease.uuid),
        ("Owner", lease.owner.value),
        ("Request Group", lease.group),
        ("Instance Name", lease.guest.name or None),
        ("Project", lease.guest.project_id or None),
        ("Goes Back To", [_prior(prior) for prior in lease.prior]),
        ("Recorded In This Boot", lease.boot_id == this_boot),
        ("To Be Erased", lease.needs_erase),
        *(
            (("Former Consumer", lease.erasure.consumer), ("Erased", lease.erased))
            if lease.erasure
            else ()
        ),
    )


def _prior(prior: PriorBinding) -> str:
    override = f", override {prior.driver_override}" if prior.driver_override else ""
    return f"{prior.address}: {prior.driver or 'no driver'}{override}"


def _now(command: base.Acting, parsed_args: argparse.Namespace) -> base.ShownObject:
    """Return the device's row of the listing after an action."""
    look = command.look()
    found = {each.address: each for each in device_states.device_states(look)}
    device = found.get(parsed_args.address)
    if device is None:
        return _pairs(("Address", str(parsed_args.address)), ("State", None))
    row = _row(device, command.models(look).full)
    return _pairs(*zip(_COLUMNS, row, strict=True))


def _pairs(*pairs: tuple[str, Any]) -> base.ShownObject:
    return [name for name, _ in pairs], [value for _, value in pairs]
