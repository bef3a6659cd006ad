# SPDX-License-Identifier: Apache-2.0

"""The host under test on a real kernel, from an ordinary user's process."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from os_acc.objects.api import AcceleratorEntry
from tests.functional.kernel.moving_guest import Move

from . import library
from .host import HostUnderTest, Places
from .processes import AnotherProcess


class Root(Protocol):
    """:class:`.root_side.RootSide`, in this process or behind a pipe."""

    def store(self, path: str, text: str) -> None: ...
    def attached(self) -> frozenset[str]: ...
    def load(self, module: str, loaded: bool) -> None: ...
    def swap_on(self, node: str) -> None: ...
    def swap_off(self, node: str) -> None: ...
    def keep_journal(self, node: str) -> None: ...
    def end_journal(self) -> None: ...
    def signal(self, pid: int, number: int) -> None: ...
    def look_at(self, pid: int) -> tuple[dict[str, str], str, list[str]]: ...
    def hold(self, *names: str) -> None: ...
    def hold_as_defined(self, entries: list[AcceleratorEntry]) -> tuple[str, ...]: ...
    def write_in_guest(self, address: str) -> None: ...
    def hold_movable(self, name: str) -> None: ...
    def hold_by_libvirt(self, entries: list[AcceleratorEntry]) -> None: ...
    def migrate_by_libvirt(self, pairs: Mapping[str, str]) -> None: ...
    def move_to(self, name: str) -> Move: ...
    def save(self, name: str) -> tuple[int, bytes]: ...
    def media(self, *images: str) -> tuple[tuple[bool, str], ...]: ...
    def let_go(self) -> None: ...
    def hand_over(self, node: str) -> None: ...
    def pull_out(self) -> None: ...
    def begin_to_pull_out(self) -> None: ...
    def wait_until_pulled_out(self) -> None: ...
    def put_in(self) -> None: ...
    def set_power(self, on: bool) -> None: ...
    def pcie_error(self) -> None: ...
    def uncorrectable_error(self, address: str) -> None: ...
    def set_vf(self, interface: str, number: int, mac: str, vlan: int) -> None: ...


#: sudo has a path of its own, which does not contain a virtual environment.
SUDO = shlex.join(["sudo", "-n", str(Path(sys.executable).parent / "privsep-helper")])


class RealHost(HostUnderTest):
    """This machine; another object acts as root on it."""

    # In software emulation, the start of a process alone takes seconds.
    short_timeout = 30.0

    def __init__(
        self,
        places: Places,
        state_path: Path,
        root_side: Root,
        command: str = SUDO,
        spares: list[AnotherProcess] | None = None,
    ) -> None:
        self.root_side = root_side
        self._command = command
        self._spares = [] if spares is None else spares
        super().__init__(
            places, library.Options("/", str(state_path), initialize_timeout=240.0)
        )

    def helper_command(self, *, needed: bool) -> str:
        return self._command

    def launch(self) -> AnotherProcess:
        return self._spares.pop() if self._spares else super().launch()

    def store(self, path: str, text: str) -> None:
        self.root_side.store(path, text)

    def wait_until_running(self, address: str) -> None:
        self.wait_until(lambda: self._nvme_state(address) == "live")

    def load(self, driver: str, loaded: bool = True) -> None:
        self.root_side.load(driver, loaded)

    def swap_to_disk(self, on: bool) -> None:
        swaps = [line.split()[0] for line in _lines("/proc/swaps")[1:]]
        if on:
            disk = self.places.card[1]
            self.wait_until(lambda: bool(self._disks(disk)))
            self.root_side.swap_on(self._disks(disk)[0])
        elif swaps:
            self.root_side.swap_off(swaps[0])

    def use_disk_in_kernel(self, on: bool) -> None:
        if on:
            disk = self.places.card[1]
            self.wait_until(lambda: bool(self._disks(disk)))
            self.root_side.keep_journal(self._disks(disk)[0])
        else:
            self.root_side.end_journal()

    def reserve_huge_pages(self, node: int, size_kb: int, count: int) -> None:
        pages = f"sys/devices/system/node/node{node}/hugepages/hugepages-{size_kb}kB"
        self.store(f"{pages}/nr_hugepages", str(count))

    def switch_cpu(self, cpu: int, on: bool) -> None:
        self.store(f"sys/devices/system/cpu/cpu{cpu}/online", str(int(on)))

    def signal(self, pid: int, number: int) -> None:
        self.root_side.signal(pid, number)

    def hold(self, address: str) -> None:
        self.root_side.hold(address)

    def let_go(self) -> None:
        self.root_side.let_go()

    def hand_over(self, address: str) -> None:
        # A guest may open the one, and the probe of os_acc the other.
        for node in {self.node(address), self.group_node(address)}:
            self.root_side.hand_over(node)

    def pull_out(self) -> None:
        self.root_side.pull_out()

    def begin_to_pull_out(self) -> None:
        self.root_side.begin_to_pull_out()

    def wait_until_pulled_out(self) -> None:
        self.root_side.wait_until_pulled_out()

    def put_in(self) -> None:
        self.root_side.put_in()

    def close(self) -> None:
        """Keep the helpers: the next scenario uses them."""

    def _nvme_state(self, address: str) -> str:
        for path in Path(self._path(address, "nvme")).glob("nvme*/state"):
            return "".join(_lines(str(path)))
        return ""

    def _disks(self, address: str) -> list[str]:
        found = Path(self._path(address, "nvme")).glob("nvme*/nvme*n*")
        # With native multipath, nvme2c2n1 is a hidden path to the disk nvme2n1.
        nodes = (Path("/dev", re.sub(r"c\d+n", "n", each.name)) for each in found)
        return [str(node) for node in nodes if node.exists()]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        # The driver is being unbound.
        return []
