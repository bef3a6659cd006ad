# SPDX-License-Identifier: Apache-2.0

"""``os-acc plugin``: the installed plugins, and a package for a new one."""

from __future__ import annotations

import argparse
import re
import shutil
import string
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg

from os_acc import conf, exception, privsep
from os_acc.cmd import base
from os_acc.inspection import HostInspection
from os_acc.objects.drivers import is_vfio_driver
from os_acc.plugins import loader
from os_acc.plugins.loader import InstalledPlugin

_TEMPLATES: Final = Path(__file__).with_name("plugin_template")
#: A name for entry points, options and modules; the limit leaves room in sysfs' names
#: and in lines of code.
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*", re.ASCII)
_LONGEST: Final = 30
#: The files of the package, each with its template. Names are templates as well.
_FILES: Final = {
    "README.rst": "README.rst.in",
    "pyproject.toml": "pyproject.toml.in",
    "$package/__init__.py": "init.py.in",
    "$package/plugin.py": "plugin.py.in",
    "$package/privsep.py": "privsep.py.in",
    "$package/simulation.py": "simulation.py.in",
    "$package/py.typed": "",
    "tests/test_plugin.py": "test_plugin.py.in",
}

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

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
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

    def configure(self) -> None:
        """Read no configuration: a vendor's workstation has none of os_acc."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        made = write_package(parsed_args.name, Path(parsed_args.directory))
        for path in sorted(made.rglob("*")):
            if path.is_file():
                self.app.stdout.write(f"{path}\n")


def package_names(name: str) -> dict[str, str]:
    """Return the names in the package of a plugin, by their keys in the templates.

    :param name: of the plugin, and of its entry point.
    :raises InvalidInput: the name cannot be used, an installed plugin has it, or
        os_acc or such a plugin has one of its option groups.
    """
    package, helper = f"os_acc_{name}", f"os_acc_{name}_helper"
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise exception.InvalidInput(
            f"{exception.show(name)} cannot name a plugin",
            hint="use lower-case letters, digits and single underscores, such as "
            f"acme_fpga: {_LONGEST} characters at most",
        )
    if is_vfio_driver(name):
        raise exception.InvalidInput(
            f"{name} cannot name a plugin: the simulated device has a host "
            "driver of this name, and drivers with the word vfio are for guests",
            hint="choose a name without the word vfio",
        )
    for point in metadata.entry_points(group=loader.NAMESPACE, name=name):
        owner = point.dist.name if point.dist else point.value
        raise exception.InvalidInput(
            f"{owner} has a plugin named {name}",
            hint="choose another name: entry points of plugins are unique",
        )
    taken = sorted(_taken_sections() & {package, helper})
    if taken:
        raise exception.InvalidInput(
            f"{name} cannot name a plugin: [{taken[0]}] is an option group of "
            "os_acc or of an installed plugin",
            hint=f"choose another name: {package} and {helper} have to be "
            "groups of the new plugin alone",
        )
    # The name for pip is normalised (PEP 503).
    distribution = f"os-acc-{name.replace('_', '-')}"
    return {
        "name": name,
        "distribution": distribution,
        "package": package,
        "helper": helper,
        "title": "".join(part.capitalize() for part in name.split("_")),
        "upper": name.upper(),
        "rule": "=" * len(distribution),
    }


def write_package(name: str, parent: Path) -> Path:
    """Write the package of a plugin into a new directory, and return that.

    :raises InvalidInput: see :func:`package_names`; or the directory exists, or
        cannot be written.
    """
    names = package_names(name)
    top = parent / names["distribution"]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        top.mkdir()
    except OSError as error:
        raise _unusable(top, error) from error
    try:
        for file, template in _FILES.items():
            text = ""
            if template:
                text = (_TEMPLATES / template).read_text(encoding="utf-8")
            path = top / string.Template(file).substitute(names)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(string.Template(text).substitute(names), encoding="utf-8")
    except OSError as error:
        # The directory is new: nothing of the caller's is in it.
        shutil.rmtree(top, ignore_errors=True)
        raise _unusable(top, error) from error
    return top


def _taken_sections() -> set[str]:
    """Return the option groups of os_acc and of all installed plugins."""
    # Also loads the plugins, and with them the contexts of their helpers.
    groups = {
        group.name if isinstance(group, cfg.OptGroup) else group
        for group, _options in conf.list_opts()
    }
    # A plugin without options has its group as well.
    points = metadata.entry_points(group=loader.NAMESPACE)
    return (
        groups
        | {loader.section_of(each.name) for each in points}
        | {each.cfg_section for each in privsep.contexts()}
    )


def _unusable(directory: Path, error: OSError) -> exception.InvalidInput:
    return exception.InvalidInput(
        f"cannot make {directory}: {error.strerror}",
        hint="choose another name, or another --directory",
    )
