# SPDX-License-Identifier: Apache-2.0

"""A host with AMD/Xilinx cards, XRT's tools and images for them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from os_acc.privsep import tools
from os_acc.testing import HostSpec, bitstreams, hosts
from tests.unit.fpga import FpgaBench

MANAGEMENT, USER = "0000:3b:00.0", "0000:3b:00.1"
OTHER_USER = "0000:af:00.1"
INTERFACE = hosts.XRT_INTERFACE
ADDER = bitstreams.XCLBIN_ID
CIPHER = "54754387-411c-4c16-8265-245b0241d0a2"


def two_cards() -> HostSpec:
    return HostSpec((*hosts.alveo("0000:3b", 0), *hosts.alveo("0000:af", 1, card=2)))


class XrtBench(FpgaBench):
    """Cards on XRT's drivers, and a stand-in for its tools."""

    def __init__(self, place: Path, spec: HostSpec, **more: object) -> None:
        super().__init__(place, spec, **more)
        self.xrt = place / "xrt"
        self.tools = self.xrt / "bin"
        self.tools.mkdir(parents=True)
        self.tools.chmod(0o755)
        script = Path(__file__).with_name("tool.py").read_text()
        for name in ("xbmgmt", "xbutil"):
            tool = self.tools / name
            tool.write_text(f"#!{sys.executable} -IS\n{script}")
            tool.chmod(0o755)
        self.behave()

    def behave(self, **behaviours: str) -> None:
        """Say how each tool is to behave; those not named work."""
        settings = {"root": self.root, **behaviours}
        (self.xrt / "settings.json").write_text(json.dumps(settings))

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        found = tools.Tools(str(self.tools))
        with super().installed(), mock.patch.object(tools, "current", found):
            yield

    def upload_xclbin(
        self,
        name: str = "adder",
        own_id: str = ADDER,
        interface: str | None = INTERFACE,
        **fields: Any,
    ) -> str:
        """Put an xclbin on the shelf; its id."""
        content = bitstreams.xclbin(interface, own_id=own_id)
        image_id = str(uuid.uuid4())
        told = {
            "id": image_id,
            "name": name,
            "tags": ["FPGA"],
            "accel:function_id": own_id,
            "accel:function_name": name,
            "os_hash_algo": "sha512",
            "os_hash_value": hashlib.sha512(content).hexdigest(),
        }
        (self.shelf / name).write_bytes(content)
        (self.shelf / f"{name}.json").write_text(json.dumps(told | fields))
        return image_id

    def runs(self) -> list[dict[str, Any]]:
        """How the tools were run, in order."""
        log = self.xrt / "log"
        if not log.exists():
            return []
        return [json.loads(line) for line in log.read_text().splitlines()]

    def ran(self) -> list[str]:
        return [f"{run['tool']} {run['what']}" for run in self.runs()]

    def hardware(self) -> str:
        """What xclmgmt has loaded into the card that was programmed last."""
        return (self.xrt / "hardware").read_text()

    def end(self) -> None:
        (self.xrt / "go").touch()
        super().end()

    def rename_tool(self, name: str, to: str) -> None:
        (self.tools / name).rename(self.tools / to)

    def without_tool(self, name: str) -> None:
        (self.tools / name).unlink()

    def open_by_host(self, node: str) -> None:
        """Let a process of the host have a node of a card open."""
        process = Path(self.root, "proc/4242")
        (process / "fd").mkdir(parents=True)
        (process / "comm").write_text("inference\n")
        (process / "fd/3").symlink_to(node)
