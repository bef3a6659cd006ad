# SPDX-License-Identifier: Apache-2.0

"""What the commands share: how they look, act, fail and print."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from cliff import command, lister, show

from os_acc import conf, exception, service
from os_acc.attach.manager import Manager
from os_acc.bitstreams import library
from os_acc.cmd import configuration, identity
from os_acc.cmd.app import OsAcc
from os_acc.helper import client
from os_acc.objects import device_spec
from os_acc.objects.lease import Owner
from os_acc.service import HostInspection
from os_acc.store import readonly
from os_acc.store.locks import Locks


class Acting(command.Command):
    """A command of os_acc.

    :ivar is_failed: whether it ends with 1 although it was carried out.
    """

    is_failed = False

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Carry it out; an error of ours is told with what to do about it."""
        self.is_failed = False
        try:
            self.configure()
            return super().run(parsed_args) or int(self.is_failed)
        except exception.OsAccError as error:
            if self.os_acc.options.debug:
                raise
            self._tell(error)
            return 1

    def configure(self) -> None:
        """Read the configuration.

        :raises InvalidConfiguration: it cannot be read.
        """
        self.os_acc.configure()

    @property
    def os_acc(self) -> OsAcc:
        """The application, as what it is."""
        if not isinstance(self.app, OsAcc):
            raise TypeError(f"{self.app!r} is not os-acc")
        return self.app

    @property
    def settings(self) -> conf.Settings:
        """The options of os_acc."""
        return conf.Settings.load(self.os_acc.config)

    def look(self) -> HostInspection:
        """What is there; nothing is started, made or repaired for it."""
        self._need_no_root()
        return service.look(self.os_acc.config, self.os_acc.root)

    def recorded(self) -> readonly.StoreSnapshot:
        """What is recorded, whatever the host looks like."""
        self._need_no_root()
        return readonly.read(self.settings.state_path, service.STORE_SECONDS)

    def library(self) -> library.Library:
        """The bitstreams; root has become the state's owner.

        :raises InvalidConfiguration: an option cannot be used.
        """
        self._need_no_root()
        state_path = self.settings.state_path
        return library.build(self.os_acc.config, state_path, Locks.below(state_path))

    def manager(self) -> Manager:
        """The library, ready to act; root has become the state's owner.

        :raises OsAccError: it cannot serve.
        """
        settings = self.settings
        if os.geteuid() == 0:
            identity.check_owner(settings.state_path)
            # Before root is given up: it needs no sudo to start them.
            client.Helper(settings.write_timeout, settings.helper_start_timeout).start(
                time.monotonic() + settings.initialize_timeout
            )
            identity.become_owner(settings.state_path)
        return service.build(self.os_acc.config, self.os_acc.root, Owner.COMMAND)

    def remark(self, text: str) -> None:
        """Tell people something; programs read what is on stdout."""
        self.app.stderr.write(f"os-acc: {text}\n")

    def remark_if_none_named(self) -> None:
        """Tell where devices are to be named, if none is."""
        if not device_spec.parse(self.settings.device_spec).entries:
            files = configuration.read_files(self.os_acc.config)
            where = " or ".join(files) or f"a file ({configuration.NAME_IT})"
            self.remark(
                f"no device is named: name some with [os_acc] device_spec in {where}"
            )

    def _need_no_root(self) -> None:
        if os.path.isdir(self.settings.state_path):
            # Plugins are others' code, and need no root to look.
            identity.become_owner(self.settings.state_path)

    def _tell(self, error: exception.OsAccError) -> None:
        self.remark(error.message)
        for note in getattr(error, "__notes__", ()):
            self.app.stderr.write(f"  {note}\n")
        if error.hint:
            self.app.stderr.write(f"hint: {error.hint}\n")


class Listing(Acting, lister.Lister):
    """A command that prints rows."""

    def produce_output(
        self,
        parsed_args: argparse.Namespace,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
    ) -> int:
        shown = [tuple(_shown(each, parsed_args) for each in row) for row in data]
        return super().produce_output(parsed_args, column_names, shown)


class Showing(Acting, show.ShowOne):
    """A command that prints one thing."""

    def produce_output(
        self,
        parsed_args: argparse.Namespace,
        column_names: Sequence[str],
        data: Any,
    ) -> int:
        shown = tuple(_shown(each, parsed_args) for each in data)
        return super().produce_output(parsed_args, column_names, shown)


def _shown(value: Any, parsed_args: argparse.Namespace) -> Any:
    """For people, nothing is a dash, and several things are lines."""
    if parsed_args.formatter != "table":
        return value
    if value is None or value == []:
        return "-"
    return "\n".join(map(str, value)) if isinstance(value, list) else value
