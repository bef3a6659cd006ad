# SPDX-License-Identifier: Apache-2.0

"""``os-acc conformance``: check a plugin on one free device of this host."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

from os_acc import exception
from os_acc.cmd import arguments, base
from os_acc.objects.device import Erasure
from os_acc.testing.conformance import hardware, report
from os_acc.testing.conformance.hardware import Bench
from os_acc.testing.conformance.report import Result

_COLUMNS: Final = ("Result", "Check", "Rule")
_CHECKS: Final = {each.__name__: each for each in hardware.CHECKS}


class Conformance(base.Listing):
    """Check a plugin on a free device of this host, and report the rules it keeps.

    Plugs and unplugs the device for instances of its own, kills processes meanwhile,
    and leaves the device as it was. One that its plugin erases loses its data. A device
    in use, also by another run, is refused, and no other device is touched. After an
    interruption, run the command again: it first gives the device back. Ends with 1 if
    a check failed.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--device",
            **arguments.DEVICE,
            required=True,
            help="the function, or the slot of a mediated device, as in 'os-acc device "
            "list'",
        )
        parser.add_argument(
            "--plugin",
            metavar="NAME",
            default="",
            help="the plugin that has to offer it",
        )
        parser.add_argument(
            "--check",
            metavar="NAME",
            action="append",
            choices=tuple(_CHECKS),
            help="run this check; may be given several times; default: all of "
            + ", ".join(_CHECKS),
        )
        parser.add_argument(
            "--kills",
            metavar="PART/PARTS",
            default=(1, 1),
            type=arguments.part,
            help="divide kills_lose_nothing into runs: 2/9 does each ninth kill from "
            "the second",
        )
        parser.add_argument(
            "--report",
            metavar="FILE",
            type=arguments.new_file,
            help="write a report in JSON, for publication",
        )
        parser.add_argument(
            "--serial",
            action="store_true",
            help="the report has the serial number of the device",
        )
        parser.add_argument(
            "--yes", action="store_true", help="start without a question"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        device, plugin = parsed_args.device, parsed_args.plugin
        with Bench.alone(self.manager, device, plugin) as bench:
            bench.kills = parsed_args.kills
            return self._run(bench, parsed_args)

    def _run(self, bench: Bench, parsed_args: argparse.Namespace) -> base.Table:
        if not parsed_args.yes:
            self._confirm(bench)
        names = parsed_args.check or tuple(_CHECKS)
        try:
            results = list(report.run(bench, [_CHECKS[name] for name in names]))
        except KeyboardInterrupt:
            bench.close()
            self.remark(f"interrupted; {bench.address} is free again")
            raise
        if parsed_args.report:
            is_simulated, has_serial = self.os_acc.root != "/", parsed_args.serial
            found = report.as_json(
                bench, results, simulated=is_simulated, with_serial=has_serial
            )
            arguments.write(parsed_args.report, json.dumps(found, indent=2) + "\n")
        self.is_failed = any(each.result is Result.FAILED for each in results)
        for each in results:
            if each.detail:
                self.remark(f"{each.name} {each.result.value}: {each.detail}")
        rows = [(each.result.value, each.name, each.rule) for each in results]
        return _COLUMNS, rows

    def _confirm(self, bench: Bench) -> None:
        """Ask whether to start.

        :raises InvalidInput: the answer is not yes.
        """
        consequence = "Its host driver loses it for a time."
        if bench.provider.device.erasure is Erasure.PLUGIN:
            consequence = "It is erased after each unplug: its data is lost."
        self.app.stderr.write(
            f"This plugs and unplugs {bench.address} (plugin {bench.plugin}), and "
            f"kills processes meanwhile. {consequence}\n"
            "Type yes to start: "
        )
        self.app.stderr.flush()
        if sys.stdin.readline().strip() != "yes":
            raise exception.InvalidInput(
                "not started: the answer is not yes", hint="--yes starts at once"
            )
