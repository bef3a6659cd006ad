# SPDX-License-Identifier: Apache-2.0

"""Root's actions on the real machine, while scenarios run as an ordinary user."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from os_acc.objects.api import AcceleratorEntry
from tests.functional.kernel import (
    aer,
    guest_definition,
    kernel_clients,
    kernel_modules,
    lane,
    libvirt_hosts,
    moving_guest,
    nvme_media,
    samples,
    sysfs,
    writing_guest,
)
from tests.functional.kernel.accounts import OrdinaryUser
from tests.functional.kernel.guest import InnerGuest
from tests.functional.kernel.hotplug import Hotplug
from tests.functional.kernel.machine import Machine
from tests.functional.kernel.vfio_device import VfioDevice

from .host import Places

#: Seconds in which a guest boots, in an emulation within an emulation.
_GUEST_SECONDS = 300.0


class RootSide:
    """The host's administrator, its hypervisor, and the guests' QEMU."""

    def __init__(self, machine: Machine, qemu: OrdinaryUser) -> None:
        self._machine = machine
        self._qemu = qemu
        self._hotplug: Hotplug | None = None
        self._guest: InnerGuest | libvirt_hosts.LibvirtGuest | None = None
        self._journal = contextlib.ExitStack()

    @property
    def places(self) -> Places:
        """Return the machine's functions by their names in the scenarios."""
        return Places(
            pf=self._machine.pf_node1,
            near=self._machine.pf_node0,
            single=self._machine.edu_node1,
            no_reset=self._machine.edu,
            card=self._machine.card,
            pair=self._machine.pair,
            bridge=lane.PORT_NVME_NODE1,
            chipset=lane.CHIPSET,
            slot=self._machine.hotplug,
        )

    def close(self) -> None:
        """End the guest, and fill the slot again."""
        self.let_go()
        if self._hotplug is not None:
            self._hotplug.close()

    def store(self, path: str, text: str) -> None:
        sysfs.store(Path("/", path), text)

    def load(self, module: str, loaded: bool) -> None:
        """Load or unload a module, of the kernel's packages or built by the lane.

        :raises subprocess.CalledProcessError: the kernel refuses it.
        """
        if module in kernel_modules.SAMPLES:
            samples.load(module, loaded)
            return
        command = ["modprobe", *([] if loaded else ["--remove"]), module]
        subprocess.run(command, check=True)

    def swap_on(self, node: str) -> None:
        subprocess.run(["mkswap", node], check=True)
        subprocess.run(["swapon", node], check=True)

    def swap_off(self, node: str) -> None:
        subprocess.run(["swapoff", node], check=True)

    def keep_journal(self, node: str) -> None:
        """Mount a file system that has its journal on a disk."""
        self._journal.enter_context(kernel_clients.journal(node))

    def end_journal(self) -> None:
        """Unmount the file system."""
        self._journal.close()

    def signal(self, pid: int, number: int) -> None:
        os.kill(pid, number)

    def look_at(self, pid: int) -> tuple[dict[str, str], str, list[str]]:
        """Return /proc's facts of a process: status, working directory, open files."""
        place = Path("/proc", str(pid))
        lines = (place / "status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines)
        files = [os.readlink(each) for each in (place / "fd").iterdir()]
        return status, os.readlink(place / "cwd"), files

    def hold_as_defined(self, entries: list[AcceleratorEntry]) -> tuple[str, ...]:
        """Start a guest with the devices of its definition by Nova; return them."""
        found = guest_definition.devices(guest_definition.define(entries))
        self.hold(*found)
        return found

    def hold(self, *names: str) -> None:
        """Start a guest that holds functions, or mediated devices by their UUIDs."""
        self._guest = InnerGuest(self._qemu, names)

    def write_in_guest(self, address: str) -> None:
        """Start a guest that holds an NVMe function, and wait until it has written.

        :raises AssertionError: it could not write.
        """
        self._guest = InnerGuest(self._qemu, (address,), writing_guest.disk())
        deadline = time.monotonic() + _GUEST_SECONDS
        while not (status := self._guest.byte(writing_guest.STATUS)):
            assert time.monotonic() < deadline, "the guest has not written"
            time.sleep(0.5)
        assert status == writing_guest.WRITTEN, f"INT 13h failed with {status:#x}"

    def hold_movable(self, name: str) -> None:
        """Start a guest that can move with its mediated device of mtty.

        It writes registers of the device.
        """
        self._guest = guest = moving_guest.MovingGuest(self._qemu, (name,))
        guest.port.write_registers()

    def move_to(self, name: str) -> moving_guest.Move:
        """Move that guest to another mediated device, and end its source.

        :raises AssertionError: QEMU did not move it, or the registers differ.
        """
        source = self._guest
        assert isinstance(source, moving_guest.MovingGuest)
        target = moving_guest.ArrivingGuest(self._qemu, (name,))
        with contextlib.closing(source):
            self._guest = target
            moved = source.move_to(target, moving_guest.socket_of(self._qemu))
        assert target.port.registers() == moving_guest.REGISTERS
        return moved

    def hold_by_libvirt(self, entries: list[AcceleratorEntry]) -> None:
        """Let libvirt start a guest that can move, with the device of its definition.

        It writes registers of the device, as in :meth:`hold_movable`.
        """
        definition = guest_definition.define(entries)
        self._guest = guest = libvirt_hosts.LibvirtGuest(self._qemu, definition)
        guest.port.write_registers()

    def migrate_by_libvirt(self, pairs: Mapping[str, str]) -> None:
        """Move that guest to other mediated devices.

        :raises AssertionError: libvirt did not move it, or the registers differ.
        """
        guest = self._guest
        assert isinstance(guest, libvirt_hosts.LibvirtGuest)
        guest.migrate(pairs)
        assert guest.port.registers() == moving_guest.REGISTERS

    def save(self, name: str) -> tuple[int, bytes]:
        """Return the predicted size of a device's state, and the state.

        The size is 0, and the state empty, if the driver cannot migrate the device.
        """
        with VfioDevice(name) as device:
            return device.predicted_size(), device.save() if device.flags() else b""

    def media(self, *images: str) -> tuple[tuple[bool, str], ...]:
        """Return for each namespace whether it has a guest's data, and its digest."""
        return tuple((nvme_media.holds_data(i), nvme_media.digest(i)) for i in images)

    def attached(self) -> frozenset[str]:
        """Return the functions that the guest's QEMU has on the guest's bus."""
        return frozenset() if self._guest is None else self._guest.attached()

    def let_go(self) -> None:
        guest, self._guest = self._guest, None
        # A write that waited for the guest may remove the node at this moment.
        with contextlib.suppress(FileNotFoundError):
            if guest is not None:
                guest.close()

    def hand_over(self, node: str) -> None:
        os.chown(node, self._qemu.uid, self._qemu.gid)

    def pull_out(self) -> None:
        self._slot().remove()

    def begin_to_pull_out(self) -> None:
        """Request the function's removal, which a guest may delay."""
        self._slot().request_removal()

    def wait_until_pulled_out(self) -> None:
        self._slot().wait_removed()

    def put_in(self) -> None:
        self._slot().insert()

    def set_power(self, on: bool) -> None:
        self._slot().set_power(on)

    def pcie_error(self) -> None:
        """Let the root port of the PF report a harmless error."""
        self._slot().pcie_error(lane.PORT_ID_OF_PF)

    def uncorrectable_error(self, address: str) -> None:
        """Let the kernel count an uncorrectable error of a function."""
        aer.inject(address, uncorrectable=aer.COMPLETION_TIMEOUT)

    def set_vf(self, interface: str, number: int, mac: str, vlan: int) -> None:
        """Set MAC and VLAN of a VF, as for a guest's port."""
        vf = ["ip", "link", "set", interface, "vf", str(number)]
        subprocess.run([*vf, "mac", mac, "vlan", str(vlan)], check=True)

    def _slot(self) -> Hotplug:
        if self._hotplug is None:
            self._hotplug = Hotplug(self._machine.hotplug)
        return self._hotplug
