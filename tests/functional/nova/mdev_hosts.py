# SPDX-License-Identifier: Apache-2.0

"""Compute nodes with mediated devices, which libvirt lists as it does those of Nova.

Each node has one GPU whose driver offers four mediated devices of a type; the second
node may have a second one. Nova's fake
of libvirt neither lists those of the simulated kernel nor attaches any to a guest that
runs: both are added here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from lxml import etree
from nova.tests.fixtures import libvirt

from os_acc.host import mdev
from os_acc.objects.mdev import MdevType
from os_acc.testing import HostSpec, hosts
from os_acc.testing.specs import MdevParentSpec, MdevTypeSpec
from tests.functional.nova import compute_nodes, libvirt_servers
from tests.functional.nova.compute_nodes import ComputeNode

PARENTS: Mapping[str, str] = {"compute1": "0000:17:00.0", "compute2": "0000:27:00.0"}
SPARE = "0000:28:00.0"
TYPE = "nvidia-558"
UNITS = 4
_CLASS = "CUSTOM_ACCELERATOR_MDEV"
_MOVES = (7, 60)


class MdevNode(ComputeNode):
    """A node whose GPU is offered as mediated devices."""

    def device_spec(self) -> list[str]:
        return [f'{{"address": "{gpu}", "mdev_types": "{TYPE}"}}' for gpu in self.gpus]

    def mdevs(self) -> dict[str, MdevType]:
        """Return the type of each mediated device of the node's GPUs, by its UUID."""
        found = mdev.read_mdevs(self.bench.root)
        return {
            each.uuid: each.type
            for each in found
            if each.type is not None and each.type.parent in self.gpus
        }

    def create(self, uuid: str) -> None:
        """Create a mediated device without os_acc."""
        (gpu,) = self.gpus
        types = f"{self.bench.root}/{mdev.PARENTS}/{gpu}/mdev_supported_types"
        self.bench.kernel.write(f"{types}/{TYPE}/create", uuid)


class ListedMdevs(libvirt.HostMdevDevicesInfo):  # type: ignore[misc]
    """The mediated devices of a node, as libvirt 7.7 and later names them."""

    def __init__(self, node: MdevNode) -> None:
        self._node = node

    @property
    def devices(self) -> dict[str, Any]:
        return {
            name: libvirt.FakeMdevDevice(name, kind.name, f"pci_{place}")
            for uuid, kind in self._node.mdevs().items()
            for place in [kind.parent.replace(":", "_").replace(".", "_")]
            for name in [f"mdev_{uuid.replace('-', '_')}_{place}"]
        }


@dataclasses.dataclass
class MdevCloud:
    """Nova's services, and the mediated devices of their hosts."""

    nova: libvirt_servers.LibvirtServers
    nodes: Mapping[str, MdevNode]

    def start(self, host: str, **more: Any) -> None:
        """Start a compute service."""
        self.nova.start_compute(host, mdev_info=ListedMdevs(self.nodes[host]), **more)

    def check_attached(self, server: dict[str, Any], host: str, number: int = 1) -> Any:
        """Check a server whose guest runs with its mediated devices; return these.

        The UUIDs in the definition are those of the leases, each of which has its
        mediated device; Placement has an allocation for each.
        """
        held = self.check_held(server["id"], host, number)
        assert self.nova.is_running(host, server)
        assert sorted(self.nova.mdevs(host, server)) == held
        assert self.nova.hostdevs(host, server) == []
        return held

    def check_held(self, consumer: str, host: str, number: int = 1) -> list[str]:
        """Check a consumer that holds mediated devices; return their UUIDs."""
        leases = self.nodes[host].leases().get(consumer, [])
        assert [each.state.value for each in leases] == ["held"] * number
        found = sorted(each.uuid for each in leases)
        assert set(found) <= set(self.nodes[host].mdevs())
        # Of an evacuated server Nova keeps the allocation on the dead host as well.
        allocated = self.nova.allocations(consumer)
        (provider,) = self.nodes[host].providers
        assert allocated[provider] == {_CLASS: number}
        return found

    def check_free(self, host: str) -> None:
        """Check a host without leases and without mediated devices."""
        assert self.nodes[host].leases() == {}
        assert self.nodes[host].mdevs() == {}


