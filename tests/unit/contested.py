# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Another host driver that matches a device, and is asked before its own."""

from __future__ import annotations

from os_acc.testing import DriverSpec, FakeKernel, drivers, functions
from os_acc.testing.tree import Tree


def prefer(kernel: FakeKernel, third: str, *addresses: str) -> None:
    """Register a driver for these functions before their own, which keep them.

    A plain probe of one of them leads to this driver from now on.
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
