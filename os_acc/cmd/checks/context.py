# SPDX-License-Identifier: Apache-2.0

"""What the checks look at, each part read when it is first needed."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Self

from oslo_config import cfg

from os_acc import conf, exception, plugins, service
from os_acc.bitstreams import library, options, policy
from os_acc.host import pci
from os_acc.host.view import Host
from os_acc.objects import device_spec as specs
from os_acc.objects.device_spec import DeviceSpec
from os_acc.service import HostInspection
from os_acc.store import readonly
from os_acc.store.locks import Locks


class Severity(enum.Enum):
    """FAILED: os_acc cannot serve, or cannot do what it is told to."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line: how it is, what was found, what to do about it."""

    result: Severity
    what: str
    hint: str = ""
    check: str = ""

    def named(self, check: str) -> Self:
        """The same, with the name of its check."""
        return dataclasses.replace(self, check=check)


def ok(what: str) -> Finding:
    """All is well."""
    return Finding(Severity.OK, what)


def warning(what: str, hint: str) -> Finding:
    """It works, but not all of it, or not as meant."""
    return Finding(Severity.WARNING, what, hint)


def failed(what: str, hint: str) -> Finding:
    """It does not work."""
    return Finding(Severity.FAILED, what, hint)


class CheckContext:
    """A host with its configuration and state.

    What cannot be read raises an error of ours, again at each attempt.

    :param broken: why the configuration could not be parsed, if it could not.
    """

    def __init__(
        self, config: cfg.ConfigOpts, root: str, broken: exception.OsAccError | None
    ) -> None:
        self.config = config
        self.root = root
        self._broken = broken
        self._told: set[str] = set()

    @functools.cached_property
    def settings(self) -> conf.Settings:
        """The options."""
        if self._broken is not None:
            raise self._broken
        return conf.Settings.load(self.config)

    @functools.cached_property
    def named(self) -> DeviceSpec:
        """What ``[os_acc] device_spec`` names."""
        return specs.parse(self.settings.device_spec)

    @functools.cached_property
    def host(self) -> Host:
        """The devices of the host."""
        return pci.scan(self.root)

    @functools.cached_property
    def plugins(self) -> plugins.Plugins:
        """The plugins, and those that were set aside."""
        return plugins.load(self.config, self.settings.enabled_plugins)

    @functools.cached_property
    def image_settings(self) -> options.BitstreamSettings:
        """The options of images."""
        self.settings  # noqa: B018  (says first what is wrong with the options)
        return options.BitstreamSettings.load(self.config)

    @functools.cached_property
    def image_rules(self) -> policy.ImagePolicy:
        """Which images may be programmed."""
        self.settings  # noqa: B018  (as above)
        return policy.ImagePolicy.load(self.config)

    @functools.cached_property
    def images(self) -> library.Library:
        """The images, wherever they are."""
        state_path = self.settings.state_path
        return library.build(self.config, state_path, Locks.below(state_path))

    @functools.cached_property
    def recorded(self) -> readonly.StoreSnapshot:
        """What the store says."""
        return readonly.read(self.settings.state_path, service.STORE_SECONDS)

    @functools.cached_property
    def look(self) -> HostInspection:
        """All of it together."""
        self.settings  # noqa: B018  (says first what is wrong with the options)
        return service.look(self.config, self.root)

    def failure(self, error: exception.OsAccError) -> Finding:
        """The finding for a check that could not be made.

        One cause that stops several checks fails once.
        """
        if str(error) in self._told:
            return warning("not checked, for a reason told above", "mend that first")
        self._told.add(str(error))
        return failed(error.message, error.hint)
