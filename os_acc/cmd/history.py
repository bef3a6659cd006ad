# SPDX-License-Identifier: Apache-2.0

"""``os-acc device history``: the recorded changes of leases."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from os_acc.cmd import arguments, base
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
            metavar="ADDRESS",
            nargs="?",
            type=arguments.address,
            help="show only the events of this device",
        )
        parser.add_argument(
            "--consumer",
            metavar="UUID",
            type=arguments.uuid,
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

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        address = str(parsed_args.address) if parsed_args.address else None
        consumer = parsed_args.consumer
        found = [
            event
            for event in self.recorded(events=journal.KEPT).events
            if address in (None, event.address)
            and (consumer is None or _is_of(event, consumer))
        ]
        if not found:
            self.remark(f"no such event is recorded in {self.settings.state_path}")
        return _COLUMNS, [
            (
                _moment(event.when),
                event.operation,
                event.state or None,
                event.address or None,
                event.consumer or None,
                event.detail or None,
            )
            for event in found[-parsed_args.limit :]
        ]


_COLUMNS = ("Time", "Operation", "State", "Address", "Consumer", "Detail")


def _is_of(event: Event, consumer: str) -> bool:
    # The event of a rekey has the new consumer; its detail names the old one.
    return event.consumer == consumer or event.detail == f"from {consumer}"


def _moment(when: datetime.datetime) -> str:
    return when.isoformat(timespec="milliseconds")
