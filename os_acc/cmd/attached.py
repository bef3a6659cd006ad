# SPDX-License-Identifier: Apache-2.0

"""``os-acc attached``: accelerators by instance."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from os_acc.attach import serialize
from os_acc.cmd import arguments, base
from os_acc.objects.api import AcceleratorEntry


class Attached(base.Listing):
    """List the recorded accelerators of instances.

    Changes nothing, and needs no privileged helper.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "uuid",
            metavar="UUID",
            nargs="?",
            type=arguments.uuid,
            help="show only the accelerators of this instance",
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        found = [
            lease
            for lease in self.recorded().leases
            if parsed_args.uuid in (None, lease.consumer) and not lease.is_over
        ]
        if not found:
            who = parsed_args.uuid or "any instance"
            where = self.settings.state_path
            self.remark(f"no accelerator of {who} is recorded in {where}")
        return COLUMNS, [row(serialize.accelerator(lease)) for lease in found]


#: Fields of the entries of :func:`os_acc.plug` that are shown.
COLUMNS = (
    "Consumer",
    "PCI ID",
    "State",
    "Request Group",
    "NUMA Node",
    "NUMA Affinity",
    "UUID",
    "Provider",
)


def row(entry: AcceleratorEntry) -> tuple[Any, ...]:
    """Return an entry as values of these columns."""
    return (
        entry["instance_uuid"],
        entry.get("pci_id"),
        entry["state"],
        entry["request_group"],
        entry["numa_node"],
        entry["numa_affinity"],
        entry["uuid"],
        entry["device_rp_uuid"],
    )
