# SPDX-License-Identifier: Apache-2.0

"""``os-acc plug``, ``unplug`` and ``attached``: the steps of Nova, by hand."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable

from os_acc import exception
from os_acc.attach import serialize
from os_acc.attach.manager import Manager
from os_acc.cmd import arguments, base, device_states
from os_acc.objects.api import AcceleratorEntry
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.mdev import in_order
from os_acc.store import snapshot


class Plug(base.Listing):
    """Make accelerators ready for an instance.

    With --instance alone: make its recorded accelerators ready again, for example
    after a reboot of the host.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--instance",
            **arguments.UUID,
            required=True,
            help="the instance that gets the accelerators",
        )
        selected = parser.add_mutually_exclusive_group()
        selected.add_argument(
            "--provider",
            **arguments.UUID,
            help="plug a device of this provider (see 'os-acc provider list')",
        )
        selected.add_argument(
            "--allocations",
            metavar="FILE",
            type=arguments.json_file,
            help="plug the devices of this allocation request of Placement, in JSON",
        )
        arguments.add_properties(
            parser,
            "an extra spec of the flavor; may be given several times. "
            "Default with --provider: one accelerator of it",
        )
        parser.add_argument(
            "--image",
            **arguments.UUID,
            help="the image that the guest boots: it may request a bitstream. Another "
            "image than before is a rebuild; default: unknown",
        )
        parser.add_argument(
            "--numa-cells",
            **arguments.CELLS,
            default=(),
            help="the host's NUMA cells of the guest, such as 0,1; default: any cells",
        )
        parser.add_argument(
            "--physnet",
            metavar="NAME",
            action="append",
            default=[],
            help="a physical network of the guest, to which one of its NUMA cells has "
            "to lead; may be given several times",
        )
        parser.add_argument(
            "--tunneled",
            action="store_true",
            help="the guest has a tunnelled network (GRE, VXLAN, Geneve)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        selected = parsed_args.allocations
        if parsed_args.provider:
            selected = {"uuid": parsed_args.provider}
        if parsed_args.property and selected is None:
            self._parser.error("--property needs --provider or --allocations")
        given = arguments.distinct(parsed_args.property)
        manager = self.manager(makes_vfs=True)
        if not given and parsed_args.provider:
            offered = {each.uuid: each.device for each in manager.providers()}
            if device := offered.get(parsed_args.provider):
                given = {f"resources:{device.resource_class}": "1"}
        instance = {
            "uuid": parsed_args.instance,
            "image_id": parsed_args.image,
            "numa_cells": parsed_args.numa_cells,
            "networks": {
                "physnets": parsed_args.physnet,
                "tunneled": parsed_args.tunneled,
            },
        }
        plugged = manager.plug(instance, selected, given or None)
        return base.table(_COLUMNS, plugged)


class Unplug(base.Showing):
    """Release all accelerators of an instance.

    Ends with 1 if a device of the instance stays quarantined, or if its lease may be
    lost.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("uuid", **arguments.UUID, help="the UUID of the instance")

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        before, named = self._recorded(parsed_args.uuid), set[str]()
        manager = self.manager()
        try:
            manager.unplug({"uuid": parsed_args.uuid})
        except exception.DevicesUnreleased as error:
            # The message of the error has them.
            named.update(address for address, _reason in error.unreleased)
            raise
        finally:
            left = manager.store.leases(parsed_args.uuid)
            self._report(each for each in left if str(each.address) not in named)
            self._report_erasures(manager, parsed_args.uuid)
        released = before - {lease.uuid for lease in left}
        if not released and not left:
            self._report_unknown(manager, parsed_args.uuid)
        return ("Consumer", "Released"), (parsed_args.uuid, len(released))

    def _report(self, left: Iterable[Lease]) -> None:
        """Report each device that needs an operator, with the command to use."""
        for lease in left:
            if lease.state is LeaseState.QUARANTINED:
                self.is_failed = True
                self.remark(device_states.quarantine(lease))
                self.app.stderr.write(f"hint: os-acc device release {lease.address}\n")

    def _report_unknown(self, manager: Manager, consumer: str) -> None:
        """Report devices whose leases are lost, and may be of the instance."""
        claims = manager.store.recorded_state().helper_claims
        # The first function of each lease.
        firsts = {claims[at]: at for at in sorted(claims, key=in_order, reverse=True)}
        for address in sorted(firsts.values(), key=in_order):
            self.is_failed = True
            self.remark(
                f"{address} is prepared for a guest, and its lease is lost; if this "
                f"instance has it: os-acc device adopt {address} --consumer {consumer}"
            )

    def _report_erasures(self, manager: Manager, consumer: str) -> None:
        for lease in manager.store.leases():
            if lease.erasure and lease.erasure.consumer == consumer:
                self.remark(
                    f"{lease.address} is being erased ({lease.erased:.0%}); without "
                    f"a running service: os-acc device erase {lease.address} --wait"
                )

    def _recorded(self, consumer: str) -> set[str]:
        # Read before the manager is built: it first finishes earlier unplugs, whose
        # devices would not be counted.
        with contextlib.suppress(exception.StateUnavailable):
            found = snapshot.read(self.settings.state_path)
            return {each.uuid for each in found.leases if each.consumer == consumer}
        return set()


class Attached(base.Listing):
    """List the recorded accelerators of instances.

    Changes nothing, and needs no privileged helper.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "uuid",
            **arguments.UUID,
            nargs="?",
            help="show only the accelerators of this instance",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        found = [
            lease
            for lease in self.recorded().leases
            if parsed_args.uuid in (None, lease.consumer) and not lease.erasure
        ]
        if not found:
            who = parsed_args.uuid or "any instance"
            where = self.settings.state_path
            self.remark(f"no accelerator of {who} is recorded in {where}")
        return base.table(_COLUMNS, map(serialize.accelerator, found))


#: Fields of the entries of :func:`os_acc.plug` that are shown.
_COLUMNS: base.Columns[AcceleratorEntry] = {
    "Consumer": lambda entry: entry["instance_uuid"],
    "PCI ID": lambda entry: entry.get("pci_id"),
    # The entries have the words of Cyborg's API.
    "State": lambda entry: "leased" if entry["state"] == "Bound" else entry["state"],
    "Request Group": lambda entry: entry["request_group"],
    "NUMA Node": lambda entry: entry["numa_node"],
    "NUMA Affinity": lambda entry: entry["numa_affinity"],
    "UUID": lambda entry: entry["uuid"],
    "Provider": lambda entry: entry["device_rp_uuid"],
}
