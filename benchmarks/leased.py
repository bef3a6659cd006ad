# SPDX-License-Identifier: Apache-2.0

"""Build hosts whose functions are leased, without a plug for each lease."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import host, measure
from os_acc.attach.manager import Manager
from os_acc.host import pci
from os_acc.objects.lease import Lease, LeaseState, PriorBinding
from os_acc.objects.pci import PciAddress
from os_acc.testing import TestHost, drivers, helper, pci_attributes
from os_acc.testing.tree import Tree
from tests.stress.simulated_host import simulated_host

#: Matches the VFs of these hosts; without it each PF would be logged.
VFS = '{"vendor_id": "8086", "product_id": "4941"}'
_CONSUMERS = uuid.UUID("6f1d9a2e-3b0c-4f59-9f5d-2f6c5f1a7c11")


def bench(directory: str, functions: int) -> TestHost:
    """Build a host with this number of functions, none of them leased."""
    return simulated_host(directory, host.of(functions), device_spec=[VFS])


@contextlib.contextmanager
def privileged_here(bench: TestHost) -> Iterator[Manager]:
    """Yield a manager whose privileged steps run in this process."""
    with helper.privileged_here(), bench.installed():
        yield bench.start()


def consumer(number: int) -> str:
    """Return the uuid of the consumer with this number."""
    return str(uuid.uuid5(_CONSUMERS, str(number)))


def lease(manager: Manager, like: Lease, addresses: Sequence[str]) -> None:
    """Lease each function to a consumer of its own, modelled on an existing lease."""
    read = pci.scan(manager.root).functions
    functions = [read[PciAddress.parse(address)] for address in addresses]
    _bind(manager.root, addresses)
    manager.store.add(
        dataclasses.replace(
            like,
            uuid=consumer(-number),
            consumer=consumer(number),
            state=LeaseState.HELD,
            handle=dataclasses.replace(
                like.handle,
                address=function.address,
                members=(function.address,),
                iommu_group=function.iommu_group or 0,
                numa_node=function.numa_node,
            ),
            prior=(
                PriorBinding(
                    function.address, function.identity, function.driver, None
                ),
            ),
        )
        for number, function in enumerate(functions, 1)
    )


def _bind(root: str, addresses: Sequence[str]) -> None:
    with Tree(root).transaction() as tree:
        for address in addresses:
            drivers.set_override(tree, address, f"{drivers.VFIO}\n")
            bound = drivers.bound(tree, address)
            if bound is not None:
                pci_attributes.unbind(tree, address, bound)
            drivers.probe(tree, address)


def rows_of(
    manager: Manager, consumer: str = ""
) -> measure.Work[list[tuple[Any, ...]]]:
    """Return the floor of the store: open its file once and select leases."""
    path = os.path.join(manager.settings.state_path, "os_acc.sqlite")
    expected = len(manager.store.leases(consumer or None))
    query = "SELECT * FROM leases"
    query += " WHERE consumer = ?" if consumer else ""

    def read() -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return connection.execute(query, (consumer,) * bool(consumer)).fetchall()

    def check(found: list[tuple[Any, ...]]) -> None:
        assert len(found) == expected, f"{len(found)} of {expected} leases"

    return measure.Work(read, check)


def both(*works: measure.Work[Any]) -> measure.Work[list[Any]]:
    """Combine works into one that runs them in order."""

    def check(results: list[Any]) -> None:
        for work, result in zip(works, results, strict=True):
            work.check(result)

    return measure.Work(lambda: [work.run() for work in works], check)
