# SPDX-License-Identifier: Apache-2.0

"""Compute nodes whose accelerators are those of one simulated kernel.

Each node has its own ``device_spec``, state and name, as two hosts have. A process has
one kernel for its privileged code, so that the nodes share the simulated one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from nova.conf import CONF, devices, pci
from oslo_config import cfg

import os_acc
from os_acc import exception
from os_acc.attach.manager import Manager
from os_acc.nova.initialization import DeferredNode
from os_acc.objects.lease import Lease
from os_acc.testing import HostSpec, TestHost, hosts

#: The GPUs of each node.
GPUS: Mapping[str, Sequence[str]] = {
    "compute1": ("0000:17:00.0", "0000:18:00.0"),
    "compute2": ("0000:27:00.0", "0000:28:00.0"),
}


@dataclasses.dataclass
class ComputeNode:
    """One node of a simulated kernel.

    :ivar gpus: the addresses of its GPUs.
    """

    name: str
    bench: TestHost
    gpus: Sequence[str]
    _manager: Manager | None = None
    _error: exception.OsAccError | None = None

    @property
    def manager(self) -> Manager:
        """The service of the node; the first use starts it."""
        return self._manager or self.restart()

    def restart(self) -> Manager:
        """Start the service again, as a new nova-compute does."""
        self._manager = self.bench.start(self._config())
        return self._manager

    def _config(self) -> cfg.ConfigOpts:
        """Return the options of os_acc and, as in nova-compute, those of Nova."""
        config = self.bench.config(
            node_name=self.name,
            state_path=str(self.bench.directory / f"state-{self.name}"),
            device_spec=[
                f'{{"address": "{gpu.rpartition(".")[0]}.*"}}' for gpu in self.gpus
            ],
        )
        for options in (pci, devices):
            options.register_opts(config)
        config.set_override("device_spec", CONF.pci.device_spec, group="pci")
        types = CONF.devices.enabled_mdev_types
        config.set_override("enabled_mdev_types", types, group="devices")
        return config

    def deferred(self, interval: float) -> DeferredNode:
        """Return what the driver makes for this node."""
        return DeferredNode(self.name, self.handle, interval, self._config())

    @contextlib.contextmanager
    def unavailable(self, error: exception.OsAccError) -> Iterator[None]:
        """Let the initialization of this node fail, in a block."""
        self._error = error
        try:
            yield
        finally:
            self._error = None

    def handle(self) -> os_acc.Node:
        """Return what :func:`os_acc.initialize` returns for this node."""
        if self._error is not None:
            raise self._error
        return os_acc.Node(self.name, lambda: self.manager)

    def leases(self) -> dict[str, list[Lease]]:
        """Return the leases of each consumer."""
        found: dict[str, list[Lease]] = {}
        for lease in self.manager.store.leases():
            found.setdefault(lease.consumer, []).append(lease)
        return found

    def wait_for_lease(self, consumer: str) -> None:
        """Wait until a consumer has a lease."""
        while consumer not in self.leases():
            time.sleep(0.1)

    def provider(self, gpu: str) -> str:
        """Return the UUID of the provider of a GPU."""
        (found,) = {
            each.uuid
            for each in self.manager.providers()
            if gpu in map(str, (handle.address for handle in each.device.handles))
        }
        return found

    def cell(self, gpu: str) -> int | None:
        """Return the NUMA cell of a GPU."""
        (found,) = {
            handle.numa_node
            for each in self.manager.providers()
            for handle in each.device.handles
            if str(handle.address) == gpu
        }
        return found


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, ComputeNode]]:
    """Yield two nodes, each with two GPUs."""
    slots = [gpu.rpartition(":")[0] for gpus in GPUS.values() for gpu in gpus]
    spec = HostSpec(tuple(each for slot in slots for each in hosts.gpu(slot, 0)))
    with TestHost(tmp_path, spec) as bench:
        yield {name: ComputeNode(name, bench, gpus) for name, gpus in GPUS.items()}
