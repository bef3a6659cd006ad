# SPDX-License-Identifier: Apache-2.0

"""Events of a host with NVMe drives: its services, their stores, slots and operator."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import sqlite3
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.attach.manager import Manager
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims
from os_acc.store import schema
from os_acc.testing import uuid_of
from tests.stress import processes
from tests.stress.drives import SLOTS, Drive, Rack
from tests.stress.lost_store import Loss
from tests.stress.recorder import Recorder

#: For what has to end at some time.
SECONDS = 600.0
EVERYTHING = json.dumps({"address": "*:*:*.*", "prebound": True})
_ATTRIBUTES = ("driver_override", "unbind", "drivers_probe", "identify", "format")
_ATTRIBUTES += ("sanitize", "log")


class Tenant(NamedTuple):
    """A consumer with a drive."""

    number: int
    node: int
    drive: Drive

    @property
    def marker(self) -> str:
        return f"tenant {self.number};"


class DriveHost:
    """A host with its nodes, and the expectations of its users.

    :param nodes: one, or two that offer the same drives.
    :ivar options: of each node's service.
    :ivar saved: older copies of each node's store.
    """

    def __init__(self, directory: str, nodes: int = 1) -> None:
        self.count = nodes
        self.rack = Rack(directory)
        self.kernel = self.rack.kernel
        self.directory = Path(directory)
        self.options = [
            {
                "node_name": name,
                "state_path": str(self.directory / name),
                "device_spec": [EVERYTHING],
                "enabled_plugins": ["nvme", "pci"],
            }
            for name in ("node1", "node2")
        ]
        self.saved: list[bytes] = [b"", b""]
        self.nodes: list[Manager] = []
        self.tenants: dict[int, Tenant] = {}
        self.last = 0
        self.writes = 0
        self.deeds: collections.Counter[str] = collections.Counter()

    def _start(self, node: int) -> Manager:
        return self.rack.bench.start(**self.options[node])

    # -- the service -------------------------------------------------------------

    def erase(self, first: int, second: int) -> None:
        for drive in self.rack.inside:
            # While a drive is sanitized, the host cannot use it.
            if second >> drive.number & 1 and not drive.claims:
                self.kernel.advance_sanitize(drive.slot, 0.5 if first & 2 else 1.0)
        self._wait(self.nodes[first % self.count].retrier.continue_erasures)

    def retry(self, first: int, _second: int) -> None:
        self._wait(self.nodes[first % self.count].retrier.retry)

    def _wait(self, begin: Callable[[], list[futures.Future[None]]]) -> None:
        with contextlib.suppress(exception.OsAccError):
            assert not futures.wait(begin(), SECONDS).not_done

    def restart(self, first: int, _second: int) -> None:
        self.nodes[first % self.count] = self._start(first % self.count)

    def plugins(self, first: int, second: int) -> None:
        """Disable the plugin that erases, or enable it again."""
        self.options[first % self.count]["enabled_plugins"] = (
            ["nvme", "pci"] if second % 3 else ["pci"]
        )
        self.restart(first, second)

    def device_spec(self, first: int, second: int) -> None:
        """Change the devices that a node may use."""
        every = SLOTS if first & 2 else [s for s in SLOTS if s != SLOTS[second % 6]]
        prebound = bool(first & 4)
        self.options[first % self.count]["device_spec"] = [
            json.dumps({"address": slot, "prebound": prebound}) for slot in every
        ]
        self.restart(first, second)

    def crash(self, first: int, second: int) -> None:
        """Kill a service while it does something, and start it again."""
        name = ("plug", "unplug", "confirm", "erase", "release", "retry")[first % 6]
        at, worker = second % 40 + 1, second // 40 % 2

        def die(point: object, _what: str) -> None:
            self._touches += 1
            if point.in_worker == bool(worker) and self._touches >= at:
                os.kill(os.getpid(), signal.SIGKILL)

        def work() -> None:
            self._touches = 0
            here = str(self.directory)
            Recorder(here, die, lambda *_: None).install(self.kernel)
            getattr(self, name)(first // 6, second // 80)

        ended = processes.call_with_all(work)
        assert not ended.trouble, ended.trouble
        self.deeds["kills"] += ended.killed
        for drive in self.rack.inside:
            # It may have been chosen.
            self._leased(drive)
        self.last += 1
        for node in range(self.count):
            self.restart(node, 0)
            self._take_over(node)

    def _take_over(self, node: int) -> None:
        """Find the tenant of a plug that was killed after its last step."""
        with contextlib.suppress(exception.OsAccError):
            for lease in self.nodes[node].store.leases(uuid_of(self.last)):
                drive = self.rack.at(str(lease.address))
                if lease.state is LeaseState.HELD and drive:
                    self.tenants[self.last] = Tenant(self.last, node, drive)

    def fault(self, first: int, second: int) -> None:
        """Let the next step fail, or die, at a privileged write or command."""
        effect = (self.kernel.fail, self.kernel.kill, self.kernel.ignore)[first % 3]
        address = SLOTS[second % len(SLOTS)] if first & 8 else None
        attribute = _ATTRIBUTES[first // 16 % len(_ATTRIBUTES)]
        effect(address, attribute, nth=second // 8 % 3 + 1)
        name = ("plug", "unplug", "confirm", "erase", "release", "retry")[second % 6]
        getattr(self, name)(first // 128, second // 64)
        self.kernel.lift()

    def _leased_slots(self) -> set[str]:
        found = {str(PciAddress(*each[0])) for each in claims.claimed()}
        for node in self.nodes:
            with contextlib.suppress(exception.OsAccError):
                found |= {str(each.address) for each in node.store.leases()}
        return found

    def _leased(self, drive: Drive) -> None:
        drive.was_leased = True
        if not drive.claims:
            drive.expected = None

    # -- the store ---------------------------------------------------------------

    def save_store(self, first: int, _second: int) -> None:
        file = self._store(first % self.count)
        if file.exists():
            self.saved[first % self.count] = file.read_bytes()

    def lose_store(self, first: int, second: int) -> None:
        """Delete, damage or replace the store of a node, while it runs."""
        node = first % self.count
        file, kind = self._store(node), first // 2 % 6
        if not file.exists() or not file.stat().st_size:
            return
        rng = random.Random(second)
        if kind < 3:
            list(Loss)[kind].strike_file(file, rng)
        elif kind == 3:
            # One bit of the header.
            data = bytearray(file.read_bytes())
            data[rng.randrange(min(100, len(data)))] ^= 1 << rng.randrange(8)
            file.write_bytes(data)
        elif kind == 4:
            self._damage_records(file)
        elif self.saved[node]:
            file.write_bytes(self.saved[node])
        self.deeds["stores lost or damaged"] += 1
        if second & 1:
            self.restart(node, 0)

    def _damage_records(self, file: Path) -> None:
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(file)) as connection,
            connection,
        ):
            connection.create_function("row_digest", -1, schema.row_digest)
            connection.execute("UPDATE leases SET digest = ''")

    def _store(self, node: int) -> Path:
        return self.directory / f"node{node + 1}" / "os_acc.sqlite"

    # -- the host ----------------------------------------------------------------

    def reboot(self, first: int, second: int) -> None:
        """Reboot; drives may move by one bus, or exchange their slots."""
        inside = sorted(each.slot for each in self.rack.inside)
        moved = dict(zip(inside, inside, strict=True))
        kind, last = first % 4, SLOTS[-1]
        if kind == 1 and last not in inside:
            start = first // 4 % len(SLOTS)
            moved = {s: self._beside(s, 1) if s >= SLOTS[start] else s for s in inside}
        elif kind == 2 and SLOTS[0] not in inside:
            moved = {s: self._beside(s, -1) for s in inside}
        elif kind == 3:
            order = list(inside)
            random.Random(first).shuffle(order)
            moved = dict(zip(inside, order, strict=True))
        places = {old: new for old, new in moved.items() if old != new}
        prebound = {
            each
            for each in self.rack.inside
            if second & 3 == 0 and second >> 2 >> each.number & 1
        }
        self.rack.reboot(places, prebound)
        self.deeds["reboots"] += 1
        self.deeds["reboots that move drives"] += bool(places)
        for node in range(self.count):
            self.restart(node, 0)

    def _beside(self, slot: str, distance: int) -> str:
        return SLOTS[SLOTS.index(slot) + distance]

    def reboot_without_store(self, first: int, second: int) -> None:
        """Lose a store, and reboot."""
        self.lose_store(first, second)
        self.reboot(first // 16, second // 2)

    def pull(self, first: int, _second: int) -> None:
        if drives := self.rack.inside:
            self.rack.pull(drives[first % len(drives)])
            self.deeds["drives pulled out"] += 1

    def put(self, first: int, second: int) -> None:
        free, outside = self.rack.free, self.rack.outside
        if free and outside:
            drive = outside[first % len(outside)]
            self.rack.put(drive, free[second % len(free)])
            self.deeds["drives put in"] += 1

    def exchange(self, first: int, second: int) -> None:
        """Exchange two drives; one may be outside the host."""
        drives = self.rack.drives
        one, other = drives[first % len(drives)], drives[second % len(drives)]
        slots = other.slot, one.slot
        for drive in {one, other}:
            if drive.slot:
                self.rack.pull(drive)
        for drive, slot in zip((one, other), slots, strict=True):
            if slot and not drive.slot:
                self.rack.put(drive, slot)

    def host_uses(self, first: int, second: int) -> None:
        """Let a client of the host use a drive."""
        leased = [each.drive for each in self.tenants.values()]
        free = [
            each
            for each in self.rack.on("nvme")
            if not each.claims and each not in leased and each.spec.namespaces
        ]
        if free:
            drive = free[first % len(free)]
            if self.rack.use(drive, second % 3):
                self.deeds["drives that the host uses"] += 1

    def host_leaves(self, first: int, _second: int) -> None:
        if used := [each for each in self.rack.inside if each.claims]:
            self.rack.leave(used[first % len(used)])

    # -- the operator ------------------------------------------------------------

    def release(self, first: int, second: int) -> None:
        """Run ``os-acc device release`` without ``--force``."""
        driver = (None, None, None, "", "nvme", "vfio-pci")[second % 6]
        self._release(first % self.count, SLOTS[first // 2 % len(SLOTS)], driver)

    def _release(self, node: int, slot: str, driver: str | None) -> None:
        for drive in self.rack.on("vfio-pci"):
            if drive.slot == slot:
                # Without a lease, a guest may have had it: it is erased.
                self._leased(drive)
        try:
            operator_actions.release_device(
                self.nodes[node], PciAddress.parse(slot), driver, force=False
            )
        except exception.OsAccError as error:
            self.deeds["operator's releases refused"] += 1
            drive = self.rack.at(slot)
            if drive and "is erased, but has no namespace" in str(error):
                self.rack.make_namespace(drive)
                self.deeds["namespaces made by the operator"] += 1
        else:
            self.deeds["operator's releases"] += 1
            if (drive := self.rack.at(slot)) and not drive.home:
                drive.home = slot

    def adopt(self, first: int, _second: int) -> None:
        """Run ``os-acc device adopt`` for the tenant that has the drive."""
        if not self.tenants:
            return
        tenant = self.tenants[sorted(self.tenants)[first % len(self.tenants)]]
        if not tenant.drive.slot:
            return
        with contextlib.suppress(exception.OsAccError):
            operator_actions.adopt_device(
                self.nodes[tenant.node],
                PciAddress.parse(tenant.drive.slot),
                uuid_of(tenant.number),
                None,
            )
