# SPDX-License-Identifier: Apache-2.0

"""A host with eight GPUs of 32 VFs each, on two sockets of two cells."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.testing import FunctionSpec, HostSpec, NodeSpec, SriovSpec, hosts

#: Bus of the root port, of the PCIe switch and of both GPUs below it, by cell.
_BUSES = (0x10, 0x40, 0x90, 0xC0)


def gpu_host() -> HostSpec:
    """Return a host with two GPUs behind a switch, and a network card, in each cell."""
    return HostSpec(
        tuple(
            function for cell, bus in enumerate(_BUSES) for function in _cell(cell, bus)
        ),
        nodes=tuple(_node(cell) for cell in range(len(_BUSES))),
    )


def _node(cell: int) -> NodeSpec:
    """Return one of a socket's two cells; the other one is nearer than the rest."""
    distances = tuple(
        10 if other == cell else 12 if other // 2 == cell // 2 else 21
        for other in range(len(_BUSES))
    )
    return NodeSpec(
        f"{16 * cell}-{16 * cell + 15}",
        memory=262144,
        socket=cell // 2,
        distances=distances,
        huge_pages=((2048, 0), (1048576, 64)),
    )


def _cell(cell: int, bus: int) -> Iterator[FunctionSpec]:
    port, upstream = f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"
    yield hosts.root_port(port, cell)
    yield _bridge(upstream, cell, port)
    for number in range(2):
        downstream = f"0000:{bus + 2:02x}:{number:02x}.0"
        yield _bridge(downstream, cell, upstream)
        yield _gpu(f"0000:{bus + 3 + 8 * number:02x}:00.0", cell, downstream)
    yield hosts.nic(f"0000:{bus + 0x20:02x}", cell, name=f"ens{cell}f0")


def _bridge(address: str, cell: int, parent: str) -> FunctionSpec:
    return FunctionSpec(
        address, 0x1000, 0xC010, 0x060400, "pcieport", numa_node=cell, parent=parent
    )


def _gpu(address: str, cell: int, parent: str) -> FunctionSpec:
    return FunctionSpec(
        address,
        0x10DE,
        0x2330,
        0x030200,
        "nvidia",
        numa_node=cell,
        parent=parent,
        sriov=SriovSpec(32, 0x2330, boot_vfs=32),
    )
