# SPDX-License-Identifier: Apache-2.0

"""libvirt leaves a function alone that keeps another VFIO driver than vfio-pci."""

from __future__ import annotations

from typing import Any

import pytest
from nova.virt.libvirt import config as vconfig

from os_acc.attach import serialize
from os_acc.nova.driver import LibvirtDriver
from os_acc.nova.guest_devices import GuestDevices
from os_acc.objects.pci import PciAddress
from tests.unit.leases import lease

GPU, VF = (
    serialize.accelerator(lease(PciAddress.parse(each)))
    for each in ("0000:17:00.0", "0000:3b:00.1")
)
VF["vfio_driver"] = "mlx5_vfio_pci"


@pytest.fixture
def driver() -> LibvirtDriver:
    driver: LibvirtDriver = LibvirtDriver.__new__(LibvirtDriver)
    return driver


def test_the_guest_is_defined_with_the_function_unmanaged(driver):
    guest = vconfig.LibvirtConfigGuest()
    driver._guest_add_accel_pci_devices(guest, [GPU, VF, GPU])
    assert [each.managed for each in guest.devices] == ["yes", "no", "yes"]


def test_a_resumed_guest_gets_it_unmanaged_again():
    entries: Any = [VF, GPU]
    found = GuestDevices.of_entries(entries).functions()
    assert {each.bus: each.managed for each in found} == {"17": "yes", "3b": "no"}
