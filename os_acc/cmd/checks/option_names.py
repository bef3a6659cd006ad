# SPDX-License-Identifier: Apache-2.0

"""Names in the configuration files that are names of no option of os_acc.

oslo.config ignores them, so that a misspelt option keeps its default.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from oslo_config import cfg, iniparser

from os_acc import conf, exception
from os_acc.numa import network_options
from os_acc.plugins import loader

_OWN_SECTION = re.compile(r"os[_-]?acc", re.IGNORECASE)
_SECTIONS_WITH_AUTH = "auth_section"
#: Options that os_acc reads in sections of Nova, with their deprecated names. Nova's
#: other options there are not known here.
_NOVAS: Mapping[str, Set[str]] = {
    "devices": {"enabled_mdev_types", "enabled_vgpu_types"},
    "neutron": {"physnets"},
    "pci": {"alias", "device_spec", "passthrough_whitelist"},
}
_PHYSNET = network_options.PHYSNET
_TUNNEL = network_options.TUNNEL
_NUMA_NODES: Set[str] = {network_options.NUMA_NODES.name}


@dataclasses.dataclass(frozen=True, slots=True)
class UnknownName:
    """A section or an option that os_acc does not have.

    :ivar near: the name that was probably meant; None if no name is similar.
    """

    file: str
    section: str
    option: str | None
    near: str | None

    def __str__(self) -> str:
        name = f"[{self.section}]" + (f" {self.option}" if self.option else "")
        return f"{self.file} has {name}, which is ignored"


#: Values by section, then by option.
Written = Mapping[str, Mapping[str, list[str]]]


def read(files: Iterable[str], directories: Iterable[str]) -> dict[str, Written]:
    """Return the sections and options of configuration files, by file.

    :raises InvalidConfiguration: a file cannot be read.
    """
    paths = list(files)
    for directory in directories:
        paths += sorted(glob.glob(os.path.join(directory, "*.conf")))
    return {path: _sections(path) for path in paths}


def _sections(path: str) -> Written:
    sections: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(path, sections).parse()
    except (OSError, iniparser.ParseError) as error:
        raise exception.InvalidConfiguration(
            f"cannot read {path}: {error}", hint="correct the file"
        ) from error
    return sections


def unknown(
    written: Mapping[str, Written], config: cfg.ConfigOpts
) -> Iterator[UnknownName]:
    """Yield the unknown names in the sections of os_acc, by file.

    Accepts the options that are registered in the configuration, too: vendors'
    plugins have such options. Those of a plugin that is not enabled, or cannot be
    imported, are not known. In the sections of Nova, only names that resemble an
    option that os_acc reads are unknown.
    """
    known = _known(config[conf.GROUP.name].enabled_plugins)
    of_plugins = {loader.section_of(each.name) for each in loader.installed()}
    elsewhere = {
        name
        for sections in written.values()
        for values in sections.values()
        for name in values.get(_SECTIONS_WITH_AUTH, ())
    }
    for file, sections in written.items():
        for section, values in sections.items():
            if section in elsewhere:
                continue
            group = section.lower()
            if not _OWN_SECTION.match(section):
                yield from _unknown_of_nova(file, section, values.keys())
                continue
            if group not in known and group not in config:
                if group in of_plugins:
                    continue
                near = exception.nearest(group, known)
                yield UnknownName(file, section, None, near and f"[{near}]")
                continue
            names = known.get(group, set()) | _registered(config, group)
            names |= _of_auth_type(values)
            for name in sorted(values.keys() - names):
                near = exception.nearest(name, names)
                yield UnknownName(file, section, name, near)


def _unknown_of_nova(
    file: str, section: str, written: Set[str]
) -> Iterator[UnknownName]:
    """Yield the misspelt names in a section of Nova."""
    group = section.lower()
    if group == _TUNNEL or group.startswith(_PHYSNET):
        # Nova has no other option there.
        for name in sorted(written - _NUMA_NODES):
            near = exception.nearest(name, _NUMA_NODES)
            yield UnknownName(file, section, name, near)
    elif group in _NOVAS:
        for name in sorted(written - _NOVAS[group]):
            if near := exception.nearest(name, _NOVAS[group]):
                yield UnknownName(file, section, name, near)
    elif group.startswith("neutron") and exception.nearest(group, {_TUNNEL}):
        yield UnknownName(file, section, None, f"[{_TUNNEL}]")


def _known(enabled: Sequence[str]) -> dict[str, set[str]]:
    """Return the names that the options of os_acc may have in files, by section."""
    found: dict[str, set[str]] = {}
    for group, options in conf.list_opts(enabled):
        section = group if isinstance(group, str) else group.name
        for option in options:
            found.setdefault(section, set()).add(option.dest)
            for old in option.deprecated_opts:
                names = found.setdefault(old.group or section, set())
                names.add(old.name or option.dest)
    return found


def _registered(config: cfg.ConfigOpts, group: str) -> set[str]:
    return set(config[group]) if group in config else set()


def _of_auth_type(values: Mapping[str, list[str]]) -> set[str]:
    """Return the options of the way to authenticate that a section selects."""
    from keystoneauth1 import exceptions, loading

    found: set[str] = set()
    for name in values.get("auth_type", ()):
        try:
            options = loading.get_auth_plugin_conf_options(name)
        except exceptions.NoMatchingPlugin:
            # The request for a session reports it.
            continue
        for option in options:
            found.add(option.dest)
            found.update(old.name for old in option.deprecated_opts if old.name)
    return found
