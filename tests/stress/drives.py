# SPDX-License-Identifier: Apache-2.0

"""Equal NVMe drives that move between the slots of a simulated host with their data."""

from __future__ import annotations

import contextlib
import dataclasses
import os

from os_acc.objects.pci import PciAddress
from os_acc.privsep.nvme import disks
from os_acc.testing import FunctionSpec, HostSpec, functions, holders, hosts, records
from os_acc.testing.device_specs import BLOCK, FORMATS, MANAGES, NvmeSpec
from os_acc.testing.specs import nvme
from os_acc.testing.tree import PRIVATE
from tests.stress.simulated_host import simulated_host

#: The slots, on successive buses.
SLOTS = tuple(f"0000:{bus:02x}:00.0" for bus in range(0x10, 0x16))
#: The namespaces that a drive has, or that a guest can create.
NAMESPACES = (1, 2)
_BEGINNING = 32
#: The last drive is not in the host at first.
_SPECS = (
    NvmeSpec(),
    NvmeSpec(namespaces=NAMESPACES),
    NvmeSpec(sanicap=BLOCK, oacs=FORMATS | MANAGES),
    NvmeSpec(sanicap=BLOCK),
    NvmeSpec(),
)


@dataclasses.dataclass(eq=False)
class Drive:
    """A drive, and its present user.

    :ivar number: of its controller below ``/dev``.
    :ivar slot: its slot; '' outside of the host.
    :ivar home: the slot in which a consumer got it last; '': none did.
    :ivar claims: descriptors of its disks while a client in the host uses them.
    :ivar trace: the trace of that client; see :meth:`Rack.use`.
    :ivar expected: the data that it has to keep; None: any.
    :ivar was_leased: a consumer had it, or may have had it.
    """

    number: int
    spec: NvmeSpec
    slot: str = ""
    home: str = ""
    claims: list[int] = dataclasses.field(default_factory=list)
    trace: int = 0
    expected: dict[int, str] | None = None
    was_leased: bool = False

    def __repr__(self) -> str:
        return f"{self.serial} in {self.slot or 'no slot'}"

    @property
    def serial(self) -> str:
        return f"S{self.number}"

    @property
    def disks(self) -> list[str]:
        return [f"nvme{self.number}n{each}" for each in self.spec.namespaces]

    def function(self) -> FunctionSpec:
        made = nvme(self.number, self.serial, namespaces=self.spec.namespaces)
        function = hosts.nvme_disk(self.slot[:7], self.number)
        return dataclasses.replace(function, nvme=self.spec, devices=(made,))

    def change(self, numbers: tuple[int, ...]) -> None:
        """Give it other namespaces; the rest is unallocated."""
        capacity = (len(NAMESPACES) - len(numbers)) << 30
        self.spec = dataclasses.replace(self.spec, namespaces=numbers, unvmcap=capacity)


