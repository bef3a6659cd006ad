# SPDX-License-Identifier: Apache-2.0

"""The manual has only the figures of full runs that passed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import figures

ROOT = Path(__file__).parents[2]
_TESTS = """
from tests import run_figures

def test_counted(request):
    run_figures.note(request.node, "things", 3)

def test_failing(request):
    assert not request.config.getoption("--fail")
"""
_PLUGIN = """
def pytest_addoption(parser):
    parser.addoption("--fail", action="store_true")
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return the folder with the figures of lanes; it has one run, of ``stress``."""
    (tmp_path / "test_file.py").write_text(_TESTS)
    (tmp_path / "conftest.py").write_text(_PLUGIN)
    folder = tmp_path / "figures"
    folder.mkdir()
    return folder


def run(runs: Path, *arguments: str) -> None:
    """Run two tests as a lane does."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.shares"]
    command += ["-p", "tests.run_figures", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command += ["--rootdir", str(ROOT), "--figures", str(runs / "stress.json")]
    command += [*arguments, str(runs.parent / "test_file.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == (1 if "--fail" in arguments else 0), done.stdout


def carried(runs: Path, manual: dict[str, Any]) -> dict[str, Any]:
    """Carry the figures into the manual, and return the manual's figures."""
    path = runs.parent / "manual.json"
    path.write_text(json.dumps(manual))
    try:
        figures.carry(runs, path)
    finally:
        after = json.loads(path.read_text())
    assert isinstance(after, dict)
    return after


def test_a_full_run_is_carried_with_its_commit(runs):
    run(runs)
    head = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True)
    after = carried(runs, {"kernel": {"tests passed": 111}, "stress": {"old": 1}})
    assert after["kernel"] == {"tests passed": 111}
    recorded = after["stress"].pop("commit")
    assert recorded.removesuffix("-dirty") == commit.stdout.strip()
    assert after["stress"] == {"things": 3, "tests passed": 2}


@pytest.mark.parametrize("argument", ["--share=4", "--fail"])
def test_a_part_or_a_failure_is_refused(runs, argument):
    run(runs, argument)
    with pytest.raises(ValueError, match="not a full run that passed"):
        carried(runs, {"stress": {"things": 30}})
    assert json.loads((runs.parent / "manual.json").read_text()) == {
        "stress": {"things": 30}
    }


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"things": 3, "tests passed": 2}, "not a full run"),
        ({"commit": "", "full": True, "figures": {"things": 3}}, "commit is unknown"),
    ],
)
def test_what_does_not_say_that_it_is_full_is_refused(runs, written, why):
    (runs / "stress.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match=why):
        carried(runs, {})


@pytest.mark.parametrize("lane", ["py3", "stress", "openstack", "nova"])
def test_a_lane_with_arguments_writes_no_figures(lane):
    """A selection, another profile or a share are all arguments."""
    section = "testenv" if lane == "py3" else f"testenv:{lane}"
    text = (ROOT / "tox.ini").read_text().split(f"[{section}]\n")[1].split("\n[")[0]
    (command,) = (line for line in text.splitlines() if " pytest tests/" in line)
    assert command.endswith(" {posargs:--figures build/figures/{env_name}.json}")


def test_the_plugins_flows_have_added_crash_points():
    """A full run passes only if each point is survived, with each way of a kill."""
    stress = json.loads((ROOT / "doc/source/reference/figures.json").read_text())[
        "stress"
    ]
    # So many there were before.
    assert stress["crash: points"] > 912
    assert stress["crash: kills survived"] >= stress["crash: points"]
