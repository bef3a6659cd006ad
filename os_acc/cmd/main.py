# SPDX-License-Identifier: Apache-2.0

"""The application ``os-acc``: its options, its log and its commands."""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import itertools
import logging
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from cliff import app, command, commandmanager

from os_acc import exception

if TYPE_CHECKING:
    from oslo_config import cfg

_FORMAT = "%(levelname)s: %(message)s"
_LIMITS = "os_acc.privsep.privileged_conf"
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO)
_USAGE = 2
_CHOICE = re.compile(r"argument (?P<names>\S+): invalid choice: '(?P<word>[^']*)'")


class Commands(commandmanager.CommandManager):
    """The installed commands; each is imported when it runs.

    cliff imports every command to find one, which takes a second.
    """

    def load_commands(self, namespace: str) -> None:
        """Find the commands."""
        self.group_list.append(namespace)
        for point in metadata.entry_points(group=namespace):
            self.commands[point.name.replace("_", " ")] = point

    def add_command(self, name: str, command_class: type[command.Command]) -> None:
        """Add a command of cliff, unless os_acc has one of the name."""
        if name not in self.commands:
            super().add_command(name, command_class)

    def __iter__(self) -> Iterator[tuple[str, commandmanager.EntryPointT]]:
        """Yield each command with its description alone."""
        for name, point in self.commands.items():
            if isinstance(point, commandmanager.EntryPointWrapper):
                # cliff's own command, imported already.
                yield name, point
                continue
            line = _first_line(point)

            class Listed(command.Command):
                _description = line

                def take_action(self, parsed_args: argparse.Namespace) -> None:
                    raise NotImplementedError("only for the list of commands")

            yield name, commandmanager.EntryPointWrapper(name, Listed)


def _first_line(point: metadata.EntryPoint) -> str:
    """Return the first line of a command's docstring, without importing it."""
    module, _, name = point.value.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    text = Path(spec.origin).read_text(encoding="utf-8")
    found = re.search(rf'^class {name}\(.*\):\n    """(.*)', text, re.MULTILINE)
    return found[1].rstrip('"') if found else ""


