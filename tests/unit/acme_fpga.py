# SPDX-License-Identifier: Apache-2.0

"""An FPGA of one region with two functions on two PCI functions.

The diagram of the os_acc specification, "Cyborg-Nova-Glance Interaction in
Compute Node": PCI A has Fn A and PCI B has Fn B of Region 1. The
host programs it through a function of its own, which goes to nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from os_acc.objects.device import Device, RejectedDevice, RejectReason
from os_acc.objects.image import Bitstream
from os_acc.objects.pci import PciAddress
from os_acc.objects.region import Region
from os_acc.plugins import base
from os_acc.testing import FunctionSpec, HostSpec

PCI_A, PCI_B = "0000:5e:00.0", "0000:5e:00.1"
INTERFACE = "bfac4d85-1ee8-56fe-8c95-865ce1bbaa2d"
POWER_ON = "d8424dc4-a4a3-c413-f89e-433683f9040b"
_MANAGEMENT = "0000:5e:00.7"
_VENDOR, _PRODUCT = 0x1BD4, 0x9100


def host() -> HostSpec:
    """One such card."""
    return HostSpec(
        tuple(
            FunctionSpec(address, _VENDOR, product, 0x120000, numa_node=0)
            for address, product in (
                (PCI_A, _PRODUCT),
                (PCI_B, _PRODUCT),
                (_MANAGEMENT, _PRODUCT + 1),
            )
        )
    )


class TwoFunctions(base.PluginBase):
    """Its hardware is what is kept here."""

    contract_version = (1, 2)
    holds = POWER_ON
    programmed: list[str]

    def discover(
        self, candidates: base.Candidates
    ) -> Iterable[Device | RejectedDevice]:
        """Both functions are handles of one device."""
        claims = [
            claim
            for claim in candidates.usable
            if claim.function.identity.numbers[:2] == (_VENDOR, _PRODUCT)
        ]
        card = PciAddress.parse(_MANAGEMENT)
        if any(claim.function.address == card for claim in candidates.usable):
            yield RejectedDevice(card, RejectReason.MANAGEMENT)
        if not claims:
            return
        identity = claims[0].function.identity
        both = (PciAddress.parse(PCI_A), PciAddress.parse(PCI_B))
        yield Device(
            plugin=self.name,
            address=both[0],
            identity=identity,
            resource_class="CUSTOM_ACCELERATOR_FPGA",
            traits=frozenset(),
            handles=tuple(claim.handle() for claim in claims),
            numa_node=0,
            region=Region(card, identity, 0, INTERFACE, type(self).holds, both),
        )

    def read_region(self, region: Region) -> Region | None:
        """Its port to the host shows it, whoever has the functions."""
        return dataclasses.replace(region, function_id=type(self).holds)

    def program(
        self, region: Region, bitstream: Bitstream, steps: base.PrivilegedSteps
    ) -> None:
        """It becomes what the head of the file says."""
        function = bitstream.header.function_ids[0]
        type(self).holds = function
        type(self).programmed.append(function)
