# SPDX-License-Identifier: Apache-2.0

"""The devices of a guest match its NUMA cells and the kernel's nodes of the devices."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

import os_acc
from os_acc import exception, service
from os_acc.objects.device import Provider
from tests.expected_errors import has

from ..host import HostUnderTest
from .common import FOUR_VFS, flavor, instance, only_provider, scenario, unplug, vfs

#: The guest's NUMA cell.
CELL = 0
#: The nodes of VFs in the order of their addresses: the nearest is not the first.
VF_NODES = (1, None, 0, None)


@scenario
def each_policy_chooses_and_refuses_by_what_the_kernel_says(
    host: HostUnderTest,
) -> None:
    host.start(*_claims(host))
    before = host.snapshot()
    for place in _places(host):
        for policy, allowed in _allowed(host, place).items():
            guest = instance() | {"numa_cells": [CELL]}
            if not allowed:
                with pytest.raises(
                    exception.NoDeviceAvailable,
                    check=has(reason=exception.NoDeviceReason.NUMA_POLICY),
                    match=place,
                ):
                    _plug(guest, _catalog(place), policy)
                assert host.snapshot() == before
                continue
            (entry,) = _plug(guest, _catalog(place), policy)
            assert entry["pci_id"] == place
            assert entry["numa_node"] == _node(host, place)
            assert entry["numa_affinity"] == _stands(host, place)
            assert unplug(guest) == 1
    assert host.snapshot() == before


@scenario
def a_guest_of_both_cells_may_have_what_is_in_either(host: HostUnderTest) -> None:
    host.start(*_claims(host))
    guest = instance() | {"numa_cells": [0, 1]}
    near, far = _catalog(host.places.near), _catalog(host.places.single)
    entries = os_acc.plug(
        guest,
        {
            "allocations": {
                each.uuid: {"resources": {each.device.resource_class: 1}}
                for each in (near, far)
            },
            "mappings": {"1": [near.uuid], "2": [far.uuid]},
        },
        {
            f"resources1:{near.device.resource_class}": "1",
            f"resources2:{far.device.resource_class}": "1",
            "hw:pci_numa_affinity_policy": "required",
            "group_policy": "none",
        },
    )
    assert [entry["numa_node"] for entry in entries] == [0, 1]
    assert {entry["numa_affinity"] for entry in entries} == {"local"}
    assert unplug(guest) == 2


@scenario
def a_cell_that_the_host_does_not_have_is_refused(host: HostUnderTest) -> None:
    host.start(*_claims(host))
    before = host.snapshot()
    guest = instance() | {"numa_cells": [0, 2]}
    with pytest.raises(exception.InvalidInput, match="has 2"):
        _plug(guest, _catalog(host.places.near), "preferred")
    assert host.snapshot() == before


@scenario
def of_one_card_the_nearest_is_chosen(host: HostUnderTest) -> None:
    host.start(vfs(host))
    with _spread(host) as at:
        before, guests = host.snapshot(), [instance() for _ in VF_NODES]
        found = [
            _plug(guest | {"numa_cells": [CELL]}, only_provider(), "preferred")
            for guest in guests
        ]
        nodes = [entry["numa_node"] for (entry,) in found]
        assert nodes == [0, None, None, 1]
        for (entry,) in found:
            assert entry["numa_affinity"] == _stands(host, entry["pci_id"])
        assert found[0][0]["pci_id"] == at[0]
        assert found[3][0]["pci_id"] == at[1]
        assert [unplug(guest) for guest in guests] == [1] * len(guests)
        assert host.snapshot() == before


@scenario
def several_of_one_card_are_those_that_the_policy_allows(host: HostUnderTest) -> None:
    host.start(vfs(host))
    with _spread(host):
        before = host.snapshot()
        for policy in ("required", "socket", "legacy", "preferred"):
            guest = instance() | {"numa_cells": [CELL]}
            allowed = [vf for vf in host.vfs() if _allowed(host, vf)[policy]]
            entries = _plug(guest, only_provider(), policy, len(allowed))
            assert sorted(each["pci_id"] for each in entries) == sorted(allowed)
            assert unplug(guest) == len(allowed)
            if len(allowed) < FOUR_VFS:
                with pytest.raises(
                    exception.NoDeviceAvailable,
                    check=has(reason=exception.NoDeviceReason.NUMA_POLICY),
                ):
                    _plug(guest, only_provider(), policy, len(allowed) + 1)
        assert host.snapshot() == before


@scenario
def a_guest_of_both_cells_gets_one_of_each_from_one_card(host: HostUnderTest) -> None:
    host.start(vfs(host))
    with _spread(host) as at:
        guest = instance() | {"numa_cells": [0, 1]}
        entries = _plug(guest, only_provider(), "preferred", 2)
        assert {each["pci_id"] for each in entries} == {at[0], at[1]}
        assert {each["numa_affinity"] for each in entries} == {"local"}
        assert unplug(guest) == 2


@contextlib.contextmanager
def _spread(host: HostUnderTest) -> Iterator[dict[int | None, str]]:
    """Move one VF to each node, and two to none; yield a VF of each node."""
    before = {vf: _node(host, vf) for vf in host.vfs()}
    at = dict(zip(VF_NODES, before, strict=True))
    try:
        for vf, node in zip(before, VF_NODES, strict=True):
            _move(host, vf, node)
        yield at
    finally:
        for vf, node in before.items():
            _move(host, vf, node)


def _move(host: HostUnderTest, place: str, node: int | None) -> None:
    host.set_node(place, -1 if node is None else node)
    assert _node(host, place) == node


def _places(host: HostUnderTest) -> tuple[str, str, str]:
    """Return a device on node 0, one on node 1, and one on none."""
    return host.places.near, host.places.single, host.places.slot


def _claims(host: HostUnderTest) -> list[dict[str, Any]]:
    # The first is an NVMe function without namespaces.
    tag = {"allow_no_erase": True}
    return [{"address": place, **tag} for place in _places(host)]


def _catalog(address: str) -> Provider:
    (found,) = (
        provider
        for provider in service.get().providers()
        if address in {str(each.address) for each in provider.device.handles}
    )
    return found


def _plug(
    guest: dict[str, Any], provider: Provider, policy: str, amount: int = 1
) -> list[dict[str, Any]]:
    specs = flavor(provider, amount) | {"accel1:numa_policy": policy}
    return os_acc.plug(guest, {"uuid": provider.uuid}, specs)


def _allowed(host: HostUnderTest, place: str) -> dict[str, bool]:
    """Return the verdicts of Nova's policies, from the kernel's own numbers."""
    node = _node(host, place)
    return {
        "required": node == CELL,
        "socket": node is not None and _package(host, node) == _package(host, CELL),
        "legacy": node in (CELL, None),
        "preferred": True,
    }


def _stands(host: HostUnderTest, place: str) -> str:
    node = _node(host, place)
    if node is None:
        return "unknown"
    if node == CELL:
        return "local"
    same = _package(host, node) == _package(host, CELL)
    return "same socket" if same else "remote"


def _node(host: HostUnderTest, place: str) -> int | None:
    number = int(_read(host, f"sys/bus/pci/devices/{place}/numa_node"))
    return None if number < 0 else number


def _package(host: HostUnderTest, node: int) -> int:
    """Return the package of a node's CPU; on both machines a node has one CPU."""
    cpu = int(_read(host, f"sys/devices/system/node/node{node}/cpulist"))
    path = f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
    return int(_read(host, path))


def _read(host: HostUnderTest, path: str) -> str:
    with open(os.path.join(host.root, path), encoding="ascii") as file:
        return file.read().strip()
