# SPDX-License-Identifier: Apache-2.0

"""The checks of ``os-acc check``: their subject and their findings."""

from __future__ import annotations

import dataclasses
import enum
import functools
import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from oslo_config import cfg, iniparser

from os_acc import conf, exception, inspection
from os_acc.bitstreams import library
from os_acc.cmd import environment
from os_acc.host import pci
from os_acc.host.pci import Host
from os_acc.inspection import HostInspection
from os_acc.objects import device_spec as specs
from os_acc.objects.device import AttachHandle, Provider
from os_acc.objects.device_spec import DeviceSpec
from os_acc.plugins import loader
from os_acc.store import snapshot

#: Values of a configuration file by section, then by option.
Sections: TypeAlias = Mapping[str, Mapping[str, list[str]]]


class Severity(enum.Enum):
    """Result of a check. FAILED: os_acc cannot serve as configured."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: result, description and hint."""

    result: Severity
    what: str
    hint: str = ""
    check: str = ""


#: A finding without problems: ``ok(what)``.
ok = functools.partial(Finding, Severity.OK)
#: A finding that os_acc works only in part: ``warning(what, hint)``.
warning = functools.partial(Finding, Severity.WARNING)
#: A finding that os_acc does not work: ``failed(what, hint)``.
failed = functools.partial(Finding, Severity.FAILED)


def sections(
    files: Iterable[str], directories: Iterable[str] = ()
) -> dict[str, Sections]:
    """Return the sections of configuration files, by file.

    :raises InvalidConfiguration: a file cannot be read.
    """
    paths = list(files)
    for directory in directories:
        paths += sorted(glob.glob(os.path.join(directory, "*.conf")))
    found: dict[str, Sections] = {}
    for path in paths:
        parsed: dict[str, dict[str, list[str]]] = {}
        found[path] = parsed
        try:
            cfg.ConfigParser(path, parsed).parse()
        except (OSError, iniparser.ParseError) as error:
            raise exception.InvalidConfiguration(
                f"cannot read {path}: {error}", hint="correct the file"
            ) from error
    return found


class CheckContext:
    """A host with its configuration and state.

    An unreadable part raises an error of os_acc, again at each access.

    :param broken: the error that prevented parsing the configuration, if any.
    """

    def __init__(
        self, config: cfg.ConfigOpts, root: str, broken: exception.OsAccError | None
    ) -> None:
        self.root = root
        self._config = config
        self._broken = broken
        self._reported: set[str] = set()

    @functools.cached_property
    def settings(self) -> conf.Settings:
        """The options of os_acc."""
        if self._broken is not None:
            raise self._broken
        return conf.Settings.load(self._config)

    @property
    def config(self) -> cfg.ConfigOpts:
        """The configuration; invalid options of os_acc are reported first."""
        self.settings  # noqa: B018
        return self._config

    @functools.cached_property
    def written(self) -> Mapping[str, Sections]:
        """The sections of the configuration files, by file."""
        return sections(self.config.config_file or (), self.config.config_dir or ())

    def check_owner(self) -> int:
        """Return the user id of the state directory's owner.

        :raises StateUnavailable: the directory does not exist.
        """
        return environment.check_owner(self.settings.state_path)[0]

    @functools.cached_property
    def named(self) -> DeviceSpec:
        """The devices in ``[os_acc] device_spec``."""
        return specs.parse(self.settings.device_spec)

    @functools.cached_property
    def host(self) -> Host:
        """The devices of the host."""
        return pci.scan(self.root)

    @functools.cached_property
    def plugins(self) -> loader.Plugins:
        """The loaded plugins, and the ones set aside."""
        return loader.load(self.config, self.root, self.settings.enabled_plugins)

    @functools.cached_property
    def images(self) -> library.Library:
        """The bitstream library with the configured source."""
        return library.build(self.config, self.settings.state_path)

    @functools.cached_property
    def recorded(self) -> snapshot.StoreSnapshot:
        """The contents of the store."""
        return snapshot.read(self.settings.state_path)

    @functools.cached_property
    def look(self) -> HostInspection:
        """The inspection of the host with its store."""
        return inspection.look(self.config, self.root)

    @property
    def offered(self) -> Iterator[tuple[Provider, AttachHandle]]:
        """The accelerators that are offered or in use, with their providers."""
        for provider in self.look.inventory.providers.values():
            for handle in provider.device.handles:
                yield provider, handle

    @property
    def erased_nvme(self) -> tuple[str, ...]:
        """The names of the offered NVMe devices that os_acc erases, sorted."""
        devices = (each.device for each in self.look.inventory.providers.values())
        return tuple(
            sorted(str(each.address) for each in devices if each.plugin == "nvme")
        )

    def failure(self, error: exception.OsAccError) -> Finding:
        """Return the finding for a check that could not run.

        A cause that stops several checks is reported as failed once.
        """
        if str(error) in self._reported:
            return warning(
                "skipped: see the failed check above",
                "correct the cause of that check first",
            )
        self._reported.add(str(error))
        return failed(error.message, error.hint)
