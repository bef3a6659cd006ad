# SPDX-License-Identifier: Apache-2.0

"""``os-acc privileges``: the rules of sudo or rootwrap that start the helpers."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from os_acc import conf, exception, privsep
from os_acc.cmd import base
from os_acc.plugins import loader
from os_acc.privsep import Context

# Its context is among those of the process once it is imported.
from os_acc.privsep import nvme as nvme

_USER: Final = "nova"
_HELPER: Final = "/usr/bin/privsep-helper"
_CONFIGURATION: Final = "/etc/nova/nova.conf"
#: Names without a meaning in sudoers(5): upper case is for its aliases.
_USER_NAME: Final = re.compile(r"[a-z_][a-z0-9_-]*", re.ASCII)
#: Characters that sudoers(5) and oslo.rootwrap take as they are.
_PATH: Final = re.compile(r"(/[A-Za-z0-9_.-]+)+", re.ASCII)
_PATH_IN_ETC: Final = re.compile(r"/etc(/[A-Za-z0-9_.-]+)+", re.ASCII)
_CONTEXT: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)

_SUDOERS: Final = """\
# Lets nova-compute's user start the privileged helpers of os_acc by sudo, where
# nova-rootwrap is not used. 'os-acc privileges sudoers' prints this file, with the
# helpers of vendors' plugins, and for other users and paths. It needs sudo 1.9.10 or
# newer: older versions know no regular expressions, and a plain "*" in sudoers
# matches spaces and slashes, with which any Python code could run as root. To check
# it: visudo -c -f <this file>
#
# Where the configuration of nova-compute can be written by nova-compute's user
# (Kolla), print the lines with --configuration /etc/os-acc/privileged.conf, and set
# helper_command in [os_acc] to "sudo privsep-helper --config-file
# /etc/os-acc/privileged.conf": oslo.log runs code that it finds in such a file.
"""

_ROOTWRAP: Final = """\
# nova-rootwrap filters for os_acc: who may start its privileged helpers, and with
# what. 'os-acc privileges rootwrap' prints this file, with the helpers of vendors'
# plugins. Install it beside Nova's own filters, in a directory that filters_path in
# rootwrap.conf names, owned by root and writable by root only. oslo.rootwrap adds a
# filter of its own that allows privsep-helper with any arguments: there, these lines
# say what os_acc needs, and limit nothing.