class Rack:
    """The slots of a host.

    :ivar drives: all drives, also those outside of the host.
    """

    def __init__(self, directory: str) -> None:
        self.drives = [Drive(number, spec) for number, spec in enumerate(_SPECS)]
        for drive, slot in zip(self.drives[:-1], SLOTS, strict=False):
            drive.slot = slot
        spec = HostSpec(tuple(each.function() for each in self.inside))
        self.bench = simulated_host(directory, spec)
        self.kernel = self.bench.kernel
        for drive in self.inside:
            self.write(drive, f"factory {drive.serial};")
            drive.expected = self.read(drive)

    @property
    def inside(self) -> list[Drive]:
        return [each for each in self.drives if each.slot]

    @property
    def outside(self) -> list[Drive]:
        return [each for each in self.drives if not each.slot]

    @property
    def free(self) -> list[str]:
        return [slot for slot in SLOTS if self.at(slot) is None]

    def at(self, slot: str) -> Drive | None:
        """Return the drive in a slot."""
        return next((each for each in self.drives if each.slot == slot), None)

    def on(self, driver: str) -> list[Drive]:
        """Return the drives on a driver."""
        states = {each.address: each.driver for each in self.kernel.snapshot()}
        return [each for each in self.inside if states[each.slot] == driver]

    def is_held(self, drive: Drive) -> bool:
        """Return whether a process has a drive open through VFIO."""
        return os.path.lexists(self.kernel.path(holders.HOLDS, drive.slot))

    # -- data ------------------------------------------------------------------

    def read(self, drive: Drive) -> dict[int, str]:
        """Return the beginning of each namespace, also of one that was deleted."""
        found = {}
        for number in NAMESPACES:
            path = self.kernel.path(f"{PRIVATE}/media", f"{drive.serial}-{number}")
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                data = file.read(_BEGINNING).partition(b"\0")[0]
                found[number] = data.decode(errors="replace")
        return {number: text for number, text in found.items() if text}

    def tenants(self, drive: Drive) -> set[str]:
        """Return the tenants whose data a drive has."""
        return {each for each in self.read(drive).values() if "tenant" in each}

    def write(self, drive: Drive, text: str) -> None:
        """Write to each namespace that is attached."""
        for number in drive.spec.namespaces:
            self.kernel.write_medium(drive.slot, number, text.encode())

    def set_namespaces(self, drive: Drive, numbers: tuple[int, ...]) -> None:
        """Let a guest delete or create namespaces."""
        drive.change(numbers)
        with self.kernel._tree.transaction() as tree:
            record = records.dump(drive.function())
            tree.put(f"{functions.FUNCTIONS}/{drive.slot}", record)

    def make_namespace(self, drive: Drive) -> None:
        """Make and attach one, as the hint of an erased drive without any says."""
        self.kernel.hot_unplug(drive.slot)
        drive.change(NAMESPACES[:1])
        self.kernel.hot_plug(drive.function())

    # -- the host's own clients --------------------------------------------------

    def use(self, drive: Drive, trace: int) -> bool:
        """Let a client of the host use the disks, if they are free; return whether.

        :param trace: 0: the kernel alone knows it; 1: it is mounted; 2: a volume.
        """
        try:
            for name in drive.disks:
                path = self.kernel.path("sys/class/block", name, "dev")
                device = self.kernel.read(path).strip()
                drive.claims.append(self.kernel.open_disk(f"dev/{name}", device))
        except OSError:
            self.leave(drive)
            return False
        drive.trace = trace
        with self.kernel._tree.transaction() as tree:
            for name in drive.disks:
                if trace == 1:
                    line = f"/dev/{name} /srv/{name} ext4 rw 0 0\n"
                    mounts = tree.read("proc/self/mounts") + line
                    tree.put("proc/self/mounts", mounts)
                elif trace == 2:
                    place = tree.follow(f"sys/class/block/{name}")
                    tree.put(f"{place}/holders/dm-{drive.number}", "")
        drive.expected = self.read(drive)
        return True

    def leave(self, drive: Drive) -> None:
        """Let the client of the host leave a drive."""
        for fd in drive.claims:
            os.close(fd)
        drive.claims = []
        if drive.was_leased:
            drive.expected = None
        with self.kernel._tree.transaction() as tree:
            lines = tree.read("proc/self/mounts").splitlines(keepends=True)
            own = f"/dev/nvme{drive.number}n"
            others = "".join(line for line in lines if not line.startswith(own))
            tree.put("proc/self/mounts", others)
            for name in drive.disks:
                if place := tree.follow(f"sys/class/block/{name}"):
                    tree.drop(f"{place}/holders/dm-{drive.number}")

    # -- slots -------------------------------------------------------------------

    def pull(self, drive: Drive) -> None:
        """Pull a drive out; a process that holds it has to close it."""
        self.leave(drive)
        self._end_keeper(drive)
        self.kernel.let_go(drive.slot)
        self.kernel.hot_unplug(drive.slot)
        drive.slot = ""

    def put(self, drive: Drive, slot: str) -> None:
        """Put a drive into a free slot."""
        drive.slot = slot
        self.kernel.hot_plug(drive.function())

    def _end_keeper(self, drive: Drive) -> None:
        """End the process that keeps the disks of a drive claimed."""
        disks.end_keeper(PciAddress.parse(drive.slot))

    def put_back(self) -> None:
        """Put the drives in again, into the slots in which consumers got them."""
        homes = {each.home for each in self.drives}
        for drive in self.inside:
            if drive.home != drive.slot and (drive.home or drive.slot in homes):
                self.pull(drive)
        for drive in sorted(self.outside, key=lambda each: not each.home):
            free = self.free
            self.put(drive, drive.home if drive.home in free else free[-1])

    def reboot(self, moved: dict[str, str], prebound: set[Drive]) -> None:
        """Reboot; drives appear in other slots, and the host uses its own again.

        :param moved: the new slots, by the former ones.
        :param prebound: the drives that are on vfio-pci at boot.
        """
        used = [each for each in self.inside if each.claims]
        for drive in used:
            self.leave(drive)
        for drive in self.inside:
            self._end_keeper(drive)
        self.kernel.reboot(moved)
        for drive in self.inside:
            drive.slot = moved.get(drive.slot, drive.slot)
        for drive in used:
            assert self.use(drive, drive.trace)
        for drive in prebound - set(used):
            self.bench.bind(drive.slot, "vfio-pci")
