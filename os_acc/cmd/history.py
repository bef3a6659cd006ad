# SPDX-License-Identifier: Apache-2.0

"""``os-acc device history``: the recorded changes of leases."""

from __future__ import annotations

import argparse
import contextlib
import datetime

from os_acc import exception
from os_acc.cmd import arguments, base, device_states, environment
from os_acc.objects.mdev import DeviceAddress, function_of
from os_acc.objects.pci import PciAddress
from os_acc.store import journal
from os_acc.store.journal import Event

_LIMIT = 100


class DeviceHistory(base.Listing):
    """List the recorded events of devices, the newest last.

    Changes nothing, and needs no privileged helper.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
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
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        # Reading a store that does not exist gives no events, without an error.
        environment.check_owner(self.settings.state_path)
        address = str(parsed_args.address) if parsed_args.address else None
        consumer = parsed_args.consumer
        found = [
            event
            for event in self.recorded(events=journal.KEPT).events
            if address in (None, event.address)
            and (consumer is None or _is_of(event, consumer))
        ]
        if not found:
            self.remark(self._reason_for_none(parsed_args.address))
        return base.table(_COLUMNS, found[-parsed_args.limit :])

    def _reason_for_none(self, address: DeviceAddress | None) -> str:
        device = self._device_with(address) if address else None
        if device is None:
            return f"no such event is recorded in {self.settings.state_path}"
        return (
            f"{address} is assigned together with {device}, which has the events: "
            f"os-acc device history {device}"
        )

    def _device_with(self, address: DeviceAddress) -> PciAddress | None:
        """Return the device that a function is only a member of, if known."""
        # Events are listed on a host that cannot be inspected, too.
        with contextlib.suppress(exception.OsAccError):
            for each in device_states.device_states(self.look()):
                place = each.address
                if address in each.members and place != address:
                    return function_of(place)
        return None


def _is_of(event: Event, consumer: str) -> bool:
    # The event of a rekey has the new consumer; its detail names the old one.
    return event.consumer == consumer or event.detail == f"from {consumer}"


def _moment(when: datetime.datetime) -> str:
    return when.isoformat(timespec="milliseconds")


_COLUMNS: base.Columns[Event] = {
    "Time": lambda event: _moment(event.when),
    "Operation": lambda event: event.operation,
    "State": lambda event: event.state or None,
    "Address": lambda event: event.address or None,
    "Consumer": lambda event: event.consumer or None,
    "Detail": lambda event: event.detail or None,
}
