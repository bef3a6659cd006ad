# SPDX-License-Identifier: Apache-2.0

"""apparmor_parser compiles the rules for a confined nova-compute."""

from __future__ import annotations

import subprocess
from pathlib import Path

from os_acc.bitstreams.options import STATE_PATH
from os_acc.privsep import kernel

RULES = Path(__file__).parents[3] / "etc/apparmor.d/abstractions/os-acc"
#: The features of a kernel: that of this machine may lack AppArmor.
FEATURES = "/etc/apparmor.d/abi/3.0"
PROFILE = f"""
profile nova-compute /usr/bin/nova-compute {{
  include "{RULES}"
}}
"""


def test_the_rules_can_be_compiled(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.write_text(PROFILE)
    command = ["apparmor_parser", "--skip-kernel-load", "--skip-cache", "--stdout"]
    done = subprocess.run(
        [*command, "--features-file", FEATURES, profile],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout


def test_the_rules_name_the_directories_of_os_acc() -> None:
    text = RULES.read_text()
    for directory in (STATE_PATH.default, f"/{kernel.COPIES}", kernel.LOCKS):
        assert f"{directory}/ rw,\n" in text
        assert f"{directory}/** rwk,\n" in text
