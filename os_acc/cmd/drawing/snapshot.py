# SPDX-License-Identifier: Apache-2.0

"""The data of a drawing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from os_acc.cmd.device_states import DeviceState, DeviceStatus, device_states
from os_acc.host.pci import Host
from os_acc.host.pci_ids import NO_NAMES, ModelNames
from os_acc.inspection import HostInspection
from os_acc.numa.policies import GuestCells
from os_acc.objects.mdev import DeviceAddress, DeviceName
from os_acc.objects.numa import Affinity, NUMATopology
from os_acc.objects.pci import PciAddress, PciFunction


@dataclasses.dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator for a guest; ``is_free``: unused and not faulty."""

    resource_class: str
    numa_node: int | None
    is_free: bool


@dataclasses.dataclass(frozen=True, slots=True)
class HostSnapshot:
    """A host at one moment.

    :ivar name: name of the compute node.
    :ivar states: states of the functions that os_acc may use.
    :ivar parents: the direct parent of each function that is not on a root bus.
    :ivar guest: the guest of the drawing; None: no particular guest.
    :ivar models: the model names of functions, as far as they are known.
    """

    name: str
    host: Host
    states: Mapping[DeviceAddress | DeviceName, DeviceState]
    parents: Mapping[PciAddress, PciAddress]
    topology: NUMATopology
    accelerators: tuple[Accelerator, ...] = ()
    guest: GuestCells | None = None
    models: ModelNames = NO_NAMES

    @property
    def functions(self) -> Mapping[PciAddress, PciFunction]:
        """Every function of the host."""
        return self.host.functions

    def affinity(self, node: int | None) -> Affinity | None:
        """Return the affinity of a node to the guest; None without a guest."""
        return self.guest.affinity(node) if self.guest else None


def of(
    look: HostInspection,
    name: str,
    parents: Mapping[PciAddress, PciAddress],
    topology: NUMATopology,
    cells: tuple[int, ...] = (),
    models: ModelNames = NO_NAMES,
) -> HostSnapshot:
    """Return a snapshot from an inspection.

    :param cells: cells of a guest; empty: no guest.
    """
    states = {each.address: each for each in device_states(look)}
    return HostSnapshot(
        name=name,
        host=look.inventory.host,
        states=MappingProxyType(states),
        parents=parents,
        topology=topology,
        accelerators=tuple(
            Accelerator(
                provider.device.resource_class,
                handle.numa_node,
                states[handle.address].state is DeviceStatus.FREE,
            )
            for provider in look.inventory.providers.values()
            for handle in provider.device.handles
        ),
        guest=GuestCells(topology, cells) if cells else None,
        models=models,
    )
