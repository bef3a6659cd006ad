# SPDX-License-Identifier: Apache-2.0

"""Bash completes commands, options and values of the command on a simulated host."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from oslo_config import cfg

from os_acc.cmd.device_states import DeviceStatus
from os_acc.cmd.main import OsAcc
from os_acc.testing import uuid_of
from tests.unit.cmd.console import Console, run

GPU = "0000:17:00.0"
#: ``$2`` of the function: readline's word begins behind a blank or a colon.
_COMPLETED = """\
source "$1"
COMP_LINE=$2 COMP_POINT=${#2}
_os_acc os-acc "${2##*[[:space:]:]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


class Bash:
    """Bash with the completion, and the command on a simulated host."""

    def __init__(self, console: Console, place: Path) -> None:
        self._function = place / "completion"
        self._function.write_text(console.run("complete").out)
        self._programs = place / "programs"
        self._programs.mkdir()
        self.install(console.bench.root, console.config_file)

    def install(self, root: str, config_file: Path) -> None:
        program = self._programs / "os-acc"
        program.write_text(
            f"#!{sys.executable}\nimport sys\nfrom os_acc.cmd.main import OsAcc\n"
            f"line = ['--config-file', {str(config_file)!r}, *sys.argv[1:]]\n"
            f"sys.exit(OsAcc(root={root!r}).run(line))\n"
        )
        program.chmod(0o755)

    def complete(self, line: str) -> set[str]:
        """Return COMPREPLY for a line with the cursor at its end."""
        ran = subprocess.run(
            ["bash", "--norc", "-c", _COMPLETED, "bash", self._function, line],
            env={**os.environ, "PATH": f"{self._programs}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stderr == ""
        return set(ran.stdout.split())


@pytest.fixture
def bash(console: Console, tmp_path: Path) -> Bash:
    return Bash(console, tmp_path)


def listed(console: Console, *command: str) -> set[str]:
    """Return the first column of a listing."""
    return set(console.run(*command, "-f", "value").out.split())


def test_commands_and_options_are_completed(bash):
    assert bash.complete("os-acc dev") == {"device"}
    assert bash.complete("os-acc --debug device re") == {"release"}
    assert bash.complete("os-acc --sim") == {"--simulated"}
    assert bash.complete("os-acc device list --sta") == {"--state"}


def test_the_states_are_completed(bash):
    assert bash.complete("os-acc device list --state ") == {
        each.value for each in DeviceStatus
    }
    assert bash.complete("os-acc device list --long --state q") == {"quarantined"}


def test_the_addresses_are_completed(bash, console):
    devices = listed(console, "device", "list", "-c", "Address")
    assert GPU in devices
    assert bash.complete("os-acc device show ") == devices
    # Bash replaces the part behind the last colon.
    assert bash.complete("os-acc conformance --device 0000:17:") == {"00.0", "00.1"}


def test_the_uuids_are_completed(bash, console):
    providers = listed(console, "provider", "list", "-c", "UUID")
    ran = console.run("plug", "--instance", uuid_of(1), "--provider", min(providers))
    assert ran.status == 0, ran.err
    assert bash.complete("os-acc unplug ") == {uuid_of(1)}
    assert bash.complete("os-acc device list --consumer f") == set()
    assert bash.complete("os-acc plug --provider ") == providers


def test_the_plugins_are_completed(bash, console):
    names = listed(console, "plugin", "list", "-c", "Name")
    assert "nvme" in names
    assert bash.complete("os-acc conformance --plugin ") == names


@pytest.mark.parametrize(
    "line",
    ["unknown ", "metrics ", "device show 'x", "plug --image ", "--config-file "],
)
def test_files_alone_are_left_for_other_lines(bash, line):
    assert bash.complete(f"os-acc {line}") == set()


def test_a_host_that_cannot_be_read_completes_commands(bash, console, tmp_path):
    bash.install(console.bench.root, tmp_path / "missing")
    assert bash.complete("os-acc device list --state f") == {"free", "faulty"}
    assert bash.complete("os-acc device show ") == set()
    assert bash.complete("os-acc unplug ") == set()


def test_completion_changes_nothing(bash, bench):
    before = {path: path.lstat().st_mtime_ns for path in Path(bench.root).rglob("*")}
    state = set(Path(bench.state_path).rglob("*"))
    assert bash.complete("os-acc device show ")
    assert bash.complete("os-acc plug --provider ")
    assert before == {path: path.lstat().st_mtime_ns for path in before}
    assert state == set(Path(bench.state_path).rglob("*"))


def test_the_completion_needs_no_configuration(tmp_path):
    ran = run(str(tmp_path), f"--config-file={tmp_path / 'missing'}", "complete")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.endswith("complete -o default -F _os_acc os-acc\n")


def test_a_recorded_value_is_neither_run_nor_offered(
    console, bash, tmp_path, monkeypatch
):
    """A service owns the records, and root completes."""
    mark = tmp_path / "mark"
    (tmp_path / "programs/os-acc").write_text(
        f"#!/bin/sh\nprintf '%s\\n' '$(touch${{IFS}}{mark})' '{uuid_of(1)}'\n"
    )
    assert uuid_of(1) in bash.complete("os-acc unplug ")
    assert not mark.exists()
    out = io.StringIO()
    app = OsAcc(root=console.bench.root, config=cfg.ConfigOpts(), stdout=out)
    found = [f"$(touch {mark})", uuid_of(1)]

    def listed(argv: list[str]) -> int:
        app.stdout.writelines(f"{each}\n" for each in found)
        return 0

    real = app.run_subcommand
    monkeypatch.setattr(
        app,
        "run_subcommand",
        lambda argv: listed(argv) if argv[0] == "attached" else real(argv),
    )
    assert app.run(["complete", "os-acc unplug "]) == 0
    assert out.getvalue().split() == [uuid_of(1)]


def test_help_and_version_complete_nothing_of_their_own(bash):
    assert "device" in bash.complete("os-acc --version dev")


def test_a_line_without_a_blank_names_the_commands(console):
    ran = console.run("complete", "os-acc")
    assert ran.status == 0
    assert "device" in ran.out.split()
