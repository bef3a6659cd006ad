# SPDX-License-Identifier: Apache-2.0

"""The subject of the checks; each part is read on first use."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Self

from oslo_config import cfg

from os_acc import conf, exception, inspection
from os_acc.bitstreams import library, options, policy
from os_acc.cmd.checks import option_names
from os_acc.host import pci
from os_acc.host.pci import Host
from os_acc.inspection import HostInspection
from os_acc.objects import device_spec as specs
from os_acc.objects.device_spec import DeviceSpec
from os_acc.plugins import loader
from os_acc.store import readonly
from os_acc.store.locks import Locks


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

    def named(self, check: str) -> Self:
        """Return the same finding with the name of its check."""
        return dataclasses.replace(self, check=check)


def ok(what: str) -> Finding:
    """Return a finding without problems."""
    return Finding(Severity.OK, what)


def warning(what: str, hint: str) -> Finding:
    """Return a finding that os_acc works only in part, or not as intended."""
    return Finding(Severity.WARNING, what, hint)


def failed(what: str, hint: str) -> Finding:
    """Return a finding that os_acc does not work."""
    return Finding(Severity.FAILED, what, hint)


def unknown_name(found: option_names.UnknownName) -> Finding:
    """Return the finding for a name in a configuration file that has no effect."""
    return warning(
        str(found),
        f"did you mean {found.near}?"
        if found.near
        else "remove it, or see the reference of the options",
    )


class CheckContext:
    """A host with its configuration and state.

    An unreadable part raises an error of os_acc, again at each access.

    :param broken: the error that prevented parsing the configuration, if any.
    """

    def __init__(
        self, config: cfg.ConfigOpts, root: str, broken: exception.OsAccError | None
    ) -> None:
        self.config = config
        self.root = root
        self._broken = broken
        self._reported: set[str] = set()

    @functools.cached_property
    def settings(self) -> conf.Settings:
        """The options of os_acc."""
        if self._broken is not None:
            raise self._broken
        return conf.Settings.load(self.config)

    @functools.cached_property
    def written(self) -> Mapping[str, option_names.Written]:
        """The sections and options in the configuration files."""
        self.settings  # noqa: B018  (reports invalid options first)
        config = self.config
        return option_names.read(config.config_file or (), config.config_dir or ())

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
    def image_settings(self) -> options.BitstreamSettings:
        """The options of images."""
        self.settings  # noqa: B018  (reports invalid options first)
        return options.BitstreamSettings.load(self.config)

    @functools.cached_property
    def image_rules(self) -> policy.ImagePolicy:
        """The policy for images that may be programmed."""
        self.settings  # noqa: B018  (as above)
        return policy.ImagePolicy.load(self.config)

    @functools.cached_property
    def images(self) -> library.Library:
        """The bitstream library with the configured source."""
        state_path = self.settings.state_path
        return library.build(self.config, state_path, Locks.below(state_path))

    @functools.cached_property
    def recorded(self) -> readonly.StoreSnapshot:
        """The contents of the store."""
        return readonly.read(self.settings.state_path)

    @functools.cached_property
    def look(self) -> HostInspection:
        """The inspection of the host with its store."""
        self.settings  # noqa: B018  (reports invalid options first)
        return inspection.look(self.config, self.root)

    @property
    def erased_nvme(self) -> tuple[str, ...]:
        """The names of the offered NVMe devices that os_acc erases, sorted."""
        return tuple(
            sorted(
                str(provider.device.address)
                for provider in self.look.inventory.providers.values()
                if provider.device.plugin == "nvme"
            )
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
