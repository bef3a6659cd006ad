# SPDX-License-Identifier: Apache-2.0

"""``os-acc plugin new``: a package for a vendor's plugin."""

from __future__ import annotations

import argparse
from pathlib import Path

from os_acc.cmd import base
from os_acc.cmd.plugin_package import PluginPackage


class PluginNew(base.Acting):
    """Make a package with a plugin, a privileged step, a simulated device and tests.

    It can be installed, and its tests pass without hardware. No existing directory is
    changed.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "name",
            metavar="NAME",
            help="the name of the plugin, such as acme_fpga; the package is "
            "os-acc-acme-fpga",
        )
        parser.add_argument(
            "--directory",
            metavar="DIR",
            default=".",
            help="make the package below this directory; default: the current one",
        )
        return parser

    def configure(self) -> None:
        # A vendor's workstation has no configuration of os_acc.
        pass

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        made = PluginPackage(parsed_args.name).write(Path(parsed_args.directory))
        for path in sorted(made.rglob("*")):
            if path.is_file():
                self.app.stdout.write(f"{path}\n")
        return 0
