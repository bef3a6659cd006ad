# SPDX-License-Identifier: Apache-2.0

"""Compute nodes whose accelerators are those of one simulated kernel.

Each node has its own ``device_spec``, state and name, as two hosts have. A process has
one kernel for its privileged code, so that the nodes share the simulated one.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from nova.conf import CONF, devices, pci
from oslo_config import cfg

import os_acc
from os_acc import exception, native_threads
from os_acc.attach.manager import Manager
from os_acc.nova.initialization import DeferredNode
from os_acc.objects.lease import HelperRecord, Lease
from os_acc.privsep import claims
from os_acc.store.journal import KEPT, Operation
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.kernel import FunctionState
from tests.functional.nova import operations

_VFIO = "vfio-pci"

#: The GPUs of each node.
GPUS: Mapping[str, Sequence[str]] = {
    "compute1": ("0000:17:00.0", "0000:18:00.0", "0000:19:00.0", "0000:1a:00.0"),
    "compute2": ("0000:27:00.0", "0000:28:00.0", "0000:29:00.0", "0000:2a:00.0"),
}


@dataclasses.dataclass
class ComputeNode:
    """One node of a simulated kernel.

    :ivar gpus: the addresses of its GPUs.
    :ivar before: the functions of the kernel before os_acc has changed any.
    """

    name: str
    bench: TestHost
    gpus: Sequence[str]
    before: Mapping[str, FunctionState] = dataclasses.field(init=False)
    _manager: Manager | None = None
    _error: exception.OsAccError | None = None

    def __post_init__(self) -> None:
        self.before = {each.address: each for each in self.bench.kernel.snapshot()}

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
            device_spec=self.device_spec(),
        )
        for options in (pci, devices):
            options.register_opts(config)
        config.set_override("device_spec", CONF.pci.device_spec, group="pci")
        types = CONF.devices.enabled_mdev_types
        config.set_override("enabled_mdev_types", types, group="devices")
        return config

    def device_spec(self) -> list[str]:
        """Return the devices that the operator of this node names."""
        return [f'{{"address": "{gpu.rpartition(".")[0]}.*"}}' for gpu in self.gpus]

    def deferred(self, interval: float) -> DeferredNode:
        """Return the deferred node that the driver creates."""
        return DeferredNode(self.name, self.handle, interval, self._config())

    @contextlib.contextmanager
    def unavailable(self, error: exception.OsAccError | None = None) -> Iterator[None]:
        """Let the initialization of this node fail, in a block.

        :param error: None: the helper does not start.
        """
        self._error = error or exception.HelperUnavailable("it does not start")
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

    def wait_for_lease(self, consumer: str, *, has_one: bool = True) -> None:
        """Wait until a consumer has a lease, or has none."""
        operations.wait_until(self.leases, lambda found: (consumer in found) is has_one)

    def check_journal(self) -> None:
        """Check that the leases record the bindings that a release restores.

        No operation is unfinished; each lease has the binding of each member of its
        IOMMU group before os_acc changed it; the helper has recorded these members
        and no others; the log of changes ends with the lease, or with its deletion.
        """
        leases = self.manager.store.leases()
        for lease in leases:
            assert not lease.is_unfinished
            assert not lease.reason
            for prior in lease.prior:
                state = self.before[str(prior.address)]
                assert prior.driver == state.driver
                assert (prior.driver_override or None) == state.driver_override
        held = {str(each): lease.uuid for lease in leases for each in lease.members}
        assert self._claimed() == held
        self._check_log({str(lease.address): lease for lease in leases})

    def _claimed(self) -> dict[str, str]:
        """Return the lease of each device of this node in the helper's record."""
        found = (HelperRecord.of(*each) for each in claims.claimed())
        return {
            str(each.address): each.lease
            for each in found
            if self._has(str(each.address))
        }

    def _check_log(self, leases: Mapping[str, Lease]) -> None:
        newest = {each.address: each for each in self.manager.store.events(KEPT)}
        for gpu in self.gpus:
            if gpu in leases:
                lease, event = leases[gpu], newest[gpu]
                assert event.consumer == lease.consumer
                assert event.state == lease.state.value
            elif gpu in newest:
                assert newest[gpu].operation == Operation.DELETE.value

    def check_host(self) -> None:
        """Check the driver and the override of every function of this node."""
        held = {
            str(each) for lease in self.manager.store.leases() for each in lease.members
        }
        for state in self.bench.kernel.snapshot():
            if not self._has(state.address):
                continue
            found = (state.driver, state.driver_override)
            if state.address in held:
                assert found == (_VFIO, _VFIO), state.address
            else:
                assert state == self.before[state.address]

    def _has(self, address: str) -> bool:
        """Return whether a function is in the slot of a GPU of this node."""
        slot = address.rpartition(".")[0]
        return any(gpu.rpartition(".")[0] == slot for gpu in self.gpus)

    @property
    def providers(self) -> frozenset[str]:
        """The UUIDs of the providers of its GPUs."""
        return frozenset(each.uuid for each in self.manager.providers())

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


@contextlib.contextmanager
def simulated(directory: Path, spec: HostSpec) -> Iterator[TestHost]:
    """Yield the simulated kernel of the nodes."""
    # A child of a process with greenlets, as a helper in here forks, has none.
    is_separate = native_threads.is_needed()
    with TestHost(directory, spec, separate_helper=is_separate) as bench:
        # Nova's tests register options of the command line.
        CONF.clear()
        yield bench


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, ComputeNode]]:
    """Yield two nodes, each with four GPUs."""
    slots = [gpu.rpartition(":")[0] for gpus in GPUS.values() for gpu in gpus]
    spec = HostSpec(tuple(each for slot in slots for each in hosts.gpu(slot, 0)))
    with simulated(tmp_path, spec) as bench:
        yield {name: ComputeNode(name, bench, gpus) for name, gpus in GPUS.items()}