@pytest.fixture
def mdev_nodes(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[dict[str, MdevNode]]:
    """Yield two nodes, each with one GPU; a parameter replaces its answer."""
    answer = getattr(request, "param", _MOVES)
    with nodes_with_gpus(tmp_path, (0, 0), answer) as found:
        yield found


@contextlib.contextmanager
def nodes_with_gpus(
    directory: Path, cells: tuple[int, ...], answer: tuple[int, int] = _MOVES
) -> Iterator[dict[str, MdevNode]]:
    """Yield two nodes, each with one GPU in this NUMA cell.

    :param cells: the second node has one more GPU in a third cell.
    :param answer: see :attr:`MdevTypeSpec.migration`.
    """
    first, second = PARENTS
    gpus = [*PARENTS.values(), SPARE][: len(cells)]
    functions = []
    for gpu, cell in zip(gpus, cells, strict=True):
        display, audio = hosts.gpu(gpu.rpartition(":")[0], cell)
        kind = MdevTypeSpec(TYPE, migration=answer)
        parent = MdevParentSpec(gpu, UNITS, (kind,))
        functions += [dataclasses.replace(display, mdevs=parent), audio]
    with compute_nodes.simulated(directory, HostSpec(tuple(functions))) as bench:
        yield {
            first: MdevNode(first, bench, gpus[:1]),
            second: MdevNode(second, bench, gpus[1:]),
        }


@pytest.fixture
def mdev_cloud(mdev_nodes: dict[str, MdevNode]) -> Iterator[MdevCloud]:
    """Yield Nova's services without a compute node."""
    kind = libvirt_servers.LibvirtServers
    with libvirt_servers.running(kind, mdev_nodes) as nova, hotplug(mdev_nodes):
        yield MdevCloud(nova, mdev_nodes)


@contextlib.contextmanager
def hotplug(nodes: Mapping[str, MdevNode]) -> Iterator[None]:
    """Let libvirt attach mediated devices to guests that run, and detach them."""
    domain = libvirt.Domain
    attach, detach, describe = (
        domain.attachDevice,
        domain.detachDevice,
        domain.XMLDesc,
    )

    def attached(guest: Any, xml: str) -> Any:
        uuid = _uuid(xml)
        if uuid is None:
            return attach(guest, xml)
        if not any(uuid in node.mdevs() for node in nodes.values()):
            raise libvirt.make_libvirtError(
                libvirt.libvirtError,
                f"mediated device '{uuid}' not found",
                error_code=libvirt.VIR_ERR_DEVICE_MISSING,
            )
        device = {"type": "mdev", "model": "vfio-pci", "address_uuid": uuid}
        guest._def["devices"]["hostdevs"].append(device)
        return True

    def detached(guest: Any, xml: str) -> Any:
        uuid = _uuid(xml)
        if uuid is None:
            return detach(guest, xml)
        devices = guest._def["devices"]["hostdevs"]
        devices[:] = [each for each in devices if each.get("address_uuid") != uuid]
        return True

    def described(guest: Any, flags: int) -> str:
        # libvirt always states "managed", and Nova needs it.
        mediated = "type='mdev'"
        xml: str = describe(guest, flags)
        return xml.replace(mediated, f"{mediated} managed='no'")

    with (
        mock.patch.object(domain, "XMLDesc", described),
        mock.patch.object(domain, "attachDevice", attached),
        mock.patch.object(domain, "detachDevice", detached),
    ):
        yield


def _uuid(xml: str) -> str | None:
    """Return the UUID of a mediated device; None: another device."""
    device = etree.fromstring(xml)
    if device.tag != "hostdev" or device.get("type") != "mdev":
        return None
    found: str = device.find("source/address").get("uuid")
    return found
