# SPDX-License-Identifier: Apache-2.0

"""The package of a new plugin, from the templates in ``plugin_template``."""

from __future__ import annotations

import dataclasses
import re
import shutil
import string
from importlib import metadata
from pathlib import Path
from typing import Final

from oslo_config import cfg

from os_acc import conf, exception, privsep
from os_acc.objects.drivers import is_vfio_driver
from os_acc.plugins import loader

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


@dataclasses.dataclass(frozen=True, slots=True)
class PluginPackage:
    """The names in a plugin's package.

    :ivar name: of the entry point, such as ``acme``, and of the plugin.
    :raises InvalidInput: the name cannot be used, an installed plugin has it, or
        os_acc or such a plugin has one of its option groups.
    """

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST:
            raise exception.InvalidInput(
                f"{exception.show(self.name)} cannot name a plugin",
                hint="use lower-case letters, digits and single underscores, such as "
                f"acme_fpga: {_LONGEST} characters at most",
            )
        if is_vfio_driver(self.name):
            raise exception.InvalidInput(
                f"{self.name} cannot name a plugin: the simulated device has a host "
                "driver of this name, and drivers with the word vfio are for guests",
                hint="choose a name without the word vfio",
            )
        for point in metadata.entry_points(group=loader.NAMESPACE, name=self.name):
            owner = point.dist.name if point.dist else point.value
            raise exception.InvalidInput(
                f"{owner} has a plugin named {self.name}",
                hint="choose another name: entry points of plugins are unique",
            )
        taken = sorted(_taken_sections().intersection(self.sections))
        if taken:
            raise exception.InvalidInput(
                f"{self.name} cannot name a plugin: [{taken[0]}] is an option group of "
                "os_acc or of an installed plugin",
                hint=f"choose another name: {' and '.join(self.sections)} have to be "
                "groups of the new plugin alone",
            )

    @property
    def sections(self) -> tuple[str, str]:
        """The option groups of the plugin and of its privileged helper."""
        return self.package, f"{self.package}_helper"

    @property
    def distribution(self) -> str:
        """The name of the package for pip, normalised (PEP 503)."""
        return f"os-acc-{self.name.replace('_', '-')}"

    @property
    def package(self) -> str:
        """The name for ``import``, which is that of the plugin's options as well."""
        return f"os_acc_{self.name}"

    @property
    def title(self) -> str:
        """The name within the names of classes."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    def write(self, parent: Path) -> Path:
        """Write the package into a new directory, and return that.

        :raises InvalidInput: the directory exists, or cannot be written.
        """
        top = parent / self.distribution
        try:
            parent.mkdir(parents=True, exist_ok=True)
            top.mkdir()
        except OSError as error:
            raise _unusable(top, error) from error
        try:
            for name, text in self._files().items():
                path = top / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            # The directory is new: nothing of the caller's is in it.
            shutil.rmtree(top, ignore_errors=True)
            raise _unusable(top, error) from error
        return top

    def _files(self) -> dict[str, str]:
        """Return the text of each file by its path in the package."""
        values = {
            "name": self.name,
            "distribution": self.distribution,
            "package": self.package,
            "helper": self.sections[1],
            "title": self.title,
            "upper": self.name.upper(),
            "rule": "=" * len(self.distribution),
        }
        found = {}
        for name, template in _FILES.items():
            text = ""
            if template:
                text = (_TEMPLATES / template).read_text(encoding="utf-8")
            path = string.Template(name).substitute(values)
            found[path] = string.Template(text).substitute(values)
        return found


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
