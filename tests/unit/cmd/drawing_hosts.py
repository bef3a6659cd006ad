# SPDX-License-Identifier: Apache-2.0

"""Hosts for the tests of drawings, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hypothesis import strategies as st

from os_acc.cmd.device_states import DeviceState, DeviceStatus
from os_acc.cmd.topology_labels import HostSnapshot
from os_acc.exception import HostStepFailed, StepReason
from os_acc.host.pci import Host
from os_acc.numa.policies import GuestCells
from os_acc.objects.lease import Lease
from os_acc.objects.numa import NUMACell, NUMATopology
from os_acc.objects.pci import IommuGroup, PciAddress, PciFunction, PciIdentity
from os_acc.testing import uuid_of
from tests.unit import leases, pci_addresses

IDENTITY = PciIdentity(0x10DE, 0x2330, 0, 0, 0)
BRIDGE, DISPLAY = 0x060400, 0x030200


def address(text: str) -> PciAddress:
    return PciAddress.parse(text)


def function(place: str | PciAddress, node: int | None = 0, **more: Any) -> PciFunction:
    """Return a function; by default, a display controller."""
    values: dict[str, Any] = {
        "identity": IDENTITY,
        "class_code": DISPLAY,
        "driver": "nvidia",
        "has_bridge_header": more.get("class_code") == BRIDGE,
        **more,
    }
    own = place if isinstance(place, PciAddress) else address(place)
    return pci_addresses.function(own, numa_node=node, **values)


def card(
    place: str, vfs: int, node: int | None = 0, **more: Any
) -> tuple[PciFunction, ...]:
    """Return a PF and its VFs, which begin at slot 2."""
    pf = address(place)
    places = [
        PciAddress(pf.domain, pf.bus, 2 + index // 8, index % 8) for index in range(vfs)
    ]
    return (
        function(pf, node, total_vfs=vfs, vfs=tuple(places), **more),
        *(
            function(each, node, physfn=pf, iommu_group=index, **more)
            for index, each in enumerate(places)
        ),
    )


def lease(place: PciAddress, number: int = 1, name: str = "") -> Lease:
    return leases.lease(
        place, uuid=uuid_of(number), consumer=uuid_of(number), name=name
    )


def state(
    place: PciFunction | PciAddress,
    is_in: DeviceStatus = DeviceStatus.FREE,
    *,
    given: Lease | None = None,
    reason: str = "",
) -> DeviceState:
    """Return the state of a function; one given by its address alone has gone."""
    found = place if isinstance(place, PciFunction) else None
    own = found.address if found else place
    assert isinstance(own, PciAddress)
    return DeviceState(own, is_in, found, None, given, (own,), own, reason)


def cells(*sockets: int | None) -> NUMATopology:
    """Return a topology with one cell per argument, on that socket."""
    return NUMATopology(
        tuple(
            NUMACell(number, frozenset({number}), memory=1024, socket=socket)
            for number, socket in enumerate(sockets)
        )
    )


def scene(
    functions: Iterable[PciFunction],
    states: Iterable[DeviceState] = (),
    *,
    parents: Iterable[tuple[str, str]] = (),
    topology: NUMATopology | None = None,
    free: Mapping[str, Sequence[int | None]] = MappingProxyType({}),
    guest: tuple[int, ...] = (),
    unreadable: Iterable[str] = (),
    name: str = "node1",
) -> HostSnapshot:
    found = {each.address: each for each in functions}
    groups: dict[int, list[PciAddress]] = {}
    for each in found.values():
        if each.iommu_group is not None:
            groups.setdefault(each.iommu_group, []).append(each.address)
    there = topology or cells(0, 1)
    return HostSnapshot(
        name=name,
        host=Host(
            MappingProxyType(dict(sorted(found.items()))),
            MappingProxyType({n: IommuGroup(n, tuple(m)) for n, m in groups.items()}),
            MappingProxyType({}),
            MappingProxyType(
                {
                    each: HostStepFailed("<odd>", reason=StepReason.REFUSED)
                    for each in unreadable
                }
            ),
        ),
        states=MappingProxyType({each.address: each for each in states}),
        parents=MappingProxyType(
            {address(one): address(other) for one, other in parents}
        ),
        topology=there,
        free=free,
        guest=GuestCells(there, guest) if guest else None,
    )


_NODES = st.sampled_from([None, 0, 1, 2, 7])
_NAMES = st.text(max_size=30)


@st.composite
def scenes(draw: st.DrawFn) -> HostSnapshot:
    """Draw hosts of any shape: deep, flat, contradictory, with any names."""
    functions: list[PciFunction] = []
    parents: list[tuple[str, str]] = []
    bridges: list[PciAddress] = []
    for bus in range(draw(st.integers(0, 6))):
        node = draw(_NODES)
        for slot in draw(st.lists(st.sampled_from([0, 1]), unique=True, max_size=2)):
            place = PciAddress(draw(st.sampled_from([0, 0x10000])), bus, slot, 0)
            others = [each.address for each in functions]
            above = draw(st.sampled_from([None, *bridges, *others]))
            if draw(st.booleans()):
                functions.append(function(place, node, class_code=BRIDGE))
                bridges.append(place)
            else:
                vfs = draw(st.integers(0, 12))
                functions += card(str(place), vfs, node) if slot == 0 else ()
                functions += [function(place, node)] if slot else []
            if above is not None:
                parents.append((str(place), str(above)))
    # Firmware, or a writer of numa_node, may have set any node.
    functions = [
        dataclasses.replace(each, numa_node=draw(_NODES))
        if draw(st.integers(0, 20)) == 20
        else each
        for each in functions
    ]
    states = [draw(_states(each)) for each in functions if draw(st.integers(0, 2)) > 0]
    gone = PciAddress(0, 0xFE, 0, 0)
    if draw(st.booleans()):
        states.append(state(gone, DeviceStatus.LEASED, given=lease(gone)))
    sockets = draw(st.lists(st.sampled_from([None, 0, 1]), max_size=4))
    return scene(
        functions,
        states,
        parents=parents,
        topology=cells(*sockets),
        free=draw(st.dictionaries(st.sampled_from("AB"), st.lists(_NODES, max_size=3))),
        guest=(0,) if sockets and draw(st.booleans()) else (),
        unreadable=draw(st.lists(_NAMES, max_size=2)),
        name=draw(_NAMES),
    )


@st.composite
def _states(draw: st.DrawFn, found: PciFunction) -> DeviceState:
    is_in = draw(st.sampled_from(DeviceStatus))
    given = None
    if is_in in (DeviceStatus.LEASED, DeviceStatus.PREPARING, DeviceStatus.QUARANTINED):
        number = draw(st.integers(1, 12))
        given = lease(found.address, number, draw(_NAMES))
    return state(found, is_in, given=given, reason=draw(_NAMES))
