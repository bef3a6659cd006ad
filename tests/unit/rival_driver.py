# SPDX-License-Identifier: Apache-2.0

"""Another host driver that matches a device and is probed before its own driver."""

from __future__ import annotations

from os_acc.testing import DriverSpec, FakeKernel, drivers, functions
from os_acc.testing.tree import Tree


def prefer(kernel: FakeKernel, third: str, *addresses: str) -> None:
    """Register a driver for these functions ahead of their own drivers.

    The functions stay bound; a probe without override now binds the new driver.
    """
    with Tree(kernel.root).transaction() as tree:
        own = {each: drivers.bound(tree, each) or "" for each in addresses}
        known = [drivers.load(tree, name) for name in sorted(set(own.values()))]
        ids = tuple(functions.spec(tree, each).ids for each in addresses)
        for driver in known:
            drivers.unregister(tree, driver.name)
        for driver in (DriverSpec(third, ids), *known):
            drivers.register(tree, driver)
        for address, name in own.items():
            drivers.set_override(tree, address, name)
            drivers.probe(tree, address)
            drivers.set_override(tree, address, "\n")
