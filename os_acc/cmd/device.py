# SPDX-License-Identifier: Apache-2.0

"""``os-acc device``: states of devices, and their repair."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from os_acc import exception
from os_acc.cmd import arguments, base
from os_acc.cmd.device_states import DeviceState, DeviceStatus, device_states
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
            choices=[state.value for state in DeviceStatus],
            help="show only devices in this state",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        look = self.look()
        found = device_states(look)
        models = self.models(look)
        self.remark_if_none_named()
        if parsed_args.state:
            found = tuple(
                each for each in found if each.state.value == parsed_args.state
            )
        columns = _columns(models.short)
        return base.table(columns | _LONG if parsed_args.long else columns, found)


class DeviceShow(base.Showing):
    """Show all details of one function.

    Changes nothing, and needs no privileged helper.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _with_address(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        look = self.look()
        models = self.models(look)
        for found in device_states(look):
            if found.address == parsed_args.address:
                columns = _columns(models.full) | _LONG | _OFFER
                names, values = base.fields(columns, found)
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
            **arguments.UUID,
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


def _with_address(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "address",
        **arguments.DEVICE,
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


def _columns(
    model: Callable[[PciIdentity], str],
) -> dict[str, Callable[[DeviceState], Any]]:
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


_LONG: dict[str, Callable[[DeviceState], Any]] = {
    "Provider": lambda each: each.provider.uuid if each.provider else None,
    "IOMMU Group": lambda each: each.function.iommu_group if each.function else None,
    "Identity": lambda each: str(each.function.identity) if each.function else None,
    "Role": lambda each: each.function.role.value if each.function else None,
}
_OFFER: dict[str, Callable[[DeviceState], Any]] = {
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
