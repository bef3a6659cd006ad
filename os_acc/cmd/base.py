# SPDX-License-Identifier: Apache-2.0

"""Base classes of the commands: inspection, actions, errors and output."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from cliff import columns, command, display, lister, show

from os_acc import conf, exception
from os_acc.cmd import environment
from os_acc.cmd.main import OsAcc
from os_acc.objects import device_spec

# Each method imports what it calls: a command starts in a fraction of a second.
if TYPE_CHECKING:
    from stevedore import ExtensionManager

    from os_acc.attach.manager import Manager
    from os_acc.bitstreams.library import Library
    from os_acc.host.pci_ids import ModelNames
    from os_acc.inspection import HostInspection
    from os_acc.store.snapshot import StoreSnapshot

_T = TypeVar("_T")

#: The value of an object in each column of a table, by the column's name.
Columns: TypeAlias = dict[str, Callable[[_T], Any]]
#: The names of columns, and the rows.
Table: TypeAlias = tuple[Sequence[str], Iterable[Sequence[Any]]]
#: The names of an object's fields, and their values.
ShownObject: TypeAlias = tuple[Sequence[str], Iterable[Any]]


def table(columns: Columns[_T], found: Iterable[_T]) -> Table:
    """Return the table of these objects."""
    rows = [tuple(value(each) for value in columns.values()) for each in found]
    return tuple(columns), rows


def fields(columns: Columns[_T], found: _T) -> ShownObject:
    """Return one object with the columns of a table as its fields."""
    return tuple(columns), tuple(value(found) for value in columns.values())


class Acting(command.Command):
    """A command of os_acc.

    :ivar is_failed: whether the exit status is 1 although the command was
        carried out.
    """

    is_failed = False
    _progress = ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser; its errors suggest what was probably meant."""
        self._parser = parser = super().get_parser(prog_name)
        # cliff.sphinxext reads the parsers for the man page, without an application.
        if self.app is not None:
            self.os_acc.add_suggestions(parser)
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this command."""

    def get_epilog(self) -> str:
        """Return no epilog: cliff would read the metadata of all packages for it."""
        return ""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; print an error of os_acc with its hint."""
        self.is_failed = False
        try:
            self.configure()
            return super().run(parsed_args) or int(self.is_failed)
        except exception.OsAccError as error:
            if self.os_acc.options.debug:
                raise
            self._print_error(error)
            return 1

    def configure(self) -> None:
        """Read the configuration.

        :raises InvalidConfiguration: it cannot be read.
        """
        self.os_acc.configure()

    @property
    def os_acc(self) -> OsAcc:
        """The application, with its own type."""
        if not isinstance(self.app, OsAcc):
            raise TypeError(f"{self.app!r} is not os-acc")
        return self.app

    @property
    def settings(self) -> conf.Settings:
        """The options of os_acc."""
        return conf.Settings.load(self.os_acc.config)

    def deadline(self, timeout: float | None = None) -> float:
        """Return the end of a timeout, on the clock of :func:`time.monotonic`.

        :param timeout: in seconds; default: ``[os_acc] plug_timeout``.
        """
        return time.monotonic() + (timeout or self.settings.plug_timeout)

    def look(self) -> HostInspection:
        """Return an inspection of the host, without side effects."""
        from os_acc import inspection

        self.drop_root()
        return inspection.look(self.os_acc.config, self.os_acc.root)

    def models(self, look: HostInspection) -> ModelNames:
        """Return the model names of the host's functions, as far as they are known."""
        from os_acc.host.pci_ids import ModelNames

        functions = look.inventory.host.functions.values()
        return ModelNames.read(self.os_acc.root, (each.identity for each in functions))

    def recorded(self, *, events: int = 0) -> StoreSnapshot:
        """Return the contents of the store, independent of the host's state.

        :param events: number of the newest events to read as well.
        """
        from os_acc.store import snapshot

        self.drop_root()
        return snapshot.read(self.settings.state_path, events=events)

    def library(self) -> Library:
        """Return the bitstream library; root becomes the state's owner.

        :raises InvalidConfiguration: an option cannot be used.
        """
        from os_acc.bitstreams import library

        self.drop_root()
        return library.build(self.os_acc.config, self.settings.state_path)

    def manager(self, *, makes_vfs: bool = False) -> Manager:
        """Return a manager ready to act; root becomes the state's owner.

        :param makes_vfs: whether to make the VFs that ``num_vfs`` requests.
        :raises OsAccError: the manager cannot be built.
        """
        from os_acc import service
        from os_acc.helper import client
        from os_acc.objects.lease import Owner

        settings = self.settings
        if os.geteuid() == 0:
            environment.check_owner(settings.state_path)
            # Before root drops its privileges: root starts helpers without sudo.
            client.Helper(settings.write_timeout, settings.helper_start_timeout).start(
                time.monotonic() + settings.initialize_timeout
            )
            environment.become_owner(settings.state_path)
        return service.build(
            self.os_acc.config, self.os_acc.root, Owner.COMMAND, makes_vfs=makes_vfs
        )

    def remark(self, text: str) -> None:
        """Print a message for operators to stderr; stdout is for programs."""
        self.app.stderr.write(f"os-acc: {text}\n")

    def progress(self, text: str) -> None:
        """Replace the last line of stderr, if that is a terminal."""
        # Write only changes: a terminal is slower than a disk.
        if self.app.stderr.isatty() and text != self._progress:
            self.app.stderr.write(f"\r\033[K{text}")
            self.app.stderr.flush()
            self._progress = text

    def end_progress(self) -> None:
        """Leave the last line of the progress, if there is any."""
        if self._progress:
            self.app.stderr.write("\n")
            self._progress = ""

    def remark_if_none_named(self) -> None:
        """Print where to configure devices, if none is configured."""
        if not device_spec.parse(self.settings.device_spec).entries:
            files = environment.read_files(self.os_acc.config)
            where = " or ".join(files) or f"a file ({environment.NAME_IT})"
            self.remark(f"device_spec is empty: set [os_acc] device_spec in {where}")

    def remark_missing_vfs(self, look: HostInspection) -> None:
        """Print how to make the VFs that a PF lacks."""
        from os_acc.cmd.device_states import vfs_hint
        from os_acc.objects.device import RejectReason

        for each in look.inventory.refused:
            if each.reason is RejectReason.NO_VFS:
                hint = vfs_hint(each)
                self.remark(f"VFs of {each.address}: {each.detail}; {hint}")

    def drop_root(self) -> None:
        """Become the owner of the state directory, if it exists."""
        if os.path.isdir(self.settings.state_path):
            # Plugins are third-party code and need no root to inspect the host.
            environment.become_owner(self.settings.state_path)

    def _print_error(self, error: exception.OsAccError) -> None:
        place = self._place_of(error)
        self.remark(f"{place}: {error.message}" if place else error.message)
        for note in getattr(error, "__notes__", ()):
            self.app.stderr.write(f"  {note}\n")
        if error.hint:
            self.app.stderr.write(f"hint: {error.hint}\n")

    def _place_of(self, error: exception.OsAccError) -> str | None:
        """Return the file and the line of an invalid entry of ``device_spec``."""
        if not isinstance(error, exception.InvalidConfiguration):
            return None
        for path in filter(os.path.isfile, self.os_acc.config.config_file or ()):
            with open(path, encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    name, _equals, value = line.partition("=")
                    try:
                        if name.strip() == "device_spec":
                            device_spec.parse((value.strip(),))
                    except exception.InvalidConfiguration as fault:
                        if error.message in fault.message:
                            return f"{path}, line {number}"
        return None


# Generic from cliff 4.9 on.
class _Displaying(Acting, display.DisplayCommandBase):  # type: ignore[type-arg]
    """A command that prints values."""

    def _load_formatter_plugins(self) -> ExtensionManager[Any]:
        from os_acc.cmd.tables import FoldedTable

        found = super()._load_formatter_plugins()
        # After a look-up by name, stevedore finds no formatter that is added.
        next(each for each in found if each.name == "table").obj = FoldedTable()
        return found


class Listing(_Displaying, lister.Lister):
    """A command that prints rows."""

    def produce_output(
        self,
        parsed_args: argparse.Namespace,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
    ) -> int:
        # Older versions of cliff take the exact name of a column alone.
        names = {each.lower().replace(" ", "_"): each for each in column_names}
        wanted = [each.lower().replace(" ", "_") for each in parsed_args.sort_columns]
        parsed_args.sort_columns = [names[each] for each in wanted if each in names]
        return super().produce_output(parsed_args, column_names, data)


class Showing(_Displaying, show.ShowOne):
    """A command that prints one object."""


# Generic from cliff 4.9 on.
class Formatted(columns.FormattableColumn):  # type: ignore[type-arg]
    """A value for programs, with another text for people."""

    def __init__(self, value: Any, text: str) -> None:
        super().__init__(value)
        self._text = text

    def human_readable(self) -> str:
        """Return the text."""
        return self._text


_BAR = 30


def bar(share: float) -> str:
    """Return the bar of a progress, with the percentage."""
    filled = int(_BAR * share)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}] {int(100 * share):3d} %"


def plain(text: str) -> str:
    """Replace characters that are unprintable or invalid in XML."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)
