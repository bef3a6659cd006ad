# SPDX-License-Identifier: Apache-2.0

"""A rejection gives its reason, and a lease its functions."""

from __future__ import annotations

import pytest

from os_acc.objects.device import Device, RejectedDevice, RejectReason
from os_acc.objects.pci import PciAddress, PciIdentity
from tests.unit import leases


def device() -> Device:
    return Device(
        plugin="pci",
        address=PciAddress.parse("0000:3b:00.0"),
        identity=PciIdentity(0x8086, 0x1592, 0, 0, 0, ""),
        resource_class="CUSTOM_ACCELERATOR_NIC",
        traits=frozenset(),
        handles=(),
        numa_node=None,
    )


@pytest.mark.parametrize("reason", RejectReason)
def test_a_refusal_says_why(reason):
    address = PciAddress(0, 0, 0, 0)
    assert str(RejectedDevice(address, reason)) == reason.value
    assert str(RejectedDevice(address, reason, "more")) == f"{reason.value}: more"


def test_a_lease_takes_all_functions_whose_bindings_it_knows():
    members = tuple(PciAddress(0, 0x17, 0, number) for number in range(2))
    lease = leases.lease(*members)
    assert lease.members == members
