# SPDX-License-Identifier: Apache-2.0

"""NUMA: the resources of a host's cells, and the requirements of a guest's.

The names are those of the specification of NUMA-aware virtual switches and of
Nova's ``objects/numa.py`` and ``objects/instance_numa.py``; a *cell* is a NUMA
node of the kernel. Memory sizes are in MiB and page sizes in KiB, as in Nova's
objects.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

#: Distance of a cell from itself, in ACPI's System Locality Information Table.
LOCAL_DISTANCE: Final = 10
#: Distance of another cell if the firmware has no table.
REMOTE_DISTANCE: Final = 20


class NUMAPolicy(enum.Enum):
    """The required affinity of a guest's devices to its memory.

    Nova's names (``hw:pci_numa_affinity_policy``), strictest first.
    """

    #: In one of the guest's cells.
    REQUIRED = "required"
    #: On the socket of one of the guest's cells.
    SOCKET = "socket"
    #: In one of the guest's cells, or in no known cell.
    LEGACY = "legacy"
    #: Anywhere, the nearest first.
    PREFERRED = "preferred"


class Affinity(enum.Enum):
    """The affinity of a device to the cells of a guest, best first."""

    LOCAL = "local"
    #: The kernel reports no node (``numa_node`` -1).
    UNKNOWN = "unknown"
    SAME_SOCKET = "same socket"
    REMOTE = "remote"


@dataclasses.dataclass(frozen=True, slots=True)
class PolicySources:
    """The NUMA policies for one device, by their source; None: not set.

    :ivar port: of the Neutron port of its request group.
    :ivar group: of its request group.
    :ivar guest: of the flavor or the image, for all devices of the guest.
    :ivar device: of Nova's alias of the device, or its tag in ``device_spec``.
    """

    port: NUMAPolicy | None = None
    group: NUMAPolicy | None = None
    guest: NUMAPolicy | None = None
    device: NUMAPolicy | None = None

    @property
    def effective(self) -> NUMAPolicy:
        """The first policy that is set, in the order of the fields; else legacy."""
        return self.port or self.group or self.guest or self.device or NUMAPolicy.LEGACY


#: The policies of a device for which no source sets one.
NO_POLICIES: Final = PolicySources()


class CPUPolicy(enum.Enum):
    """``hw:cpu_policy``: whether host CPUs are dedicated to the guest's CPUs."""

    SHARED = "shared"
    DEDICATED = "dedicated"
    MIXED = "mixed"


class CPUThreadPolicy(enum.Enum):
    """``hw:cpu_thread_policy``: the sharing of a core with a dedicated CPU."""

    PREFER = "prefer"
    REQUIRE = "require"
    ISOLATE = "isolate"


class PageSize(enum.IntEnum):
    """The symbolic values of ``hw:mem_page_size``; Nova's numbers."""

    SMALL = -1
    LARGE = -2
    ANY = -3


@dataclasses.dataclass(frozen=True, slots=True)
class NUMANetworkInfo:
    """The networks whose traffic leaves the host in one cell.

    :ivar physnets: physical networks, used by flat networks and VLANs.
    :ivar tunneled: whether GRE and VXLAN traffic leaves the host there.
    """

    physnets: frozenset[str] = frozenset()
    tunneled: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceNUMANetworks:
    """The networks that a guest requires, in the same terms."""

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
        """The number of free pages."""
        return self.total - self.used - self.reserved


@dataclasses.dataclass(frozen=True, slots=True)
class NUMACell:
    """One cell of the host.

    :ivar id: the number of the kernel's node.
    :ivar cpuset: host CPUs that guests share.
    :ivar pcpuset: host CPUs available as dedicated CPUs.
    :ivar memory: in MiB, total.
    :ivar siblings: the hardware threads of each core, among those CPUs.
    :ivar mempages: by ascending size; empty if unknown.
    :ivar socket: None if its CPUs are on several sockets, or it has none.
    :ivar distances: (cell, distance) for every cell of the host, by ACPI's table.
    :ivar cpu_usage: the number of guest CPUs that share ``cpuset``.
    :ivar memory_usage: in MiB.
    :ivar pinned_cpus: the CPUs of ``pcpuset`` in use by a guest.
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
        """The host CPUs that can still be dedicated."""
        return self.pcpuset - self.pinned_cpus

    @property
    def available_memory(self) -> int:
        """Free memory in MiB."""
        return self.memory - self.memory_usage


@dataclasses.dataclass(frozen=True, slots=True)
class NUMATopology:
    """The host's cells, by ascending id."""

    cells: tuple[NUMACell, ...] = ()

    def cell(self, number: int) -> NUMACell | None:
        """Return the cell with this id."""
        return next((each for each in self.cells if each.id == number), None)

    def distance(self, one: int, other: int) -> int:
        """Return the distance between two cells, from the firmware or the default."""
        near = self.cell(one)
        recorded = dict(near.distances).get(other) if near else None
        if recorded is not None:
            return recorded
        return LOCAL_DISTANCE if one == other else REMOTE_DISTANCE


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceNUMACell:
    """One cell of a guest.

    :ivar cpuset: its CPUs that share host CPUs.
    :ivar pcpuset: its CPUs with dedicated host CPUs.
    :ivar memory: in MiB.
    :ivar pagesize: in KiB, or one of :class:`PageSize`; None: any.
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

    :ivar emulator_threads_isolated: whether the emulator has a dedicated host
        CPU, in the cell of the guest's first cell.
    """

    cells: tuple[InstanceNUMACell, ...] = ()
    emulator_threads_isolated: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class NUMALimits:
    """The overcommit ratios of a cell."""

    cpu_allocation_ratio: float = 1.0
    ram_allocation_ratio: float = 1.0
