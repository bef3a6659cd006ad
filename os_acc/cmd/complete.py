# SPDX-License-Identifier: Apache-2.0

"""``os-acc complete``: completion of commands, options and values in bash."""

from __future__ import annotations

import argparse
import io
import re
import shlex

from os_acc.cmd import base

# Bash replaces only $2, the part of a word behind its last colon. It expands neither
# the lines that it reads nor their parts.
_BASH = """\
_os_acc() {
  local line=${COMP_LINE:0:COMP_POINT} each
  local word=${line##*[[:space:]]}
  COMPREPLY=()
  while IFS= read -r each; do
    [[ $each == "$word"* ]] && COMPREPLY+=("${each#"${word%"$2"}"}")
  done < <("$1" complete "$line" 2> /dev/null)
}
complete -o default -F _os_acc os-acc
"""
#: A value that a shell takes as it is: records may have any text.
_PLAIN = re.compile(r"[\w:./=-]+", re.ASCII)
_HELP = ("-h", "--help", "--version")
#: The command that lists the values of an argument, by the argument's ``dest``.
_LISTS = {"plugin": "plugin list -c Name", "provider": "provider list -c UUID"}
_LISTS |= dict.fromkeys(("address", "device"), "device list -c Address")
_LISTS |= dict.fromkeys(("consumer", "instance", "uuid"), "attached -c Consumer")


class Complete(base.Acting):
    """Print the function that completes commands, options and values in bash."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("line", nargs="?", help="for the function alone")

    def configure(self) -> None:
        """Read no configuration: commands and options are completed without one."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if parsed_args.line is None:
            self.app.stdout.write(_BASH)
            return
        # The mark makes a word of the blank at the end.
        *words, word = shlex.split(f"{parsed_args.line}$")[1:] or [""]
        words = [each for each in words if each not in _HELP]
        app, parser = self.app, self.app.parser
        app.options, words = parser.parse_known_args(words, app.options)
        names, depth = map(str.split, app.command_manager.commands), len(words)
        found = [each[depth] for each in names if each[:depth] == words != each]
        if not found:
            command, name, _ = app.command_manager.find_command(words)
            parser = command(app, app.options).get_parser(name)
        options = parser._option_string_actions
        if word.startswith("-"):
            found = [*options]
        elif not found:
            action = options.get(words[-1])
            if action is None or action.nargs == 0:
                action, *_ = parser._get_positional_actions()
            found = [str(each) for each in action.choices or ()]
            if action.dest in _LISTS:
                out, app.stdout = app.stdout, io.StringIO()
                app.run_subcommand([*_LISTS[action.dest].split(), "-f", "value"])
                found = app.stdout.getvalue().splitlines()
                app.stdout = out
        plain = filter(_PLAIN.fullmatch, found)
        app.stdout.writelines(f"{each}\n" for each in plain)
