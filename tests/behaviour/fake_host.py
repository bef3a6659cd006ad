# SPDX-License-Identifier: Apache-2.0

"""The host under test on the simulated kernel."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

from os_acc import service
from os_acc.privsep import holders as privsep_holders
from os_acc.testing import (
    DriverSpec,
    FakeKernel,
    FunctionSpec,
    HostSpec,
    NodeSpec,
    TestHost,
    drivers,
    helper,
    holders,
    hosts,
    nodes,
    specs,
)
from os_acc.testing.tree import Transaction, Tree

from . import library
from .host import HostUnderTest, Places

PLACES = Places(
    pf="0000:81:00.0",
    near="0000:41:00.0",
    single="0000:82:00.0",
    no_reset="0000:00:10.0",
    card=("0000:00:11.0", "0000:00:11.1"),
    pair=("0000:02:00.0", "0000:02:00.1"),
    bridge="0000:80:00.0",
    chipset=("0000:00:1f.0", "0000:00:1f.2", "0000:00:1f.3"),
    slot="0000:01:00.0",
)
_NODES = (
    NodeSpec("0", 984, distances=(10, 20)),
    NodeSpec("1", 1003, distances=(20, 10)),
)


def _edu(
    address: str, numa_node: int = -1, *reset: str, port: str = ""
) -> FunctionSpec:
    return FunctionSpec(
        address,
        0x1234,
        0x11E8,
        0x00FF00,
        subsystem_vendor=0x1AF4,
        subsystem_product=0x1100,
        revision=0x10,
        numa_node=numa_node,
        parent=port,
        reset_methods=reset,
    )


def machine() -> HostSpec:
    """Return the machine of the kernel lane, without parts that no scenario uses."""
    near, pf = hosts.nvme_sriov("0000:41", 1, 0), hosts.nvme_sriov("0000:81", 0, 1)
    disk = FunctionSpec(
        PLACES.card[1],
        0x1B36,
        0x0010,
        0x010802,
        "nvme",
        0x1AF4,
        0x1100,
        group_of=PLACES.card[0],
        reset_methods=("flr",),
        devices=(specs.nvme(2, "card"),),
    )
    return HostSpec(
        functions=(
            _edu(PLACES.no_reset),
            _edu(PLACES.card[0]),
            disk,
            hosts.root_port("0000:00:12.0"),
            _edu(PLACES.slot, -1, "bus", port="0000:00:12.0"),
            hosts.root_port("0000:00:19.0"),
            # The kernel finds the first one while it is alone on the bus.
            _edu(PLACES.pair[0], -1, "bus", port="0000:00:19.0"),
            dataclasses.replace(
                _edu(PLACES.pair[1], port="0000:00:19.0"), group_of=PLACES.pair[0]
            ),
            *hosts.chipset("0000:00:1f"),
            hosts.root_port("0000:40:00.0", 0),
            dataclasses.replace(near, parent="0000:40:00.0"),
            hosts.root_port(PLACES.bridge, 1),
            hosts.root_port("0000:80:01.0", 1),
            dataclasses.replace(pf, parent=PLACES.bridge),
            _edu(PLACES.single, 1, "bus", port="0000:80:01.0"),
        ),
        nodes=_NODES,
    )


class _Kernel(FakeKernel):
    """Gives each privilege context of this one process only its own capabilities."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self._asking = threading.local()

    def probe_vfio_group(self, group: int) -> int:
        error = super().probe_vfio_group(group)
        if error == errno.EACCES and getattr(self._asking, "reads_all", False):
            with Tree(self.root).transaction() as tree:
                return errno.EBUSY if holders.holds_group(tree, group) else 0
        return error

    def probe_vfio_device(self, name: str) -> int:
        error = super().probe_vfio_device(name)
        if error == errno.EACCES and getattr(self._asking, "reads_all", False):
            with Tree(self.root).transaction() as tree:
                return errno.EBUSY if holders.holds(tree, name) else 0
        return error

    def look_with_capability(
        self,
        nodes: set[str],
        groups: Iterable[int | None],
        mdevs: Iterable[str] = (),
    ) -> privsep_holders.Holders:
        """Allow it to ``inspect``, which keeps CAP_DAC_READ_SEARCH."""
        self._asking.reads_all = True
        try:
            return _LOOK(nodes, groups, mdevs)
        finally:
            self._asking.reads_all = False


