# SPDX-License-Identifier: Apache-2.0

"""Histories with plugs in NUMA cells, and the devices that these replace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from os_acc import exception
from os_acc.objects.lease import Lease
from tests.stress import observation
from tests.stress.invariants import Truths
from tests.stress.kills import Way
from tests.stress.model import CONSUMERS, choose

#: The approximate number of touches of disk or host by a plug that replaces a device.
_TOUCHES = {Way.CLIENT: 40, Way.WORKER: 16, Way.GROUP: 40}
#: The policy is ``legacy``.
_ALLOWED = {"local", "unknown"}

pick = st.integers(0, 20)
cell = st.integers(0, 1)


class NumaSwaps(Truths):
    """The steps that plug a guest again in cells of the host."""

    @rule(
        pick=pick,
        moved=pick,
        node=st.integers(-1, 1),
        cells=st.lists(cell, min_size=1, max_size=2, unique=True),
    )
    def plug_in_cells(self, pick: int, moved: int, node: int, cells: list[int]) -> None:
        """Plug again in any cells, after a held device has changed its node."""
        consumer = choose(self.holds, pick)
        if consumer is None:
            return
        self._change_node(choose(self.holds[consumer], moved), node)
        self._plug_in_cells(consumer, cells, must=False)

    @rule(pick=pick, cell=cell)
    def plug_in_another_cell(self, pick: int, cell: int) -> None:
        """Plug again in a cell where a free device replaces a held one."""
        address = self._outside(pick, cell)
        if address is None:
            return
        consumer = self._holder(address)
        used = self.unready | self.guests.keys()
        must = not self.faulty and used.isdisjoint(self._members(consumer))
        self._plug_in_cells(consumer, [cell], must)
        assert not must or address not in self.holds[consumer]

    @rule(
        pick=pick,
        cell=cell,
        at=st.integers(0, 60),
        way=st.sampled_from([Way.CLIENT, Way.WORKER, Way.GROUP]),
        again=st.booleans(),
    )
    def crash_in_another_cell(
        self, pick: int, cell: int, at: int, way: Way, again: bool
    ) -> None:
        """Kill a process at its n-th touch, while it replaces a device."""
        address = self._outside(pick, cell)
        if address is None:
            return
        consumer = self._holder(address)
        had = {consumer: len(self.holds[consumer])}
        guest = {"uuid": consumer, "numa_cells": [cell]}
        touch = at % _TOUCHES[way] + 1
        self._killed(lambda: self.manager.plug(guest, None, None), touch, way)
        if again:
            self._start_again()
        request = self.requests[consumer]
        self._look_after_crash(consumer, consumer, request, had)
        assert len(self.holds[consumer]) == had[consumer]

    def _plug_in_cells(self, consumer: str, cells: list[int], must: bool) -> None:
        before = self._held(consumer)
        guest = {"uuid": consumer, "numa_cells": cells}
        try:
            entries = self.manager.plug(guest, None, None)
        except exception.OsAccError:
            if must:
                raise
            self._not_placed(consumer)
        else:
            self._placed(consumer, before, entries)

    def _placed(
        self, consumer: str, before: Sequence[Lease], entries: list[Any]
    ) -> None:
        """Take over the devices of a guest that has been plugged in its cells."""
        assert {each["numa_affinity"] for each in entries} <= _ALLOWED
        assert {each["uuid"] for each in entries} == {
            each.request_uuid for each in before
        }
        self._look()
        replaced = set(self.holds[consumer]) - {each["pci_id"] for each in entries}
        self.deeds["devices replaced for a guest's cells"] += len(replaced)
        self._sync(consumer)
        self.unready &= observation.members(self.leases)
        self._plugged(consumer, self.requests[consumer], entries)

    def _not_placed(self, consumer: str) -> None:
        """Check a guest that could not be plugged in its cells."""
        self._look()
        if self.faulty or not self.unready.isdisjoint(self._members(consumer)):
            # The swap may have succeeded before another device failed.
            self._sync(consumer)
        self._failed(consumer)

    def _outside(self, pick: int, cell: int) -> str | None:
        """Move a held device out of a cell, and a free one that can replace it in.

        :returns: the held device; None if there is none.
        """
        if not self._replaceable():
            request = self._request_with_spares()
            if request is not None:
                self.plug_beside(self._one_without(CONSUMERS[0]), request)
        found = self._replaceable()
        address = choose(found, pick)
        if address is None:
            return None
        for each in (*self.holds[self._holder(address)], found[address]):
            self._change_node(each, cell)
        self._change_node(address, 1 - cell)
        return address

    def _holder(self, address: str) -> str:
        return next(each for each in self.holds if address in self.holds[each])

    def _request_with_spares(self) -> Any:
        """Return a request for one device of the provider with the most of them."""
        providers = self.manager.providers()
        amounts = [len(each.device.handles) for each in providers]
        most = [amounts.index(max(amounts))] if amounts else []
        return self._request(providers, most)

    def _replaceable(self) -> dict[str, str]:
        """Return the held devices that a free one of the same provider can replace."""
        leased = observation.members(self.leases)
        held = {address for each in self.holds.values() for address in each}
        found: dict[str, str] = {}
        for provider in self.manager.providers():
            names = {str(handle.address) for handle in provider.device.handles}
            if free := names - leased:
                found.update(dict.fromkeys(names & held, min(free)))
        return found

    def _change_node(self, address: str | None, node: int) -> None:
        """Change the NUMA node of a function, as an administrator can."""
        path = self.kernel.path("sys/bus/pci/devices", str(address), "numa_node")
        if os.path.exists(path):
            self.kernel.write(path, str(node))
