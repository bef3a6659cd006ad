# SPDX-License-Identifier: Apache-2.0

"""NUMA: what a host has in each of its cells, and what a guest wants there.

The names are those of the specification of NUMA-aware virtual switches and of
Nova's ``objects/numa.py`` and ``objects/instance_numa.py``; a *cell* is what the
kernel calls a node. Sizes of memory are in MiB and those of pages in KiB, as
they are in Nova's objects.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

#: Distance of a cell from itself, in ACPI's System Locality Information Table.
LOCAL_DISTANCE: Final = 10
#: Distance of another cell where the firmware has no table.
REMOTE_DISTANCE: Final = 20


class NUMAPolicy(enum.Enum):
    """How near to its memory a guest's device has to be.

    Nova's names (``hw:pci_numa_affinity_policy``), from the strictest.
    """

    #: In one of the guest's cells.
    REQUIRED = "required"
    #: On the socket of one of the guest's cells.
    SOCKET = "socket"
    #: In one of the guest's cells, or in none that the kernel knows.
    LEGACY = "legacy"
    #: Anywhere, as near as there is one.
    PREFERRED = "preferred"


class Affinity(enum.Enum):
    """How a device stands to the cells of a guest, from the best."""

    LOCAL = "local"
    #: The kernel does not know of any cell (``numa_node`` -1).
    UNKNOWN = "unknown"
    SAME_SOCKET = "same socket"
    REMOTE = "remote"


class CPUPolicy(enum.Enum):
    """``hw:cpu_policy``: whether a guest's CPUs have the host's to themselves."""

    SHARED = "shared"
    DEDICATED = "dedicated"
    MIXED = "mixed"


class CPUThreadPolicy(enum.Enum):
    """``hw:cpu_thread_policy``: what shares a core with a dedicated CPU."""

    PREFER = "prefer"
    REQUIRE = "require"
    ISOLATE = "isolate"


class PageSize(enum.IntEnum):
    """The values of ``hw:mem_page_size`` that are no size; Nova's numbers."""

    SMALL = -1
    LARGE = -2
    ANY = -3


@dataclasses.dataclass(frozen=True, slots=True)
class NUMANetworkInfo:
    """The networks whose traffic leaves the host in one cell.

    :ivar physnets: physical networks: flat ones and VLANs.
    :ivar tunneled: whether GRE and VXLAN leave it there.
    """

    physnets: frozenset[str] = frozenset()
    tunneled: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceNUMANetworks:
    """The networks that a guest asks for, in the same terms."""

    physnets: frozenset[str] = frozenset()
    tunneled: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPages:
    """The pages of one size in a cell; ``size_kb`` in KiB, the rest in pages."""

    size_kb: int
    total: int
    used: int = 0
    reserved: int = 0

    @property
    def free(self) -> int:
        """How many nobody has."""
        return self.total - self.used - self.reserved


@dataclasses.dataclass(frozen=True, slots=True)
class NUMACell:
    """One cell of the host.

    :ivar id: the number of the kernel's node.
    :ivar cpuset: host CPUs that guests share.
    :ivar pcpuset: host CPUs that a guest can have to itself.
    :ivar memory: in MiB, used or not.
    :ivar siblings: the hardware threads of each core, of those CPUs.
    :ivar mempages: by ascending size; empty where nothing is known of them.
    :ivar socket: None where its CPUs are on several, or it has none.
    :ivar distances: to every cell of the host, (cell, distance), by ACPI's table.
    :ivar cpu_usage: how many guests' CPUs share ``cpuset``.
    :ivar memory_usage: in MiB.
    :ivar pinned_cpus: those of ``pcpuset`` that a guest has.
    """

    id: int
    cpuset: frozenset[int] = frozenset()
    pcpuset: frozenset[int] = frozenset()
    memory: int = 0
    siblings: tuple[frozenset[int], ...] = ()
    mempages: tuple[MemoryPages, ...] = ()
    socket: int | None = None
    distances: tuple[tuple[int, int], ...] = ()
    network_info: NUMANetworkInfo = NUMANetworkInfo()
    cpu_usage: int = 0
    memory_usage: int = 0
    pinned_cpus: frozenset[int] = frozenset()

    @property
    def free_pcpus(self) -> frozenset[int]:
        """The host CPUs that a guest could still have to itself."""
        return self.pcpuset - self.pinned_cpus

    @property
    def available_memory(self) -> int:
        """In MiB."""
        return self.memory - self.memory_usage


@dataclasses.dataclass(frozen=True, slots=True)
class NUMATopology:
    """The host's cells, by ascending id."""

    cells: tuple[NUMACell, ...] = ()

    def cell(self, number: int) -> NUMACell | None:
        """The cell with that id."""
        return next((each for each in self.cells if each.id == number), None)

    def distance(self, one: int, other: int) -> int:
        """From a cell to another, as the firmware says or as it is by default."""
        near = self.cell(one)
        told = dict(near.distances).get(other) if near else None
        if told is not None:
            return told
        return LOCAL_DISTANCE if one == other else REMOTE_DISTANCE


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceNUMACell:
    """One cell of a guest.

    :ivar cpuset: its CPUs that share the host's.
    :ivar pcpuset: its CPUs that have one of the host's to themselves.
    :ivar memory: in MiB.
    :ivar pagesize: in KiB, or one of :class:`PageSize`; None: any will do.
    """

    cpuset: frozenset[int] = frozenset()
    pcpuset: frozenset[int] = frozenset()
    memory: int = 0
    pagesize: int | None = None
    cpu_policy: CPUPolicy = CPUPolicy.SHARED
    cpu_thread_policy: CPUThreadPolicy | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceNUMATopology:
    """The guest's cells, in the guest's order.

    :ivar emulator_threads_isolated: whether the emulator has a host CPU to
        itself, in the cell of the guest's first.
    """

    cells: tuple[InstanceNUMACell, ...] = ()
    emulator_threads_isolated: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class NUMALimits:
    """How much a cell may be asked for beyond what it has, as ratios."""

    cpu_allocation_ratio: float = 1.0
    ram_allocation_ratio: float = 1.0
