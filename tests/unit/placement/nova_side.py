# SPDX-License-Identifier: Apache-2.0

"""Nova's side of a provider tree: the state that it keeps between cycles."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from os_acc.testing.nova import FakeProviderTree

#: A resource class and traits of Nova or its operators.
FOREIGN_CLASS, FOREIGN_TRAITS = "CUSTOM_WIDGET", {"CUSTOM_RACK_7", "HW_CPU_X86_VMX"}
NODE, NEIGHBOUR, SHARED = (f"{n}0000000-9999-4999-8999-999999999999" for n in "123")


class Nova:
    """Keeps the contents of Placement, as the report client does."""

    def __init__(self, name: str = "node1") -> None:
        self.name = name
        self.known = FakeProviderTree()
        self.known.new_root(name, NODE, generation=5)
        self.known.new_child(f"{name}_pci_0000_81_00_0", name, NEIGHBOUR, generation=2)
        self.known.new_root("shared_disk", SHARED, generation=9)
        for uuid in (NODE, NEIGHBOUR, SHARED):
            self.known.update_inventory(uuid, {FOREIGN_CLASS: {"total": 4}})
            self.known.update_traits(uuid, FOREIGN_TRAITS)
            self.known.update_aggregates(uuid, {NODE})

    def cycle(self, update: Callable[[Any, str], None]) -> set[str]:
        """Run a cycle of Nova; return the uuids of added, changed or removed ones."""
        before, self.known = self.known, copy.deepcopy(self.known)
        update(self.known, self.name)
        uuids = {*before.get_provider_uuids(), *self.known.get_provider_uuids()}
        return {
            uuid
            for uuid in uuids
            if not before.exists(uuid)
            or not self.known.exists(uuid)
            or before.data(uuid) != self.known.data(uuid)
        }

    def units(self, uuid: str) -> dict[str, tuple[int, int]]:
        """Return (total, reserved) of each resource class of a provider."""
        inventory = self.known.data(uuid).inventory
        return {name: (r["total"], r["reserved"]) for name, r in inventory.items()}

    def ours(self) -> dict[str, str]:
        """Return every provider that Nova did not create: uuid by name."""
        uuids = {*self.known.get_provider_uuids()} - {NODE, NEIGHBOUR, SHARED}
        return {self.known.data(uuid).name: uuid for uuid in uuids}