class OsAcc(app.App):
    """The application ``os-acc``.

    :param root: parent directory of ``/sys``, ``/proc`` and ``/etc/nova``; ``/``
        except in tests and with ``--simulated``.
    :param config: the configuration to fill; the default is the global one,
        which also determines how the privileged helper is started.
    """

    NAME = "os-acc"
    LOG = logging.getLogger("os_acc.cmd")

    def __init__(
        self,
        root: str = "/",
        config: cfg.ConfigOpts | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.root = root
        self._config = config
        #: The words of the command line, less the options that precede the command.
        self.words: list[str] = []
        self._at_the_end = contextlib.ExitStack()
        super().__init__(
            description="Look after the accelerators of this compute node.",
            version=metadata.version("os-acc"),
            command_manager=Commands("os_acc.cli"),
            stdout=stdout,
            stderr=stderr,
            # Without this, --help never reaches the command.
            deferred_help=True,
        )

    @property
    def config(self) -> cfg.ConfigOpts:
        """The configuration."""
        if self._config is None:
            from oslo_config import cfg

            self._config = cfg.CONF
        return self._config

    def build_option_parser(
        self,
        description: str | None,
        version: str | None,
        argparse_kwargs: dict[str, Any] | None = None,
    ) -> argparse.ArgumentParser:
        parser = super().build_option_parser(
            description, version, {"prog": self.NAME, **(argparse_kwargs or {})}
        )
        for kind in ("file", "dir"):
            parser.add_argument(
                f"--config-{kind}",
                action="append",
                default=[],
                metavar="PATH",
                type=os.path.abspath,
                help=f"Configuration {kind} to read; may be given several times. "
                "Default: those of os-acc, or else those of nova-compute.",
            )
        parser.add_argument(
            "--simulated",
            metavar="DIR",
            type=os.path.abspath,
            help="Use the simulated host in this directory, with its own "
            "configuration; 'os-acc demo --keep DIR' makes one.",
        )
        self.add_suggestions(parser)
        return parser

    def add_suggestions(self, parser: argparse.ArgumentParser) -> None:
        """Let the errors of a parser suggest what was probably meant.

        argparse of Python 3.11 does not.
        """
        fail = parser.error

        def error(message: str) -> NoReturn:
            found = _misspelt_choice(message, parser)
            # A misspelt option is often missed as well, and reported as missing.
            known = parser._option_string_actions | self.parser._option_string_actions
            found = found or next(_misspelt_options(self.words, known), "")
            fail(f"{message}; {found}" if found else message)

        parser.error = error  # type: ignore[method-assign]

    def configure_logging(self) -> None:
        """Log to stderr; the level depends on the verbosity, warnings by default."""
        level = dict(enumerate(_LEVELS)).get(self.options.verbose_level, logging.DEBUG)
        is_quiet = self.options.verbose_level <= self.DEFAULT_VERBOSE_LEVEL
        handlers: list[logging.Handler] = [logging.StreamHandler(self.stderr)]
        if self.options.log_file:
            handlers.append(logging.FileHandler(self.options.log_file))
        for handler in handlers:
            handler.setFormatter(logging.Formatter(_FORMAT))
            if is_quiet and self.options.simulated is not None:
                # Each helper warns that root has not limited it, which no simulated
                # host needs.
                handler.addFilter(lambda record: record.name != _LIMITS)
            logging.getLogger().addHandler(handler)
            self._at_the_end.callback(handler.close)
            self._at_the_end.callback(logging.getLogger().removeHandler, handler)
        if not self.options.debug:
            handlers[0].setFormatter(_WithoutTraceback(_FORMAT))
        # Rejected devices are listed by 'device list'.
        rejections = logging.ERROR if is_quiet else logging.NOTSET
        for name, new in ((None, level), ("os_acc.inventory.discovery", rejections)):
            logger = logging.getLogger(name)
            self._at_the_end.callback(logger.setLevel, logger.level)
            logger.setLevel(new)

    def initialize_app(self, argv: list[str]) -> None:
        """Print help and exit if no command is given."""
        self.words = argv
        self.print_help_if_requested()
        if not argv:
            self.parser.print_help(self.stderr)
            raise SystemExit(_USAGE)
        if argv[0].startswith("-"):
            self.parser.error(f"unrecognized arguments: {argv[0]}")
        options = self.options
        if options.simulated and (options.config_file or options.config_dir):
            self.parser.error(
                "--simulated has a configuration of its own: omit --config-file and "
                "--config-dir"
            )

    def run_subcommand(self, argv: list[str]) -> int:
        """Run one command with its arguments; return its exit status."""
        if argv[0] == "help":
            # cliff turns 'device list --long --help' into 'help device list --long',
            # but 'help' does not accept that option.
            argv = list(itertools.takewhile(lambda word: word[:1] != "-", argv))
        return super().run_subcommand(argv)

    def configure(self) -> None:
        """Read the configuration; enter the simulated host, if one is given.

        :raises InvalidConfiguration: it cannot be read.
        :raises InvalidInput: the directory has no simulated host.
        """
        from os_acc import conf
        from os_acc.cmd import environment

        options, config = self.options, self.config
        files, directories = options.config_file, options.config_dir
        if options.simulated is None:
            environment.load_configuration(config, files, directories, self.root)
            return
        # The root first: 'os-acc check' continues with an invalid configuration.
        self.root, file = environment.simulated_host(options.simulated)
        environment.load_configuration(config, [file], [], self.root)
        helpers = environment.simulated_helpers(
            conf.state_path(config), self.root, file
        )
        self._at_the_end.enter_context(helpers)

    def run(self, argv: list[str]) -> int:
        """Run one command; return its exit status."""
        with self._at_the_end:
            return super().run(argv)


class _WithoutTraceback(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # Another handler may have added the traceback to the record.
        short = copy.copy(record)
        short.exc_info = short.exc_text = None
        return super().format(short)


def _misspelt_options(words: Sequence[str], known: Collection[str]) -> Iterator[str]:
    for word in words:
        name = word.partition("=")[0]
        # argparse accepts abbreviations.
        if name[:2] != "--" or any(each.startswith(name) for each in known):
            continue
        near = exception.nearest(name, known)
        if near:
            yield f"did you mean {near} instead of {name}?"


def _misspelt_choice(message: str, parser: argparse.ArgumentParser) -> str:
    match = _CHOICE.match(message)
    if match is None:
        return ""
    names = set(match["names"].split("/"))
    for action in parser._actions:
        if action.choices and names & {*action.option_strings, action.dest}:
            near = exception.nearest(match["word"], map(str, action.choices))
            return f"did you mean {near}?" if near else ""
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``os-acc``; return 0, 1 (failure) or 2 (usage error)."""
    return OsAcc().run(list(sys.argv[1:] if argv is None else argv))
