# SPDX-License-Identifier: Apache-2.0

"""``os-acc demo``: plug and unplug on a simulated host."""

from __future__ import annotations

import argparse
import shlex

from os_acc import exception
from os_acc.cmd import base
from os_acc.testing.demo import host
from os_acc.testing.demo.story import Story


class Demo(base.Acting):
    """Show plug and unplug on a simulated host.

    Needs no root and no hardware: discovers, plugs, crashes, recovers,
    unplugs, and proves that the host is as it was. Ends with 1 if it is not.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--keep",
            metavar="DIR",
            help="make the host in this empty or new directory, and keep it",
        )

    def configure(self) -> None:
        # The simulated host does not use this host's configuration.
        if self.os_acc.options.simulated is not None:
            raise exception.InvalidInput(
                "the demo makes a simulated host of its own",
                hint="omit --simulated; --keep DIR keeps the host",
            )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        with host.build(parsed_args.keep) as built:
            is_restored = Story(built).run()
        if parsed_args.keep:
            print(
                f"\nThe host, its state and the log are in {built.directory}. Use it:"
            )
            place = shlex.quote(str(built.directory))
            print(f"os-acc --simulated {place} device list")
        return 0 if is_restored else 1