_LOOK = privsep_holders._holders


class FakeHost(HostUnderTest):
    """A simulated machine in an empty directory."""

    short_timeout = 3.0

    def __init__(
        self, directory: Path, *, cdev: bool = False, groups: bool = True
    ) -> None:
        spec = dataclasses.replace(machine(), vfio_cdev=cdev, vfio_groups=groups)
        host = TestHost(directory, spec, kernel_type=_Kernel)
        self._cdev = cdev
        self.kernel = host.kernel
        self._held: str | None = None
        self._pulled_out: FunctionSpec | None = None
        self._changes = contextlib.ExitStack()
        look = self.kernel.look_with_capability
        for change in (
            host.installed(),
            helper.privileged_here(),
            mock.patch.object(privsep_holders, "_holders", look),
            mock.patch.object(service, "nodes", service.Nodes()),
        ):
            self._changes.enter_context(change)
        super().__init__(PLACES, library.Options(host.root, host.state_path))

    def helper_command(self, *, needed: bool) -> str:
        return helper.command(self.root) if needed else ""

    def store(self, path: str, text: str) -> None:
        self.kernel.write(self.kernel.path(path), text)

    def wait_until_running(self, address: str) -> None:
        assert self.driver(address) == "nvme"

    def load(self, driver: str, loaded: bool = True) -> None:
        harmless = driver in drivers.MANAGE_DMA
        with Tree(self.root).transaction() as tree:
            if loaded:
                drivers.register(tree, DriverSpec(driver, manages_dma=harmless))
            else:
                drivers.unregister(tree, driver)

    def swap_to_disk(self, on: bool) -> None:
        line = "/dev/nvme2n1 partition 65532 0 -2\n" if on else ""
        self._put("proc/swaps", f"Filename Type Size Used Priority\n{line}")

    def use_disk_in_kernel(self, on: bool) -> None:
        if on:
            self.kernel.claim("nvme2n1")
        else:
            self.kernel.unclaim("nvme2n1")
            assert self.kernel.lost() == ()

    def reserve_huge_pages(self, node: int, size_kb: int, count: int) -> None:
        with Tree(self.root).transaction() as tree:
            nodes.reserve_huge_pages(tree, node, size_kb, count)

    def switch_cpu(self, cpu: int, on: bool) -> None:
        with Tree(self.root).transaction() as tree:
            nodes.switch(tree, _NODES, cpu, on=on)

    def signal(self, pid: int, number: int) -> None:
        os.kill(pid, number)

    def hold(self, address: str) -> None:
        self.kernel.chown(address)
        self.kernel.hold(address, iommufd=self._cdev)
        self._held = address

    def let_go(self) -> None:
        if self._held is not None:
            self.kernel.let_go(self._held)
            if self.exists(self._held):
                self.kernel.chown(self._held, back=True)
            self._held = None

    def hand_over(self, address: str) -> None:
        self.kernel.chown(address)

    def pull_out(self) -> None:
        self._pulled_out = self.kernel.hot_unplug(self.places.slot)

    def begin_to_pull_out(self) -> None:
        self.pull_out()

    def wait_until_pulled_out(self) -> None:
        assert not self.exists(self.places.slot)

    def put_in(self) -> None:
        assert self._pulled_out is not None
        self.kernel.hot_plug(self._pulled_out)

    def close(self) -> None:
        library.end()
        self._changes.close()

    def _put(self, path: str, text: str) -> None:
        tree: Transaction
        with Tree(self.root).transaction() as tree:
            tree.put(path, text)
