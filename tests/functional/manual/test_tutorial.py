# SPDX-License-Identifier: Apache-2.0

"""The tutorial for plugins, followed word for word.

The reader's environment is one of its own, with the packages of the environment of
this test: ``pip`` installs the reader's packages from their sources, without a network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.functional.manual import pages
from tests.functional.manual.pages import PageFile

PAGE = Path(__file__).resolve().parents[3] / "doc/source/contributor/tutorial.rst"
BLOCKS = list(pages.blocks(PAGE))
#: The lines that each plugin of the tutorial may have.
LIMITS = {"os_acc_acme/plugin.py": 60, "os_acc_acme_vgpu/plugin.py": 100}
#: Rules of ruff for the package of ``os-acc plugin new``.
RULES = "E,F,W,I,B,UP,SIM,RUF,PT,C4,PIE,RET"
_SECONDS = re.compile(r"\bin \d+\.\d+s(?: \(\d+:\d+:\d+\))?")
#: The programs of the environment, each with the import of its function.
_PROGRAMS = {
    "os-acc": "from os_acc.cmd.main import main",
    "pip": "from pip._internal.cli.main import main",
    "pytest": "from pytest import main",
}


class Reader:
    """A reader with a shell: its directory lasts from one command to the next."""

    def __init__(self, top: Path) -> None:
        self.directory = top / "workplace"
        self.directory.mkdir()
        self._where = top / "where"
        environment = top / "environment"
        make_environment(environment)
        self._variables = {
            **os.environ,
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INDEX": "1",
            # pip inverts this variable: 0 turns the isolation off.
            "PIP_NO_BUILD_ISOLATION": "0",
            "PYTEST_ADDOPTS": f"-p no:cacheprovider --basetemp={top / 'tests'}",
            # stevedore caches entry points.
            "XDG_CACHE_HOME": str(top / "cache"),
        }
        # The reader runs the tests of the package, not those of this run.
        for name in ("PYTEST_CURRENT_TEST", "PYTHONPATH"):
            self._variables.pop(name, None)

    def run(self, command: str) -> str:
        """Run a command; return its output."""
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{command}\npwd > '{self._where}'"],
            cwd=self.directory,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        self.directory = Path(self._where.read_text().strip())
        return ran.stdout

    def write(self, file: PageFile) -> None:
        """Write a file of the page into a directory that exists."""
        (self.directory / file.path).write_text(file.text, encoding="utf-8")


def make_environment(directory: Path) -> None:
    """Make an environment that also sees the packages of this one."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", directory], check=True
    )
    site = sysconfig.get_path("purelib", vars={"base": str(directory)})
    below = sysconfig.get_path("purelib")
    # Unlike a plain line, this also reads the .pth files of editable packages there.
    line = f"import site; site.addsitedir({below!r})\n"
    Path(site, "packages_of_the_test.pth").write_text(line)
    for name, code in _PROGRAMS.items():
        program = directory / "bin" / name
        program.write_text(
            f"#!{directory / 'bin' / 'python'} -P\n"
            f"import sys\n{code}\nsys.exit(main())\n"
        )
        program.chmod(0o755)


def test_each_block_of_the_page_is_followed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("code-block::") == len(BLOCKS)
    commands = [each for block in BLOCKS if isinstance(block, list) for each in block]
    assert len(commands) == len(re.findall(r"^   \$ ", text, re.MULTILINE)) > 10


@pytest.mark.parametrize(("path", "limit"), LIMITS.items())
def test_each_plugin_is_short(path: str, limit: int) -> None:
    (text,) = (
        block.text
        for block in BLOCKS
        if isinstance(block, PageFile) and block.path == path
    )
    assert len(text.splitlines()) <= limit


def test_the_tutorial_is_followed_word_for_word(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for block in BLOCKS:
        if isinstance(block, PageFile):
            reader.write(block)
            continue
        for command in block:
            printed = reader.run(command.text)
            assert _timeless(printed) == _timeless(command.output), command.text
        # Both the package as it is made and the files of the page keep the style.
        for package in (tmp_path / "workplace").iterdir():
            if package.is_dir():
                check_style(package)


def check_style(package: Path) -> None:
    """Check a package with ruff, as its vendor would."""
    for command in (["check", "--select", RULES], ["format", "--check"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "--isolated", "."],
            cwd=package,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def _timeless(text: str) -> str:
    return _SECONDS.sub("in SECONDS", text)
