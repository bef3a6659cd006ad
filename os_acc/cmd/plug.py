# SPDX-License-Identifier: Apache-2.0

"""``os-acc plug``: what Nova does before it starts a guest, by hand."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from os_acc.attach.manager import Manager
from os_acc.cmd import arguments, attached, base


class Plug(base.Listing):
    """Make accelerators ready for an instance.

    With --instance alone: make ready again what is recorded for it, after a
    reboot of the host for example.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        self._parser = parser = super().get_parser(prog_name)
        parser.add_argument(
            "--instance",
            metavar="UUID",
            required=True,
            type=arguments.uuid,
            help="for whom",
        )
        selected = parser.add_mutually_exclusive_group()
        selected.add_argument(
            "--provider",
            metavar="UUID",
            type=arguments.uuid,
            help="of this provider (see 'os-acc provider list')",
        )
        selected.add_argument(
            "--allocations",
            metavar="FILE",
            type=arguments.json_file,
            help="as this allocation request of Placement says, in JSON",
        )
        arguments.add_properties(
            parser,
            "an extra spec of the flavor; may be given several times. "
            "Default with --provider: one accelerator of it",
        )
        parser.add_argument(
            "--numa-cells",
            metavar="NUMBERS",
            type=arguments.cells,
            default=(),
            help="the host's NUMA cells that the guest is in, such as 0,1; "
            "default: it may be anywhere",
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        selected = parsed_args.allocations
        if parsed_args.provider:
            selected = {"uuid": parsed_args.provider}
        if parsed_args.property and selected is None:
            self._parser.error("--property needs --provider or --allocations")
        given = arguments.distinct(parsed_args.property)
        manager = self.manager()
        extra_specs = given or _one_of(manager, parsed_args.provider)
        instance = {"uuid": parsed_args.instance, "numa_cells": parsed_args.numa_cells}
        plugged = manager.plug(instance, selected, extra_specs)
        return attached.COLUMNS, [attached.row(entry) for entry in plugged]


def _one_of(manager: Manager, provider: str | None) -> dict[str, str] | None:
    for each in manager.providers():
        if each.uuid == provider:
            return {f"resources:{each.device.resource_class}": "1"}
    return None
