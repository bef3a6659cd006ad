# SPDX-License-Identifier: Apache-2.0

"""The host on which a scenario acts, on either kernel."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from unittest import mock

import os_acc
from os_acc import exception, privsep, service
from os_acc.attach import operator_actions
from os_acc.helper import client
from os_acc.host import vfio

from . import library
from .processes import AnotherProcess, helpers

_PATIENCE = 240.0
_DEVICES = "sys/bus/pci/devices"


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """The functions that every host under test has.

    :ivar pf: an SR-IOV controller of the nvme driver, on NUMA node 1, with up to
    four VFs.
    :ivar near: its twin on node 0, which never has VFs.
    :ivar single: a function alone in its group, without a driver, on node 1.
    :ivar no_reset: as ``single``, but without a reset method.
    :ivar card: two functions of one card and one IOMMU group: the first has
    no driver, the second has nvme and is a disk.
    :ivar pair: two functions of one slot and one group behind a root port, without
        drivers; neither can be reset alone.
    :ivar bridge: a root port.
    :ivar chipset: three functions of one group: an ISA bridge (lpc_ich can drive it), a
        controller of disks without any, and one that cannot be reset.
    :ivar slot: as ``single``, but removable, and on no node.
    """

    pf: str
    near: str
    single: str
    no_reset: str
    card: tuple[str, str]
    pair: tuple[str, str]
    bridge: str
    chipset: tuple[str, str, str]
    slot: str


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """The binding of a function; None: no driver, no override."""

    driver: str | None
    override: str | None = None


VFIO = Binding("vfio-pci", "vfio-pci")
Snapshot = Mapping[str, tuple[Binding, str, str]]


class HostUnderTest(abc.ABC):
    """A host, the events on it, and its observable state.

    On exit from the context manager the host is as on entry: guests have ended,
    leases are released, and every function has its first binding. After a passed
    scenario this has to hold already, except for the VFs.
    """

    #: Timeout in seconds of a write that is meant to exceed it; sufficient for all
    #: other writes.
    short_timeout: float

    def __init__(self, places: Places, options: library.Options) -> None:
        self.places = places
        self.options = options
        self.root = options.root
        self._at_first: Snapshot = {}

    # -- the library ---------------------------------------------------------

    def start(
        self,
        *claims: Mapping[str, Any],
        nova: tuple[Mapping[str, Any], ...] = (),
        write_timeout: float = 60.0,
        unplug_timeout: float = 120.0,
        helper_process: bool = False,
    ) -> None:
        """Initialize the library with these values of ``device_spec``.

        :param helper_process: the scenario needs the helper as a process.
        """
        self.options = dataclasses.replace(
            self.options,
            device_spec=tuple(json.dumps(claim) for claim in claims),
            nova=tuple(json.dumps(claim) for claim in nova),
            write_timeout=write_timeout,
            unplug_timeout=unplug_timeout,
            helper_command=self.helper_command(needed=helper_process),
        )
        self.again()

    def again(self) -> None:
        """Initialize the library again, as a starting service does."""
        library.make_ready(self.options)

    def another_process(self, *steps: str, **request: Any) -> AnotherProcess:
        """Start another service on the same host; see :mod:`.another_process`."""
        process = self.launch()
        process.instruct(self.options, {"steps": steps, **request})
        return process

    def launch(self) -> AnotherProcess:
        """Start another process."""
        return AnotherProcess.launch()

    @abc.abstractmethod
    def helper_command(self, *, needed: bool) -> str:
        """Return the command that starts the privileged helper."""

    @contextlib.contextmanager
    def helper_dies_in_call(self) -> Iterator[None]:
        """Kill the helper ``base`` with SIGKILL after it has received its next call."""
        channel = privsep.base.channel
        assert channel is not None
        writer: Any = channel.writer
        send = writer.send

        def send_and_kill(message: object) -> None:
            writer.send = send
            # A stopped helper cannot answer before it dies.
            pids = helpers(self.options, "base")
            for pid in pids:
                self.signal(pid, signal.SIGSTOP)
            send(message)
            for pid in pids:
                self.signal(pid, signal.SIGKILL)

        writer.send = send_and_kill
        yield
        assert writer.send != send_and_kill

    @staticmethod
    @contextlib.contextmanager
    def once_found_free(action: Callable[[], object]) -> Iterator[None]:
        """Run an action right after the library has found a device unused.

        A ``pytest.raises`` has to enclose this block: another error than the expected
        one explains why no device was found unused.
        """
        real, actions = client.Helper.check_free, [action]

        def check_free(*args: Any, **options: Any) -> None:
            real(*args, **options)
            while actions:
                actions.pop()()

        with mock.patch.object(client.Helper, "check_free", check_free):
            try:
                yield
            except exception.OsAccError as error:
                if actions:
                    raise AssertionError("nothing was ever found unused") from error
                raise
        assert not actions

    # -- observable state ----------------------------------------------------

    def binding(self, address: str) -> Binding:
        """Return the binding of a function."""
        override = self._read(address, "driver_override")
        return Binding(self.driver(address), None if override == "(null)" else override)

    def driver(self, address: str) -> str | None:
        """Return the driver of a function."""
        link = self._path(address, "driver")
        return os.path.basename(os.readlink(link)) if os.path.islink(link) else None

    def exists(self, address: str) -> bool:
        """Return whether the function is on the bus."""
        return os.path.exists(self._path(address))

    def vfs(self) -> tuple[str, ...]:
        """Return the VFs of ``places.pf``, in the order of their indexes."""
        names = (f"virtfn{index}" for index in range(4))
        links = (self._path(self.places.pf, name) for name in names)
        return tuple(
            os.path.basename(os.readlink(link))
            for link in links
            if os.path.islink(link)
        )

    def has_node(self, address: str) -> bool:
        """Return whether the device node through which QEMU opens a function exists."""
        return os.path.exists(self.node(address))

    def node(self, address: str) -> str:
        """Return the path of that node."""
        node = vfio.cdev(self.root, address)
        return self.root + node if node else self.group_node(address)

    def group_node(self, address: str) -> str:
        """Return the path of the node of a function's group."""
        group = os.path.basename(os.readlink(self._path(address, "iommu_group")))
        return os.path.join(self.root, "dev/vfio", group)

    def snapshot(self) -> Snapshot:
        """Return all state that os_acc could change."""
        return {
            address: (
                self.binding(address),
                self._read(address, "sriov_numvfs"),
                self._read(address, "sriov_drivers_autoprobe"),
            )
            for address in sorted(os.listdir(os.path.join(self.root, _DEVICES)))
        }

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait for a condition in another process or in the kernel.

        :raises TimeoutError: the condition has not become true.
        """
        deadline = time.monotonic() + _PATIENCE
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{true} stays false")
            time.sleep(0.02)

    # -- actions of the host's administrator -------------------------------------

    def bind(
        self, address: str, driver: str | None, override: str | None = None
    ) -> None:
        """Bind a function by hand, and set this override."""
        self._write(address, "driver_override", driver or "\n")
        if self.driver(address) is not None:
            self._write(address, "driver/unbind", address)
        if driver is not None:
            self.store("sys/bus/pci/drivers_probe", address)
        self._write(address, "driver_override", override or "\n")

    def make_vfs(self, count: int) -> None:
        """Create this number of VFs of ``places.pf``, bound to no driver."""
        self._write(self.places.pf, "sriov_drivers_autoprobe", "0")
        self._write(self.places.pf, "sriov_numvfs", str(count))
        self._write(self.places.pf, "sriov_drivers_autoprobe", "1")

    def set_node(self, address: str, node: int) -> None:
        """Correct the kernel's NUMA node of a function; -1: none.

        Documentation/ABI/testing/sysfs-bus-pci: a workaround for faulty firmware.
        """
        self._write(address, "numa_node", str(node))

    def run_vfs(self) -> None:
        """Bind the VFs, which os_acc has brought online, to the host's nvme driver."""
        for vf in self.vfs():
            self.store("sys/bus/pci/drivers_probe", vf)
        for vf in self.vfs():
            self.wait_until_running(vf)

    @abc.abstractmethod
    def wait_until_running(self, address: str) -> None:
        """Wait until the nvme driver has a function and keeps it."""

    @abc.abstractmethod
    def store(self, path: str, text: str) -> None:
        """Write an attribute as root."""

    @abc.abstractmethod
    def load(self, driver: str, loaded: bool = True) -> None:
        """Load or unload a driver of the kernel, such as pci-stub."""

    @abc.abstractmethod
    def swap_to_disk(self, on: bool) -> None:
        """Switch swap space on the disk of the card on or off."""

    @abc.abstractmethod
    def use_disk_in_kernel(self, on: bool) -> None:
        """Let a client inside the kernel open the disk of ``places.card`` exclusively.

        No file of sysfs or procfs shows it.
        """

    @abc.abstractmethod
    def reserve_huge_pages(self, node: int, size_kb: int, count: int) -> None:
        """Reserve this number of huge pages on a NUMA node."""

    @abc.abstractmethod
    def switch_cpu(self, cpu: int, on: bool) -> None:
        """Switch a CPU online or offline."""

    @abc.abstractmethod
    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process of root."""

    # -- guests and hotplug -------------------------------------------------------

    @abc.abstractmethod
    def hold(self, address: str) -> None:
        """Start a guest that holds a function."""

    @abc.abstractmethod
    def let_go(self) -> None:
        """End the guest, if there is one."""

    @abc.abstractmethod
    def hand_over(self, address: str) -> None:
        """Give a function's node to QEMU's user, as libvirt does."""

    @abc.abstractmethod
    def pull_out(self) -> None:
        """Remove the function of ``places.slot``."""

    @abc.abstractmethod
    def begin_to_pull_out(self) -> None:
        """Start to remove it; while it is held it stays."""

    @abc.abstractmethod
    def wait_until_pulled_out(self) -> None:
        """Wait until it is removed, after its holder has closed it."""

    @abc.abstractmethod
    def put_in(self) -> None:
        """Insert it again."""

    # -- setup and teardown ---------------------------------------------------------

    def __enter__(self) -> Self:
        self._at_first = self.snapshot()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        left = {} if kind else os_acc.attached()
        self._tidy()
        at_last = self.snapshot()
        for address, (binding, _numvfs, _autoprobe) in self._at_first.items():
            if at_last[address][0] != binding:
                self.bind(address, binding.driver, binding.override)
        self.close()
        if kind is None:
            assert left == {}
            assert at_last == self._at_first

    @abc.abstractmethod
    def close(self) -> None:
        """Release all resources of this process."""

    def _tidy(self) -> None:
        self.let_go()
        self.swap_to_disk(False)
        if not self.exists(self.places.slot):
            self.put_in()
        self._force_release()
        if self.vfs():
            self.make_vfs(0)

    def _force_release(self) -> None:
        try:
            manager = service.get()
        except exception.NotInitialized:
            return
        for consumer in os_acc.attached():
            with contextlib.suppress(exception.OsAccError):
                os_acc.unplug({"uuid": consumer})
        for lease in manager.store.leases():
            with contextlib.suppress(exception.OsAccError):
                operator_actions.release_device(
                    manager, lease.address, None, force=True
                )

    # -- internal ---------------------------------------------------------------------

    def _path(self, address: str, name: str = "") -> str:
        return os.path.join(self.root, _DEVICES, address, name).rstrip("/")

    def _write(self, address: str, name: str, text: str) -> None:
        self.store(f"{_DEVICES}/{address}/{name}", text)

    def _read(self, address: str, name: str) -> str:
        try:
            with open(self._path(address, name), encoding="ascii") as attribute:
                return attribute.read().strip()
        except FileNotFoundError:
            return ""
