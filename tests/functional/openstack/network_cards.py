# SPDX-License-Identifier: Apache-2.0

"""Two network cards with two ports each, as in the specification's diagram.

nova-specs, rocky, "Granular Resource Request Syntax": four PFs on two
physical networks, RP1 and RP2 fast ones with SSL, RP3 and RP4 slow ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from os_acc.objects.request_group import FlavorRequest
from os_acc.scheduling import allocation_candidates, extra_specs
from tests.functional.openstack.placement import Placement, Taken

VF = "SRIOV_NET_VF"
#: The standard class counts kilobits; that of the specification bytes.
BYTES = "CUSTOM_NET_EGRESS_BYTES_SEC"
NET1, NET2, SSL = "CUSTOM_NET1", "CUSTOM_NET2", "HW_NIC_ACCEL_SSL"
VFS = 16
TRAITS = {"RP1": (NET1, SSL), "RP2": (NET2, SSL), "RP3": (NET1,), "RP4": (NET2,)}
FAST, SLOW = 1_250_000_000, 125_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """One candidate, and the providers of each group."""

    allocations: Taken
    mappings: Mapping[str, frozenset[str]]


class Wiring:
    """The diagram in Placement: the node, its cards, and the ports below them."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        make = placement.make
        node = make("wired", inventories={"VCPU": 8, "MEMORY_MB": 4096})
        nic1, nic2 = (make(f"wired-{nic}", node) for nic in ("nic1", "nic2"))
        fast, slow = {VF: VFS, BYTES: FAST}, {VF: VFS, BYTES: SLOW}
        ports = {
            "RP1": make("wired-pf1", nic1, fast, TRAITS["RP1"]),
            "RP2": make("wired-pf2", nic1, fast, TRAITS["RP2"]),
            "RP3": make("wired-pf3", nic2, slow, TRAITS["RP3"]),
            "RP4": make("wired-pf4", nic2, slow, TRAITS["RP4"]),
        }
        #: The uuids, by the specification's names of the providers.
        self.uuids = {**ports, "NIC1": nic1, "NIC2": nic2, "CN1": node}

    def remove(self) -> None:
        """Remove it, from the ports to the node."""
        self.placement.remove(*self.uuids.values())

    def candidates(self, flavor: Mapping[str, str]) -> set[Taken]:
        """Return the candidates for a flavor, with Nova's query."""
        return {one.allocations for one in self.found(extra_specs.parse(flavor))}

    def found(self, request: FlavorRequest) -> list[Found]:
        """Return the candidates of a request, with their mappings."""
        names = {rp: name for name, rp in self.uuids.items()}
        answer = self.placement.candidates(allocation_candidates.query(request))
        return [_found(one, names) for one in answer["allocation_requests"]]


def _found(one: Mapping[str, Any], names: Mapping[str, str]) -> Found:
    return Found(
        frozenset(
            (names[rp], resource_class, amount)
            for rp, allocation in one["allocations"].items()
            for resource_class, amount in allocation["resources"].items()
        ),
        {
            suffix: frozenset(names[rp] for rp in members)
            for suffix, members in one["mappings"].items()
        },
    )
