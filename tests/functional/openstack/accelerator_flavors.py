# SPDX-License-Identifier: Apache-2.0

"""Flavors with accelerators, and the guests that are created from them."""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from os_acc.objects.request_group import FlavorRequest
from os_acc.scheduling import allocation_candidates, extra_specs
from tests.functional.openstack.placement import Taken
from tests.functional.openstack.placement_site import (
    FPGA,
    FPGA_A,
    FPGA_B,
    GPU,
    NETWORK,
    REGIONS,
    Site,
)
from tests.unit.fpga import upload

#: The pairs (group, provider) of this host's accelerators alone.
Mapped = frozenset[tuple[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """The request of one group.

    :ivar programmed: it requests a function, another one for each guest.
    """

    resource_class: str
    amount: int = 1
    traits: tuple[str, ...] = ()
    programmed: bool = False


PROGRAMMED, AS_IT_IS = Asked(FPGA, programmed=True), Asked(FPGA)
ONE_GPU, ONE_VF = Asked(GPU), Asked(NETWORK)


@dataclasses.dataclass(frozen=True, slots=True)
class Flavor:
    """Groups, numbered from 1.

    :ivar policy: '' if there is only one group.
    """

    groups: tuple[Asked, ...]
    policy: str = ""

    @property
    def numbered(self) -> Iterator[tuple[str, Asked]]:
        for number, asked in enumerate(self.groups, 1):
            yield str(number), asked

    @property
    def devices(self) -> int:
        """Return the number of devices of a guest."""
        return sum(asked.amount for asked in self.groups)

    def specs(self, functions: Mapping[str, str]) -> dict[str, str]:
        """Return the extra specs.

        :param functions: the function that a group requests.
        """
        specs = {"group_policy": self.policy} if self.policy else {}
        for suffix, asked in self.numbered:
            specs[f"resources{suffix}:{asked.resource_class}"] = str(asked.amount)
            specs |= {f"trait{suffix}:{trait}": "required" for trait in asked.traits}
        for suffix, function in functions.items():
            specs[f"accel{suffix}:function_id"] = function
        return specs

    def requested_functions(self) -> dict[str, str]:
        """Return an unused function for each group that requests a function."""
        return {
            suffix: str(uuid.uuid4())
            for suffix, asked in self.numbered
            if asked.programmed
        }

    def request(self) -> FlavorRequest:
        """Return the request, with the processor and memory that every guest has."""
        request = extra_specs.parse(self.specs(self.requested_functions()))
        return allocation_candidates.filled(request, vcpus=1, memory_mb=1, disk_gb=0)


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One allocation request of Placement."""

    allocations: Mapping[str, Mapping[str, Any]]
    mappings: Mapping[str, tuple[str, ...]]

    @property
    def taken(self) -> Taken:
        return frozenset(
            (rp, name, amount)
            for rp, each in self.allocations.items()
            for name, amount in each["resources"].items()
        )

    def mapped(self, ours: Mapping[str, object]) -> Mapped:
        return frozenset(
            (suffix, rp)
            for suffix, members in self.mappings.items()
            for rp in members
            if rp in ours
        )

    def selected(self, *, with_mappings: bool) -> dict[str, Any]:
        """Return the candidate in the form of plug's argument."""
        selected: dict[str, Any] = {"allocations": self.allocations}
        if with_mappings:
            selected["mappings"] = {s: list(rps) for s, rps in self.mappings.items()}
        return selected


class Customers:
    """Guests on one host, from the scheduler's query to their end.

    :ivar guests: the devices of the running guests, by the guests' uuids.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.guests: dict[str, tuple[str, ...]] = {}

    # -- answers of Placement -----------------------------------------------------

    def candidates(self, flavor: Flavor) -> list[Candidate]:
        """Return every candidate for a flavor on this host."""
        return [
            Candidate(
                each["allocations"],
                {suffix: tuple(rps) for suffix, rps in each["mappings"].items()},
            )
            for each in self._answer(flavor.request())["allocation_requests"]
        ]

    def view(self) -> dict[str, tuple[Any, frozenset[str]]]:
        """Return Placement's data of all providers, as the scheduler reads them.

        The data are inventory, usage and traits, without the traits of a region's
        contents.
        """
        request = extra_specs.parse({"resources:VCPU": "1"})
        return {
            rp: (
                each["resources"],
                frozenset(name for name in each["traits"] if "_FUNCTION_" not in name),
            )
            for rp, each in self._answer(request)["provider_summaries"].items()
        }

    def _answer(self, request: FlavorRequest) -> Any:
        # Limited to this host, as in Nova's query for a forced host: other tests leave
        # their hosts behind.
        query = f"{allocation_candidates.query(request)}&in_tree={self.site.node}"
        return self.site.placement.candidates(query)

    # -- state of the host -------------------------------------------------------

    def offered(self) -> dict[str, frozenset[str]]:
        """Return the addresses of the offered devices of each provider."""
        return {
            each.uuid: frozenset(
                str(handle.address)
                for handle in each.device.handles
                if not handle.fault
            )
            for each in self.site.manager.providers()
        }

    def free(self) -> frozenset[str]:
        """Return the addresses of devices that no guest has."""
        theirs = itertools.chain.from_iterable(self.guests.values())
        return frozenset[str]().union(*self.offered().values()).difference(theirs)

    def held(self) -> dict[str, str]:
        """Return the contents of each region in the hardware."""
        kernel = self.site.kernel
        held = kernel.held_by_hardware(FPGA_A) + kernel.held_by_hardware(FPGA_B)
        return dict(zip(REGIONS, held, strict=True))

    # -- guests -------------------------------------------------------------------

    def live_on_each(self, flavor: Flavor, candidates: Sequence[Candidate]) -> int:
        """Run guests without mappings, one after another; return their number.

        One guest runs on the allocations of each candidate: without mappings, any of
        Placement's mappings for exactly these allocations is correct.
        """
        found = self.offered()
        meant: dict[Taken, set[Mapped]] = {}
        for each in candidates:
            meant.setdefault(each.taken, set()).add(each.mapped(found))
        alone = {each.taken: each for each in candidates}
        before = self.view()
        for taken, candidate in alone.items():
            self._live(flavor, candidate, meant[taken], with_mappings=False)
            assert self.view() == before
        return len(alone)

    def live_as_mapped(self, flavor: Flavor, candidates: Sequence[Candidate]) -> int:
        """Run guests with the mappings of each candidate; return their number."""
        found, before = self.offered(), self.view()
        for candidate in candidates:
            right = {candidate.mapped(found)}
            self._live(flavor, candidate, right, with_mappings=True)
            assert self.view() == before
        return len(candidates)

    def _live(
        self,
        flavor: Flavor,
        candidate: Candidate,
        right: set[Mapped],
        *,
        with_mappings: bool,
    ) -> None:
        """Run one guest, and check that the host is unchanged afterwards."""
        before = self.site.kernel.snapshot()
        consumer = self._scheduled(candidate)
        selected = candidate.selected(with_mappings=with_mappings)
        entries = self._plugged(consumer, flavor, selected)
        mapped = frozenset(
            (each["request_group"], each["device_rp_uuid"]) for each in entries
        )
        assert mapped in right
        self.leave(consumer)
        assert self.site.kernel.snapshot() == before
        self.site.published()

    def settle(self, flavor: Flavor) -> tuple[str, ...]:
        """Start a guest on the first candidate and keep it; return its devices."""
        candidate = self.candidates(flavor)[0]
        consumer = self._scheduled(candidate)
        self._plugged(consumer, flavor, candidate.selected(with_mappings=False))
        return self.guests[consumer]

    def leave(self, consumer: str) -> None:
        """End a guest."""
        devices = self.guests.pop(consumer)
        assert self.site.manager.unplug({"uuid": consumer}) == len(devices)
        self.site.placement.free(consumer)

    def end(self) -> None:
        """End all guests."""
        for consumer in list(self.guests):
            self.leave(consumer)

    def _scheduled(self, candidate: Candidate) -> str:
        consumer = self.site.placement.allocate(
            {rp: each["resources"] for rp, each in candidate.allocations.items()}
        )
        self.guests[consumer] = ()
        return consumer

    def _plugged(
        self, consumer: str, flavor: Flavor, selected: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Plug a guest; check its devices against its flavor and return its entries."""
        requested_functions, free, held = (
            flavor.requested_functions(),
            self.free(),
            self.held(),
        )
        for function in requested_functions.values():
            upload(self.site, function, function)
        entries = self.site.manager.plug(
            {"uuid": consumer}, selected, flavor.specs(requested_functions)
        )
        self.guests[consumer] = tuple(str(each["pci_id"]) for each in entries)
        self._check_devices(flavor, entries, free)
        programmed = {
            each["pci_id"]: requested_functions[each["request_group"]]
            for each in entries
            if each["request_group"] in requested_functions
        }
        assert self.held() == held | programmed
        return entries

    def _check_devices(
        self, flavor: Flavor, entries: Sequence[Mapping[str, Any]], free: frozenset[str]
    ) -> None:
        """Check the number of devices for each group, and that each was free."""
        assert Counter(each["request_group"] for each in entries) == {
            suffix: asked.amount for suffix, asked in flavor.numbered
        }
        devices = [each["pci_id"] for each in entries]
        assert len(set(devices)) == len(devices)
        assert free.issuperset(devices)
        offered = self.offered()
        for each in entries:
            assert each["pci_id"] in offered[each["device_rp_uuid"]]
        assert set(self.site.drivers(*devices)) == {"vfio-pci"}
