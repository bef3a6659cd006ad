# SPDX-License-Identifier: Apache-2.0

"""The ordinary users of the machine."""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    """An account without any capability."""

    name: str
    uid: int
    gid: int
    home: Path

    @classmethod
    def named(cls, name: str) -> OrdinaryUser:
        """Return the account ``name``, which :mod:`.inside` has created."""
        entry = pwd.getpwnam(name)
        return cls(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` as this user, started by root."""
        ids = [f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups"]
        return ["setpriv", *ids, "--", *argv]

    def run(
        self, *argv: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user; its output is text, unchecked."""
        return subprocess.run(
            self.command(argv),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=self.home,
            env=None if env is None else dict(env),
        )
