# SPDX-License-Identifier: Apache-2.0

"""``os-acc setup``: the directory and the files that os_acc needs on its host."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pwd
import shlex
import subprocess
from collections.abc import Iterator

from os_acc import exception
from os_acc.cmd import base, privileges
from os_acc.host import vfio
from os_acc.objects.drivers import VFIO_PCI

_ROOTWRAP = "etc/nova/rootwrap.d"


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A file or directory of the host.

    :ivar command: the command that makes it.
    :ivar text: the text of a file; '' of a directory.
    :ivar needs: the lines that an existing file has to have.
    """

    path: str
    mode: int
    command: str
    text: str = ""
    needs: frozenset[str] = frozenset()

    def state(self) -> str:
        try:
            if not self.text:
                os.stat(self.path)
                return "present"
            with open(self.path, encoding="utf-8", errors="replace") as file:
                found = frozenset(file.read().splitlines())
        except FileNotFoundError:
            return "missing"
        except PermissionError:
            return "unreadable"
        return "present" if self.needs <= found else "differs"

    def make(self) -> None:
        directory = os.path.dirname(self.path) if self.text else self.path
        os.makedirs(directory, 0o755, exist_ok=True)
        if self.text:
            new = f"{self.path}~"  # sudo and rootwrap ignore such a name
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(new, flags, self.mode), "w", encoding="utf-8") as file:
                file.write(self.text)
            os.rename(new, self.path)
        os.chmod(self.path, self.mode)


class Setup(base.Listing):
    """Show what os_acc needs on this host, and the command that makes each part.

    With --write, makes what is missing, as root; a file that differs stays as it is.
    Ends with 1 if a part is left to make.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        privileges.add_user(parser)
        parser.add_argument("--write", action="store_true", help="make what is missing")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        rows = []
        for part in self._parts(parsed_args.user):
            state = part.state()
            if state == "missing" and parsed_args.write:
                self._make(part, parsed_args.user)
                state = "made"
            is_left = state not in ("present", "made")
            self.is_failed |= is_left
            rows.append((part.path, state, part.command if is_left else None))
        root = self.os_acc.root
        is_loaded = vfio.has_driver(root, VFIO_PCI)
        if not is_loaded and parsed_args.write:
            is_loaded = _load(VFIO_PCI)
        self.is_failed |= not is_loaded
        command = None if is_loaded else f"modprobe {VFIO_PCI}"
        rows.append((VFIO_PCI, "loaded" if is_loaded else "not loaded", command))
        self.remark_if_none_named()
        return ("Part", "State", "Command"), rows

    def _parts(self, user: str) -> Iterator[_Part]:
        """Yield the parts that the manual's page on the installation names."""
        root, settings = self.os_acc.root, self.settings
        state, contexts = settings.state_path, privileges.own_contexts()
        make = f"install -d -o {user} -g {user} -m 0750 {shlex.quote(state)}"
        yield _Part(state, 0o750, make)
        rootwrap = os.path.join(root, _ROOTWRAP)
        if os.path.isdir(rootwrap):
            path, mode = os.path.join(rootwrap, "os-acc.filters"), 0o644
            kind, text = "rootwrap", privileges.rootwrap(contexts)
        else:
            path, mode = os.path.join(root, "etc/sudoers.d/os-acc"), 0o440
            files = privileges.in_etc(self.os_acc.config.config_file or ())
            kind = " --configuration ".join((f"sudoers --user {user}", *files))
            helper = privileges.default_helper()
            text = privileges.sudoers(contexts, user, helper, files)
        make = f"os-acc privileges {kind} > {path}; chmod {mode:04o} {path}"
        # A file with more lines suffices: those of the helpers of vendors' plugins.
        needs = frozenset(each for each in text.splitlines() if each[:1] != "#")
        yield _Part(path, mode, make, text, needs)
        path = os.path.join(root, "etc/modules-load.d/vfio-pci.conf")
        yield _Part(path, 0o644, f"echo {VFIO_PCI} > {path}", f"{VFIO_PCI}\n")
        if settings.device_spec:
            values = [f"device_spec = {each}" for each in settings.device_spec]
            # A value of several lines would be more than one option.
            lines = [
                " ".join(each.split()) for each in (*values, f"state_path = {state}")
            ]
            path = os.path.join(root, "etc/os-acc/privileged.conf")
            print_it = shlex.join(["printf", r"%s\n", "[os_acc]", *lines])
            make = f"install -d {os.path.dirname(path)}; {print_it} > {path}"
            yield _Part(path, 0o644, make, "\n".join(("[os_acc]", *lines, "")))

    def _make(self, part: _Part, user: str) -> None:
        try:
            if part.text:
                part.make()
                return
            found = pwd.getpwnam(user)
            part.make()
            os.chown(part.path, found.pw_uid, found.pw_gid)
        except KeyError as error:
            raise exception.InvalidInput(
                f"there is no user {user}", hint="name nova-compute's: --user NAME"
            ) from error
        except OSError as error:
            raise exception.StateUnavailable(
                f"cannot make {part.path}: {error.strerror}", hint="run it as root"
            ) from error


def _load(module: str) -> bool:
    return subprocess.run(["modprobe", module], check=False).returncode == 0
