# SPDX-License-Identifier: Apache-2.0

"""The example plugins of all versions of the contract, installed as a vendor does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from os_acc import plugins

TOP = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((TOP / "examples").glob("*/pyproject.toml"))


def install(example: Path, site: Path) -> None:
    """Write the metadata that pip would install: entry points need no network."""
    project = tomllib.loads((example / "pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    metadata = site / f"{name}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
    )
    (metadata / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{key} = {at}\n" for key, at in points.items())
            for group, points in project["entry-points"].items()
        )
    )


def run(example: Path, tmp_path: Path, *arguments: str) -> str:
    """Run Python with an example installed; return its output."""
    install(example, tmp_path / "site")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            map(str, (tmp_path / "site", example, TOP)),
        ),
        # stevedore keeps the entry points that it has found.
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=example,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_is_an_example():
    assert EXAMPLES


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda each: each.parent.name)
def test_the_tests_of_an_example_pass(project, tmp_path):
    options = ("-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}")
    output = run(project.parent, tmp_path, "-m", "pytest", *options)
    assert re.search(r"^\d+ passed in", output, re.MULTILINE), output


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda each: each.parent.name)
def test_an_example_is_found_by_its_entry_point(project, tmp_path):
    program = (
        "from os_acc import plugins\n"
        "for group, options in plugins.list_opts():\n"
        "    print(group, *(option.name for option in options))\n"
    )
    output = run(project.parent, tmp_path, "-c", program)
    found = tomllib.loads(project.read_text())["project"]["entry-points"]
    for name in found[plugins.NAMESPACE]:
        assert f"os_acc_{name} " in output


def test_the_examples_are_not_in_the_wheel():
    packages = {"os_acc"}
    text = (TOP / "setup.cfg").read_text()
    section = re.search(r"^packages =\n((?: +\w+\n)+)", text, re.MULTILINE)
    assert section
    assert set(section[1].split()) == packages
