# SPDX-License-Identifier: Apache-2.0

"""A host with AMD/Xilinx cards, and programs that simulate XRT's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from os_acc.testing import HostSpec, TestHost, hosts, image_directory

MANAGEMENT, USER = "0000:3b:00.0", "0000:3b:00.1"
OTHER_USER = "0000:af:00.1"
INTERFACE = hosts.XRT_INTERFACE
ADDER = image_directory.XCLBIN_ID
CIPHER = "54754387-411c-4c16-8265-245b0241d0a2"


def two_cards() -> HostSpec:
    return HostSpec((*hosts.alveo("0000:3b", 0), *hosts.alveo("0000:af", 1, card=2)))


class XrtHost(TestHost):
    """A host with cards on XRT's drivers, and scripts for XRT's programs."""

    def __init__(self, place: Path, spec: HostSpec, **options: Any) -> None:
        self.xrt = place / "xrt"
        self.tools = self.xrt / "bin"
        super().__init__(place, spec, xrt_tools=str(self.tools), **options)
        self.tools.mkdir(parents=True)
        self.tools.chmod(0o755)
        script = Path(__file__).with_name("tool.py").read_text()
        for name in ("xbmgmt", "xbutil"):
            tool = self.tools / name
            tool.write_text(f"#!{sys.executable} -IS\n{script}")
            tool.chmod(0o755)
        self.behave()

    def behave(self, **behaviours: str) -> None:
        """Set the behaviour of programs; by default, a program works."""
        settings = {"root": self.root, **behaviours}
        (self.xrt / "settings.json").write_text(json.dumps(settings))

    def upload(self, name: str = "adder", own_id: str = ADDER, **more: Any) -> str:
        """Put an xclbin into the host's directory; return its id."""
        return self.images.put_xclbin(name, own_id, **more)

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs of the programs, in order."""
        log = self.xrt / "log"
        if not log.exists():
            return []
        return [json.loads(line) for line in log.read_text().splitlines()]

    def ran(self) -> list[str]:
        return [f"{run['tool']} {run['what']}" for run in self.runs()]

    def hardware(self) -> str:
        """Return the xclbin that xclmgmt loaded into a card most recently."""
        return (self.xrt / "hardware").read_text()

    def let_go(self) -> None:
        (self.xrt / "go").touch()
        super().let_go()

    def rename_tool(self, name: str, to: str) -> None:
        (self.tools / name).rename(self.tools / to)

    def without_tool(self, name: str) -> None:
        (self.tools / name).unlink()

    def open_by_host(self, node: str) -> None:
        """Add a process of the host that has a node of a card open."""
        process = Path(self.root, "proc/4242")
        (process / "fd").mkdir(parents=True)
        (process / "comm").write_text("inference\n")
        (process / "fd/3").symlink_to(node)
