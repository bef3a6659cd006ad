# SPDX-License-Identifier: Apache-2.0

"""The os-acc command as an operator runs it: arguments, output and status."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

from oslo_config import cfg

from os_acc.cmd.main import OsAcc
from os_acc.testing import TestHost
from os_acc.testing.test_host import EVERYTHING


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """The result of one run."""

    status: int
    out: str
    err: str


def run(root: str, *arguments: str) -> Ran:
    """Run the command once, as in a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    app = OsAcc(root=root, config=cfg.ConfigOpts(), stdout=out, stderr=err)
    status = app.run([*arguments])
    return Ran(status, out.getvalue(), err.getvalue())


class Terminal(io.StringIO):
    """A stream that counts as a terminal."""

    def isatty(self) -> bool:
        return True


class Console:
    """A shell on the bench's host, with a configuration file."""

    def __init__(self, bench: TestHost, place: Path) -> None:
        self.bench = bench
        self.config_file = place / "nova.conf"
        os.makedirs(bench.state_path, exist_ok=True)
        self.configure()

    def configure(self, *specs: str, more: str = "") -> None:
        """Write a configuration with these specs (by default, for all) and more."""
        lines = [
            "[os_acc]",
            f"state_path = {self.bench.state_path}",
            "node_name = node1",
            *(f"device_spec = {spec}" for spec in specs or (EVERYTHING,)),
            more,
        ]
        self.config_file.write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str) -> Ran:
        """Run the command with the configuration file."""
        return run(self.bench.root, "--config-file", str(self.config_file), *arguments)

    def json(self, *arguments: str) -> Any:
        """Run a command that succeeds, and return its JSON output."""
        ran = self.run(*arguments, "-f", "json")
        assert ran.status == 0, ran.err
        return json.loads(ran.out)

    def device(self, address: str) -> dict[str, Any]:
        """Return a device's row in the listing."""
        (row,) = (
            row for row in self.json("device", "list") if row["Address"] == address
        )
        return row

    def state(self, address: str) -> str:
        """Return a device's state in the listing."""
        return str(self.device(address)["State"])

    def checks(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of ``os-acc check`` by the names of the checks."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in json.loads(self.run("check", "-f", "json").out):
            found.setdefault(row["Check"], []).append(row)
        return found

    def results(self, check: str) -> set[str]:
        """Return the results of one check."""
        return {row["Result"] for row in self.checks()[check]}
