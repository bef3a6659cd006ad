# SPDX-License-Identifier: Apache-2.0

"""``os-acc setup``: the directory, the files and the module that os_acc needs."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import pwd
import shlex
import stat
import subprocess
from collections.abc import Iterator

from os_acc import exception
from os_acc.cmd import base, privileges
from os_acc.host import vfio
from os_acc.objects.drivers import VFIO_PCI

_FILTERS = "etc/nova/rootwrap.d/os-acc.filters"
_COLUMNS = ("Part", "State", "Command")
_DONE = ("present", "made", "loaded")


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A file or directory of the host.

    :ivar command: the command that makes it.
    :ivar text: the text of a file; '' of a directory.
    :ivar required: the lines that an existing file has to have; a file with more lines
        suffices: those of the helpers of vendors' plugins.
    """

    path: str
    mode: int
    command: str
    text: str = ""
    required: frozenset[str] = frozenset()

    def state(self, owner: int | None) -> str:
        """Return the state of the part; a part that others may change differs.

        :param owner: the user that a directory has to belong to; None: unknown.
        """
        try:
            found = os.stat(self.path)
            if self.text:
                text = pathlib.Path(self.path).read_text("utf-8", "replace")
                # An ordinary user makes them on a simulated host alone.
                is_owned = found.st_uid in (0, os.geteuid())
                is_right = is_owned and self.required <= {*text.splitlines()}
            else:
                is_owned = owner in (None, found.st_uid)
                is_right = is_owned and stat.S_ISDIR(found.st_mode)
        except FileNotFoundError:
            return "missing"
        except OSError:
            return "unreadable"
        return "present" if is_right and not found.st_mode & 0o022 else "differs"

    def make(self, uid: int, gid: int) -> None:
        """Make a missing part; no link is followed to it.

        :param uid: the owner of a directory, with the group ``gid``.
        :raises OSError: it cannot be made.
        """
        os.makedirs(os.path.dirname(self.path), 0o755, exist_ok=True)
        if not self.text:
            os.mkdir(self.path, 0o700)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            descriptor = os.open(self.path, flags)
            try:
                os.fchown(descriptor, uid, gid)
                os.fchmod(descriptor, self.mode)
            finally:
                os.close(descriptor)
            return
        new = f"{self.path}~"  # sudo and rootwrap ignore such a name
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(new, flags, self.mode), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), self.mode)
            file.write(self.text)
        os.rename(new, self.path)


class Setup(base.Listing):
    """Show what os_acc needs on this host, and the command that makes each part.

    With --write, makes what is missing, as root; a part that differs stays as it is.
    Ends with 1 if a part is left to make, or to correct.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        privileges.add_user(parser)
        parser.add_argument("--write", action="store_true", help="make what is missing")

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        user = _user(parsed_args.user)
        if user is None and parsed_args.write:
            raise exception.InvalidInput(
                f"the user {parsed_args.user} does not exist",
                hint="name nova-compute's: --user NAME",
            )
        # Before an invalid device_spec gets into root's configuration.
        self.remark_if_none_named()
        rows = []
        for part in self._parts(parsed_args.user):
            state = part.state(user.pw_uid if user else None)
            if state == "missing" and user and parsed_args.write:
                self._make(part, user)
                state = "made"
            command = part.command if state == "missing" else None
            rows.append((part.path, state, command))
        is_loaded = vfio.has_driver(self.os_acc.root, VFIO_PCI)
        if not is_loaded and parsed_args.write and not self.os_acc.options.simulated:
            is_loaded = _load(VFIO_PCI)
        command = None if is_loaded else f"modprobe {VFIO_PCI}"
        rows.append((VFIO_PCI, "loaded" if is_loaded else "not loaded", command))
        self.is_failed = any(row[1] not in _DONE for row in rows)
        if parsed_args.formatter != "table":
            return _COLUMNS, rows
        # A command that is folded into a table cannot be copied.
        self._commands += [row[2] for row in rows if row[2]]
        return _COLUMNS[:2], [row[:2] for row in rows]

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Print the commands below the table."""
        self._commands: list[str] = []
        status = super().run(parsed_args)
        self.app.stdout.writelines(f"{each}\n" for each in self._commands)
        return status

    def _parts(self, user: str) -> Iterator[_Part]:
        """Yield the parts that the manual's page on the installation names."""
        state, specs = self.settings.state_path, self.settings.device_spec
        make = f"install -d -o {user} -g {user} -m 0750 {shlex.quote(state)}"
        yield _Part(state, 0o750, make)
        yield self._rules(user)
        text = f"{VFIO_PCI}\n"
        yield self._file("etc/modules-load.d/vfio-pci.conf", f"echo {VFIO_PCI}", text)
        if specs:
            values = [f"device_spec = {each}" for each in specs]
            # A value of several lines would be more than one option; oslo.config
            # replaces a word behind a single $.
            lines = [
                " ".join(each.splitlines()).replace("$", "$$")
                for each in ("[os_acc]", *values, f"state_path = {state}")
            ]
            printing, text = shlex.join(["printf", r"%s\n", *lines]), "\n".join(lines)
            part = self._file("etc/os-acc/privileged.conf", printing, f"{text}\n")
            yield dataclasses.replace(part, required=frozenset(("[os_acc]",)))

    def _rules(self, user: str) -> _Part:
        """Return the file with the rules that start the helpers."""
        config, contexts = self.os_acc.config, privileges.own_contexts()
        rootwrap = os.path.dirname(os.path.join(self.os_acc.root, _FILTERS))
        if os.path.isdir(rootwrap) and not config.workarounds.disable_rootwrap:
            text = privileges.rootwrap(contexts)
            return self._file(_FILTERS, "os-acc privileges rootwrap", text)
        given, helper = config.config_file or (), privileges.default_helper()
        files = privileges.in_etc(given)
        if [*given] != files or config.config_dir or not os.path.exists(helper):
            self.remark(
                f"the rules are for {helper} with {', '.join(files)}: check "
                "them, or set [os_acc] helper_command"
            )
        printing = f"os-acc privileges sudoers --user {user}"
        printing += "".join(f" --configuration {each}" for each in files)
        text = privileges.sudoers(contexts, user, helper, files)
        return self._file("etc/sudoers.d/os-acc", printing, text, 0o440)

    def _file(self, name: str, printing: str, text: str, mode: int = 0o644) -> _Part:
        """Return a file of root, whose text a command prints as well."""
        path = os.path.join(self.os_acc.root, name)
        into = f"install -D -m {mode:04o} /dev/stdin {shlex.quote(path)}"
        lines = text.splitlines()
        required = frozenset(each for each in lines if each and each[0] != "#")
        return _Part(path, mode, f"{printing} | {into}", text, required)

    def _make(self, part: _Part, user: pwd.struct_passwd) -> None:
        try:
            part.make(user.pw_uid, user.pw_gid)
        except OSError as error:
            raise exception.StateUnavailable(
                f"cannot make {part.path}: {error.strerror}",
                hint="run it as root" if isinstance(error, PermissionError) else "",
            ) from error


def _user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _load(module: str) -> bool:
    try:
        return subprocess.run(["modprobe", module], check=False).returncode == 0
    except FileNotFoundError:
        # A container without kmod.
        return False
