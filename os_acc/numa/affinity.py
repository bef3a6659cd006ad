# SPDX-License-Identifier: Apache-2.0

"""Affinity of devices to a guest, and the affinities that each policy allows.

The policies are Nova's (``nova/pci/stats.py``, ``_filter_pools_for_numa_cells``):
a policy allows the same devices here and there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from os_acc.objects.numa import Affinity as Affinity
from os_acc.objects.numa import NUMAPolicy, NUMATopology


@dataclasses.dataclass(frozen=True, slots=True)
class GuestCells:
    """The host cells that carry a guest.

    :ivar cells: ids of host cells, in the order of the guest's cells; empty for a
        guest without NUMA topology, which may run on any cell.
    """

    topology: NUMATopology
    cells: tuple[int, ...] = ()

    def affinity(self, node: int | None) -> Affinity:
        """Return the affinity of a device on this node to the guest."""
        if not self.cells or node in self.cells:
            return Affinity.LOCAL
        if node is None:
            return Affinity.UNKNOWN
        if node in self._socket_neighbours():
            return Affinity.SAME_SOCKET
        return Affinity.REMOTE

    def distance(self, node: int | None) -> int:
        """Return the distance from a node to the nearest guest cell; 0: unknown."""
        if node is None or not self.cells:
            return 0
        return min(self.topology.distance(cell, node) for cell in self.cells)

    def nearest(self, node: int | None) -> tuple[int, ...]:
        """Return the guest's cells with the smallest distance to a node."""
        if node is None:
            return self.cells
        least = self.distance(node)
        return tuple(
            cell for cell in self.cells if self.topology.distance(cell, node) == least
        )

    def _socket_neighbours(self) -> Collection[int]:
        """Return the cells that share a socket with the guest.

        Nova returns none if any cell of the host lacks a socket.
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
    """Return whether a policy allows a device of this affinity."""
    return affinity in _ALLOWED[policy]
