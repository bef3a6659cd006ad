# SPDX-License-Identifier: Apache-2.0

"""The quick start of the manual on a simulated host, followed word for word.

The package of this environment replaces the one that the page installs.
``tests/functional/kernel/test_quickstart.py`` follows the page on a real host.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests import quickstart
from tests.unit.cmd.golden_files import GOLDEN, expect

GPU = "0000:17:00.0"


def test_each_block_of_commands_is_a_step() -> None:
    text = quickstart.PAGE.read_text(encoding="utf-8")
    simulated = list(quickstart.steps(quickstart.SIMULATED))
    real = list(quickstart.steps(quickstart.REAL))
    assert text.count("code-block::") == len(simulated) + len(real)
    for prompt, followed in (("$", simulated), ("#", real)):
        commands = re.findall(rf"^   {re.escape(prompt)} ", text, re.MULTILINE)
        assert len(commands) == sum(len(each.commands) for each in followed)


def test_the_reader_replaces_one_address_of_the_real_host() -> None:
    texts = [
        command.text
        for step in quickstart.steps(quickstart.REAL)
        for command in step.commands
    ]
    found = {each for text in texts for each in re.findall(r"\w+:\w\w:\w\w\.\w", text)}
    assert found == {quickstart.ADDRESS}


def test_the_quick_start_is_followed_word_for_word(tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
    }
    for step in quickstart.steps(quickstart.SIMULATED):
        if step.name == quickstart.INSTALL:
            assert (scripts / "os-acc").exists()
            continue
        for command in step.commands:
            ran = subprocess.run(
                ["bash", "-c", command.text],
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
