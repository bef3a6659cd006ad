# SPDX-License-Identifier: Apache-2.0

"""The quick start of the manual, followed word for word.

The package of this environment replaces the one that the page installs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.unit.cmd.golden_files import GOLDEN, expect

PAGE = Path(__file__).resolve().parents[2] / "doc/source/install/quickstart.rst"
_STEP = re.compile(
    r"^\.\. code-block:: console\n   :name: quickstart-(?P<name>\S+)\n\n"
    r"(?P<commands>(?:   .+\n)+)"
    r"(?:\n\.\. literalinclude:: (?P<output>\S+)\n)?",
    re.MULTILINE,
)
INSTALL = "install"
GPU = "0000:17:00.0"


@dataclass(frozen=True)
class Step:
    """A block of commands on the page; ``output``: the file that the page shows."""

    name: str
    commands: list[str]
    output: Path | None


def steps() -> Iterator[Step]:
    for match in _STEP.finditer(PAGE.read_text(encoding="utf-8")):
        text = match["commands"].replace("\\\n", "")
        prompts = [line.strip() for line in text.splitlines()]
        assert all(line.startswith("$ ") for line in prompts), match["name"]
        output = match["output"] and (PAGE.parent / match["output"]).resolve()
        yield Step(match["name"], [line[2:] for line in prompts], output or None)


def test_each_block_of_commands_is_a_step() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("$ ") == sum(len(each.commands) for each in steps())
    assert text.count("code-block::") == len(list(steps()))


def test_the_quick_start_is_followed_word_for_word(tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
    }
    for step in steps():
        if step.name == INSTALL:
            assert (scripts / "os-acc").exists()
            continue
        for command in step.commands:
            ran = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert (ran.returncode, ran.stderr) == (0, ""), command
            if step.output is None:
                # The page shows no output, so there is none.
                assert ran.stdout == "", command
            else:
                assert step.output.parent == GOLDEN
                expect(step.output.name, ran.stdout)
    driver = tmp_path / "myhost/host/sys/bus/pci/devices" / GPU / "driver"
    assert driver.resolve().name == "nouveau"
    assert "failed" not in (tmp_path / "check.txt").read_text()
