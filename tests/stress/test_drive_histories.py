# SPDX-License-Identifier: Apache-2.0

"""Random histories of NVMe drives destroy no data of the host, and show no tenant's.

At the end of each, when all drives are in and the faults gone, every drive is free.

A history is a list of steps, each with two numbers that select its details. It
depends on nothing else, so that a failing one is repeated without the steps that do
not matter.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.helper import client
from os_acc.objects.device import Provider
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims
from os_acc.testing import WriteOutcome, instance, request
from tests import run_figures
from tests.stress.drive_events import EVERYTHING, SECONDS, DriveHost, Tenant
from tests.stress.drives import NAMESPACES, SLOTS, Drive

#: The errors for a drive that may not be the one to release.
_UNIDENTIFIED = exception.DeviceGone, exception.DeviceChanged, client.DeviceClaimed


class Step(NamedTuple):
    """A step of a history."""

    name: str
    first: int
    second: int


class History(DriveHost):
    """A host, and the expectations of its users."""

    def run(self, steps: Sequence[Step]) -> None:
        """Carry out steps, and check the invariants after each."""
        with self.rack.bench.installed():
            self.nodes = [self._start(node) for node in range(self.count)]
            try:
                for step in steps:
                    getattr(self, step.name)(step.first, step.second)
                    self.deeds["steps"] += 1
                    self._check()
                self._end()
            finally:
                for drive in self.rack.inside:
                    for fd in drive.claims:
                        os.close(fd)

    # -- consumers ---------------------------------------------------------------

    def plug(self, first: int, second: int) -> None:
        node = first % self.count
        with contextlib.suppress(exception.OsAccError):
            providers = self.nodes[node].providers()
            if providers:
                self._plug(node, providers[second % len(providers)])

    def _plug(self, node: int, provider: Provider) -> Tenant | None:
        self.last += 1
        number, manager = self.last, self.nodes[node]
        selected, specs = request(provider)
        wanted = self.rack.at(str(provider.device.address))
        try:
            (entry,) = manager.plug(instance(number), selected, specs)
        except exception.OsAccError:
            self.deeds["plugs refused"] += 1
            # A plug that was stopped may have its device erased.
            if wanted and wanted.slot in self._leased_slots():
                self._leased(wanted)
            return None
        drive = self._drive_of(entry)
        self.deeds["plugs"] += 1
        drive.home = drive.slot
        self._leased(drive)
        assert not drive.claims, f"{drive} is used by the host, and was plugged"
        found = self.rack.tenants(drive)
        assert not found, f"tenant {number} gets {drive} with data of {found}"
        tenant = Tenant(number, node, drive)
        self.tenants[number] = tenant
        self.rack.write(drive, tenant.marker)
        return tenant

    def _drive_of(self, entry: object) -> Drive:
        place = "{domain}:{bus}:{device}.{function}"
        address = place.format_map(entry["attach_handle_info"])  # type: ignore[index]
        drive = self.rack.at(address)
        assert drive is not None, f"{address} is plugged, and empty"
        return drive

    def confirm(self, first: int, _second: int) -> None:
        """Plug again, as Nova does when a guest starts."""
        if not self.tenants:
            return
        tenant = self.tenants[sorted(self.tenants)[first % len(self.tenants)]]
        manager = self.nodes[tenant.node]
        before = self.rack.tenants(tenant.drive)
        try:
            entries = manager.plug(instance(tenant.number), None, None)
        except exception.OsAccError:
            self.deeds["guests that were refused"] += 1
            return
        if not entries:
            return
        (entry,) = entries
        drive = self._drive_of(entry)
        self.deeds["guests that came back"] += 1
        assert drive is tenant.drive, f"{tenant} gets {drive}"
        assert not drive.claims, f"{drive} is used by the host, and was confirmed"
        found = self.rack.tenants(drive)
        assert found <= {tenant.marker}, f"{tenant} finds the data of {found}"
        assert found == before, f"{tenant} loses its data"
        self.rack.write(drive, tenant.marker)

    def reboot(self, first: int, second: int) -> None:
        super().reboot(first, second)
        if second & 256:
            for at in range(len(self.tenants)):
                self.confirm(at, 0)

    def unplug(self, first: int, _second: int) -> None:
        if not self.tenants:
            return
        number = sorted(self.tenants)[first % len(self.tenants)]
        tenant = self.tenants[number]
        try:
            self.nodes[tenant.node].unplug(instance(number))
        except exception.OsAccError:
            self.deeds["unplugs refused"] += 1
            return
        self.deeds["unplugs"] += 1
        del self.tenants[number]

    def namespaces(self, first: int, second: int) -> None:
        """Let a guest delete or create namespaces."""
        guests = [
            each
            for each in self.tenants.values()
            if each.drive in self.rack.on("vfio-pci")
            and each.drive.spec.sanicap
            and each.drive.spec.oacs & 8
        ]
        if guests:
            drive = guests[first % len(guests)].drive
            chosen = [n for at, n in enumerate(NAMESPACES) if second >> at & 1]
            self.rack.set_namespaces(drive, tuple(chosen))
            self.deeds["namespaces changed"] += 1

    def hold(self, first: int, _second: int) -> None:
        """Let a process open a drive on vfio-pci: a guest, or a foreign one."""
        if offered := self.rack.on("vfio-pci"):
            drive = offered[first % len(offered)]
            if not self.rack.is_held(drive):
                self.kernel.hold(drive.slot, 5000 + drive.number)
                self.deeds["drives that a process opened"] += 1

    def let_go(self, first: int, _second: int) -> None:
        drives = self.rack.inside
        if drives:
            self.kernel.let_go(drives[first % len(drives)].slot)

    # -- checks ------------------------------------------------------------------

    def _check(self) -> None:
        on_nvme = self.rack.on("nvme")
        for drive in self.rack.drives:
            if drive.claims:
                assert drive in on_nvme, f"{drive} was taken from the host"
            if drive.expected is not None:
                found = self.rack.read(drive)
                assert found == drive.expected, f"{drive} had {drive.expected}: {found}"
        writes = self.kernel.writes(self.writes)
        self.writes += len(writes)
        for write in writes:
            assert write.outcome != WriteOutcome.BLOCKED, write

    def _end(self) -> None:
        """Try to get each drive: before, in the middle and after a repair."""
        for drive in self.rack.inside:
            self.kernel.let_go(drive.slot)
        self._try_all()
        for node in range(self.count):
            self.options[node]["device_spec"] = [EVERYTHING]
            self.options[node]["enabled_plugins"] = ["nvme", "pci"]
            self.restart(node, 0)
        self._try_all()
        self._tidy_up()
        if self._leased_slots():
            self._show_hidden()
            self._release_all()
        while self._force_unidentified():
            self._release_all()
        self._check_free()
        self._try_all()

    def _show_hidden(self) -> None:
        """Bind drives without a lease that hide their serial numbers to their driver.

        So says the hint of a refused release: one of them may be the drive of a lease.
        """
        leases = [each for node in self.nodes for each in node.store.leases()]
        for drive in self.rack.on("vfio-pci"):
            if drive.slot not in {str(each.address) for each in leases}:
                self.rack.bench.bind(drive.slot, "nvme")
                self.deeds["drives that the operator bound"] += 1

    def _force_unidentified(self) -> bool:
        """Free with ``--force`` what only the operator can identify; return whether.

        A drive without a lease that is on vfio-pci at boot shows no serial number when
        an operator releases it. If it then leaves its slot before its erasure, it may
        be any drive, or none of the present ones: its slot is empty, or has a drive
        that is on record for another lease, or a reboot may have moved it. All others,
        and the drives of all consumers, have to be free without ``--force``.
        """
        forced = 0
        for manager in self.nodes:
            places = set()
            for lease in manager.store.leases():
                assert lease.state is LeaseState.QUARANTINED, lease
                assert not any(each.identity.drive for each in lease.prior), lease
                places.add(lease.address)
            for parts, *_, serial in claims.claimed():
                if (slot := PciAddress(*parts)) not in places:  # type: ignore[arg-type]
                    assert not serial, f"the helper keeps {slot} with {serial}"
                    assert not self.rack.at(str(slot)), f"the helper keeps {slot}"
                    places.add(slot)
            for place in places:
                with pytest.raises(_UNIDENTIFIED):
                    operator_actions.release_device(manager, place, None)
                operator_actions.release_device(manager, place, None, force=True)
            forced += len(places)
        self.deeds["releases that need --force"] += forced
        return bool(forced)

    def _check_free(self) -> None:
        """Check that no instance has a drive, and each service offers each one."""
        assert not self.tenants, f"the unplugs of {self.tenants} fail"
        for manager in self.nodes:
            assert not manager.store.damaged_claims()
            inventory = manager.discover(time.monotonic() + SECONDS)
            offered = {str(e.device.address) for e in inventory.providers.values()}
            assert offered >= {e.slot for e in self.rack.inside}, inventory.refused

    def _try_all(self) -> None:
        for node in range(self.count):
            providers: Sequence[Provider] = ()
            for _ in range(3):
                with contextlib.suppress(exception.OsAccError):
                    providers = self.nodes[node].providers()
                    break
            for provider in providers:
                tenant = self._plug(node, provider)
                self._check()
                if tenant is not None:
                    with contextlib.suppress(exception.OsAccError):
                        self.nodes[node].unplug(instance(tenant.number))
                    del self.tenants[tenant.number]

    def _tidy_up(self) -> None:
        for drive in self.rack.inside:
            if drive.claims:
                self.rack.leave(drive)
            drive.expected = None
        self.rack.put_back()
        self._release_all()

    def _release_all(self) -> None:
        """Do as an operator who wants each drive free, without ``--force``."""
        for _ in range(18):
            if not self._leased_slots():
                return
            for node in range(self.count):
                self._unplug_all(node)
                for slot in SLOTS:
                    self._release(node, slot, None)
                    self._release(node, slot, "nvme")
                self.erase(node, 255)
                self.retry(node, 0)

    def _unplug_all(self, node: int) -> None:
        """Unplug each consumer; an older store may have leases of former ones."""
        for tenant in tuple(self.tenants.values()):
            self.unplug(tenant.number, 0)
        for lease in self.nodes[node].store.leases():
            if lease.state is LeaseState.HELD:
                with contextlib.suppress(exception.OsAccError):
                    self.nodes[node].unplug({"uuid": lease.consumer, "name": ""})


#: The steps, with their weights.
WEIGHTS = {
    "plug": 12,
    "confirm": 8,
    "unplug": 7,
    "erase": 6,
    "reboot": 7,
    "reboot_without_store": 3,
    "namespaces": 3,
    "hold": 3,
    "let_go": 3,
    "retry": 2,
    "restart": 1,
    "plugins": 2,
    "device_spec": 2,
    "crash": 2,
    "fault": 4,
    "save_store": 2,
    "lose_store": 3,
    "pull": 3,
    "put": 4,
    "exchange": 2,
    "host_uses": 4,
    "host_leaves": 3,
    "release": 5,
    "adopt": 2,
}


#: The number of steps, by the profile of Hypothesis, and of one history.
STEPS = {"stress": 5_000, "shrink": 5_000}
_FEW, _STEPS_OF_A_PART, _STEPS_OF_A_HISTORY = 40, 250, 40
#: The parts are divided among so many shares.
SHARES = 30
#: Attempts to leave out steps of a failing history.
_TRIALS = 100


def history_of(seed: str, length: int) -> list[Step]:
    """Return the steps of a history."""
    rng = random.Random(seed)
    names = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=length)
    numbers = ((rng.randrange(1 << 12), rng.randrange(1 << 12)) for _ in names)
    return [Step(name, *each) for name, each in zip(names, numbers, strict=True)]


def failure_of(
    place: str, steps: Sequence[Step], counts: collections.Counter[str]
) -> str:
    """Return the traceback of the failure of a history; '' if it holds.

    :param counts: counts the executions of each step, if it holds.
    """
    directory = tempfile.mkdtemp(dir=place)
    history = History(directory)
    try:
        history.run(steps)
    except Exception:  # noqa: BLE001 - any failure is to be repeated
        return traceback.format_exc()
    finally:
        shutil.rmtree(directory)
    counts += history.deeds
    return ""


def shrunk(place: str, steps: list[Step]) -> list[Step]:
    """Leave out steps without which a history fails as well."""
    trials, size = _TRIALS, len(steps) // 2
    while size:
        at = 0
        while at < len(steps) and trials:
            shorter = steps[:at] + steps[at + size :]
            trials -= 1
            if failure_of(place, shorter, collections.Counter()):
                steps = shorter
            else:
                at += size
        size //= 2
    return steps


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    steps = STEPS.get(metafunc.config.getoption("--hypothesis-profile"), _FEW)
    parts = -(-steps // _STEPS_OF_A_PART)
    names = [f"part-{number}-of-{parts}" for number in range(1, parts + 1)]
    values = [
        pytest.param(name, steps // parts, marks=pytest.mark.share(SHARES, number))
        for number, name in enumerate(names)
    ]
    metafunc.parametrize(("part", "steps"), values, ids=names)


def test_no_history_destroys_or_shows_data(request, part, steps, seed, place):
    print(f"to have these histories again: --hypothesis-seed={seed}")
    counts: collections.Counter[str] = collections.Counter()
    histories = 0
    while counts["steps"] < steps:
        history = history_of(f"{seed}, {part}, {histories}", _STEPS_OF_A_HISTORY)
        if why := failure_of(place, history, counts):
            few = shrunk(place, history)
            why = failure_of(place, few, counts) or why
            pytest.fail("\n".join([why, *map(str, few)]))
        histories += 1
    run_figures.note(request.node, "drives: histories", histories)
    for deed, number in counts.items():
        run_figures.note(request.node, f"drives: {deed}", number)
