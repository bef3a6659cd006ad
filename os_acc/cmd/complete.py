# SPDX-License-Identifier: Apache-2.0

"""``os-acc complete``: completion of commands, options and values in bash."""

import argparse
import shlex

from os_acc.cmd import base

# Bash replaces only $2, the part of a word behind its last colon.
_BASH = """\
_os_acc() {
  local line=${COMP_LINE:0:COMP_POINT}
  local word=${line##*[[:space:]]}
  COMPREPLY=($(compgen -W "$(os-acc complete "$line" 2> /dev/null)" -- "$word"))
  COMPREPLY=("${COMPREPLY[@]#"${word%"$2"}"}")
}
complete -o default -F _os_acc os-acc
"""
#: The command that lists the values of an argument, by the argument's ``dest``.
_LISTS = {"plugin": "plugin list -c Name", "provider": "provider list -c UUID"}
_LISTS |= dict.fromkeys(("address", "device"), "device list -c Address")
_LISTS |= dict.fromkeys(("consumer", "instance", "uuid"), "attached -c Consumer")


class Complete(base.Acting):
    """Print the function that completes commands, options and values in bash."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("line", nargs="?", help="for the function alone")
        return parser

    def configure(self) -> None:
        """Read no configuration: commands and options are completed without one."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if parsed_args.line is None:
            self.app.stdout.write(_BASH)
            return
        # The mark makes a word of the blank at the end.
        *words, word = shlex.split(f"{parsed_args.line}$")[1:]
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
            if action.dest in _LISTS:
                app.run_subcommand([*_LISTS[action.dest].split(), "-f", "value"])
            found = [str(each) for each in action.choices or ()]
        app.stdout.writelines(f"{each}\n" for each in found)
