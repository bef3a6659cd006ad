# SPDX-License-Identifier: Apache-2.0

"""How near a device is to a guest, and which policy allows that.

The policies are Nova's (``nova/pci/stats.py``, ``_filter_pools_for_numa_cells``):
where a device serves a guest under a policy here, it serves it there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from os_acc.objects.numa import Affinity as Affinity
from os_acc.objects.numa import NUMAPolicy, NUMATopology


@dataclasses.dataclass(frozen=True, slots=True)
class GuestCells:
    """Where a guest is: the host's cells that its own are on.

    :ivar cells: ids of host cells, in the order of the guest's own; empty
        where it has none, and may be anywhere.
    """

    topology: NUMATopology
    cells: tuple[int, ...] = ()

    def affinity(self, node: int | None) -> Affinity:
        """How a device of that node stands to this guest."""
        if not self.cells or node in self.cells:
            return Affinity.LOCAL
        if node is None:
            return Affinity.UNKNOWN
        if node in self._socket_neighbours():
            return Affinity.SAME_SOCKET
        return Affinity.REMOTE

    def distance(self, node: int | None) -> int:
        """From a device's node to the nearest of the guest's cells; 0: unknown."""
        if node is None or not self.cells:
            return 0
        return min(self.topology.distance(cell, node) for cell in self.cells)

    def nearest(self, node: int | None) -> tuple[int, ...]:
        """Those of the guest's cells that no other is nearer than."""
        if node is None:
            return self.cells
        least = self.distance(node)
        return tuple(
            cell for cell in self.cells if self.topology.distance(cell, node) == least
        )

    def _socket_neighbours(self) -> Collection[int]:
        """The cells on a socket of the guest's.

        Nova knows none as soon as one cell of the host has no socket of its own.
        """
        if any(cell.socket is None for cell in self.topology.cells):
            return ()
        sockets = {cell.socket for cell in self.topology.cells if cell.id in self.cells}
        return {cell.id for cell in self.topology.cells if cell.socket in sockets}


_ALLOWED = {
    NUMAPolicy.REQUIRED: {Affinity.LOCAL},
    NUMAPolicy.SOCKET: {Affinity.LOCAL, Affinity.SAME_SOCKET},
    NUMAPolicy.LEGACY: {Affinity.LOCAL, Affinity.UNKNOWN},
    NUMAPolicy.PREFERRED: set(Affinity),
}


def allows(policy: NUMAPolicy, affinity: Affinity) -> bool:
    """Whether a guest may have a device that stands so to it."""
    return affinity in _ALLOWED[policy]
