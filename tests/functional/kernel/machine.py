# SPDX-License-Identifier: Apache-2.0

"""The functions of the machine by their purpose, found from sysfs."""

from __future__ import annotations

from dataclasses import dataclass

from . import lane, sysfs


@dataclass(frozen=True, slots=True)
class Machine:
    """The functions that :func:`.lane.qemu_options` puts into the machine.

    :ivar pf_node0: an SR-IOV NVMe controller (nvme, four VFs) on node 0.
    :ivar pf_node1: its twin on node 1.
    :ivar edu_node1: alone behind a root port of node 1, without a driver;
    only a bus reset.
    :ivar edu: on the root bus, without a node, a driver or any reset.
    :ivar card: an ``edu`` and an NVMe controller (nvme, a disk of 64 MiB) in
    one slot and one IOMMU group.
    :ivar pair: a display and an ``edu`` behind a root port, without drivers, in one
    slot and one group; neither can be reset alone.
    :ivar legacy: a conventional bridge and the two ``edu`` behind it, all of
    one IOMMU group.
    :ivar legacy_bridge: that bridge.
    :ivar hotplug: the removable ``edu``; without a node.
    :ivar fpga: a device on which :class:`.dfl_card.Card` can be simulated, alone behind
    a root port of node 1, without a driver; only a bus reset.
    :ivar plain_fpga: the same kind, on the root bus, without a node or any reset.
    """

    pf_node0: str
    pf_node1: str
    edu_node1: str
    edu: str
    card: tuple[str, str]
    pair: tuple[str, str]
    legacy: tuple[str, str]
    legacy_bridge: str
    hotplug: str
    fpga: str
    plain_fpga: str


def behind(port: str, device: int = 0) -> str:
    """Return the address of function 0 of a device behind a bridge."""
    bus = int(sysfs.read(port, "secondary_bus_number"))
    return f"{port[:4]}:{bus:02x}:{device:02x}.0"


def find() -> Machine:
    """Return the functions of the running machine."""
    bridge = behind(lane.PORT_LEGACY)
    return Machine(
        pf_node0=behind(lane.PORT_NVME_NODE0),
        pf_node1=behind(lane.PORT_NVME_NODE1),
        edu_node1=behind(lane.PORT_EDU_NODE1),
        edu=lane.PLAIN_EDU,
        card=(lane.CARD_EDU, lane.CARD_NVME),
        pair=(behind(lane.PORT_PAIR), behind(lane.PORT_PAIR)[:-1] + "1"),
        legacy=(behind(bridge, 1), behind(bridge, 2)),
        legacy_bridge=bridge,
        hotplug=behind(lane.PORT_HOTPLUG),
        fpga=behind(lane.PORT_FPGA_NODE1),
        plain_fpga=lane.PLAIN_FPGA,
    )
