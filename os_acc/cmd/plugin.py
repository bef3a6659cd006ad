# SPDX-License-Identifier: Apache-2.0

"""``os-acc plugin``: the installed plugins, and a package for a new one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from os_acc.cmd import base
from os_acc.cmd.plugin_package import PluginPackage
from os_acc.inspection import HostInspection
from os_acc.plugins import loader
from os_acc.plugins.loader import InstalledPlugin

_COLUMNS = ("Name", "Distribution", "Version", "Contract", "State", "Reason")


class PluginList(base.Listing):
    """List the installed plugins, with the reason why one is not used.

    Changes nothing, needs no privileged helper, and imports enabled plugins alone.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        look = self.look()
        return _COLUMNS, [_row(each, look) for each in loader.installed()]


def _row(found: InstalledPlugin, look: HostInspection) -> tuple[Any, ...]:
    loaded = look.plugins.get(found.name)
    failed = {each.name: each.reason for each in look.inventory.set_aside}
    aside = {each.name: each.reason for each in look.plugins.set_aside} | failed
    state, reason = "loaded", None
    if found.name in aside:
        state, reason = "set aside", aside[found.name]
    elif loaded is None:
        state, reason = "disabled", "[os_acc] enabled_plugins leaves it out"
    names, versions = zip(*map(loader.distribution_of, found.points), strict=True)
    contract = ".".join(map(str, loaded.contract_version)) if loaded else None
    return found.name, ", ".join(names), ", ".join(versions), contract, state, reason


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