[Filters]
# A line ties the helper to configuration files below /etc, to one privileged context,
# and so to the Python code that it runs. RegExpFilter compares the number of
# arguments, too: hence a second line each for a nova-compute with two configuration
# files.
"""


class Privileges(base.Acting):
    """Print the rules with which sudo or rootwrap starts the privileged helpers.

    They allow the helpers of os_acc and those of the plugins that are installed and
    enabled, and nothing else. Changes nothing. Ends with 1 if a plugin cannot be
    loaded: the rules lack its helpers then.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        helper = default_helper()
        parser.add_argument(
            "format",
            metavar="FORMAT",
            choices=("sudoers", "rootwrap"),
            help="sudoers or rootwrap",
        )
        add_user(parser)
        parser.add_argument(
            "--helper",
            metavar="PATH",
            default=helper,
            type=_of_form(_PATH, "a plain absolute path"),
            help=f"privsep-helper, in sudoers; default: {helper}",
        )
        parser.add_argument(
            "--configuration",
            metavar="FILE",
            action="append",
            type=_of_form(_PATH_IN_ETC, "a plain path below /etc"),
            help="a configuration file of the helpers, in sudoers, below /etc; as often"
            f" and in the order as nova-compute has them; default: {_CONFIGURATION}",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.drop_root()
        enabled = self.settings.enabled_plugins
        loaded = loader.load(self.os_acc.config, self.os_acc.root, enabled)
        for each in loaded.set_aside:
            self.remark(f"plugin {each.name} is left out: {each.reason}")
        self.is_failed = bool(loaded.set_aside)
        contexts = (*own_contexts(), *_of_vendors(loaded))
        if parsed_args.format == "rootwrap":
            text = rootwrap(contexts)
        else:
            files = parsed_args.configuration or [_CONFIGURATION]
            text = sudoers(contexts, parsed_args.user, parsed_args.helper, files)
        self.app.stdout.write(text)


def add_user(parser: argparse.ArgumentParser) -> None:
    """Add the option for the user of nova-compute."""
    parser.add_argument(
        "--user",
        metavar="NAME",
        default=_USER,
        type=_of_form(_USER_NAME, "the name of a user"),
        help=f"the user of nova-compute, in sudoers; default: {_USER}",
    )


def default_helper() -> str:
    """Return the privsep-helper of this environment, if root alone can replace it."""
    found = privsep.helper_program()
    return found if _is_roots(found) else _HELPER


def in_etc(files: Iterable[str]) -> list[str]:
    """Return the configuration files that a rule can name."""
    return list(filter(_PATH_IN_ETC.fullmatch, files)) or [_CONFIGURATION]


def own_contexts() -> tuple[Context, ...]:
    """Return the contexts of os_acc."""
    found = {each.cfg_section: each for each in privsep.contexts()}
    return tuple(found[section] for section in conf.PRIVSEP_GROUPS)


def sudoers(
    contexts: Iterable[Context],
    user: str = _USER,
    helper: str = _HELPER,
    configuration: Sequence[str] = (_CONFIGURATION,),
) -> str:
    """Return a file for sudo with a line for each context (sudoers(5)).

    The arguments are those of ``PrivContext.helper_command`` in oslo.privsep.

    :param configuration: the paths of the configuration files.
    """
    files = " ".join(f"--config-file {_escaped(each)}" for each in configuration)
    lines = [
        f"# [{each.cfg_section}]\n{user} ALL = (root) NOPASSWD: {helper} "
        f"^{files} --privsep_context {_escaped(_path(each))} "
        r"--privsep_sock_path /tmp/[A-Za-z0-9_]+/privsep\.sock$"
        for each in contexts
    ]
    return _SUDOERS + "".join(f"{each}\n" for each in lines)


def rootwrap(contexts: Iterable[Context]) -> str:
    """Return a file of filters for oslo.rootwrap, with two lines for each context."""
    file = r"--config-file, /etc/(?!.*\.\.).*, "
    lines = [
        f"privsep-{_path(each)}{suffix}: RegExpFilter, privsep-helper, root, "
        f"privsep-helper, {files}--privsep_context, {_escaped(_path(each))}, "
        "--privsep_sock_path, /tmp/.*"
        for each in contexts
        for suffix, files in (("", file), ("-2", file + file))
    ]
    return _ROOTWRAP + "".join(f"{each}\n" for each in lines)


def _of_vendors(loaded: loader.Plugins) -> Iterable[Context]:
    """Yield the contexts of vendors' plugins, each once.

    :raises PluginFailed: one has no plain name, which could not be written into a rule.
    """
    done = set(own_contexts())
    for name, context in loaded.contexts:
        if context in done:
            continue
        done.add(context)
        # A line break would begin a line of its own.
        is_plain = _CONTEXT.fullmatch(_path(context))
        if not is_plain or not context.cfg_section.isprintable():
            raise exception.PluginFailed(
                f"plugin {name}: the context {exception.show(_path(context))} in group "
                f"{exception.show(context.cfg_section)} has no plain name",
                hint="this is a defect of the plugin: report it to its vendor",
            )
        yield context


def _path(context: Context) -> str:
    # oslo.privsep does not require it, os_acc's Context does.
    return context.pypath or ""


def _is_roots(program: str) -> bool:
    """Return whether root alone can replace a program, which a rule starts as root."""
    if not os.path.isabs(program):
        return False
    places = [program, *map(str, pathlib.Path(program).parents)]
    found = [os.stat(each) for each in places]
    return all(each.st_uid == 0 and not each.st_mode & 0o022 for each in found)


def _escaped(text: str) -> str:
    """Return a regular expression that matches a plain name or path."""
    return text.replace(".", r"\.")


def _of_form(form: re.Pattern[str], description: str) -> Callable[[str], str]:
    """Return the conversion of an argument that has to match a pattern."""

    def convert(text: str) -> str:
        if not form.fullmatch(text) or os.path.normpath(text) != text:
            raise argparse.ArgumentTypeError(f"{text!r} is not {description}")
        return text

    return convert
