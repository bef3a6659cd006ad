# SPDX-License-Identifier: Apache-2.0

"""Actions of an operator that bypass Nova."""

from __future__ import annotations

import uuid

import pytest

import os_acc
from os_acc import exception, service
from os_acc.attach import operator_actions
from os_acc.objects.pci import PciAddress

from ..host import VFIO, Binding, HostUnderTest
from .common import instance, offered, plug, scenario, single


@scenario
def a_device_that_cannot_go_back_is_quarantined_until_released(
    host: HostUnderTest,
) -> None:
    """The device's previous driver is no longer loaded."""
    address = host.places.single
    host.load("pci-stub")
    host.bind(address, "pci-stub", "pci-stub")
    host.start(single(host))
    guest = instance()
    plug(guest)
    host.load("pci-stub", False)
    with pytest.raises(exception.DevicesUnreleased) as left:
        os_acc.unplug(guest)
    assert left.value.unreleased[0][1].reason is exception.StepReason.BIND

    host.again()
    with pytest.raises(exception.NoDeviceAvailable):
        plug(instance())
    with pytest.raises(exception.DeviceQuarantined):
        os_acc.plug(guest)
    assert os_acc.unplug(guest) == 0

    host.load("pci-stub")
    operator_actions.release_device(service.get(), PciAddress.parse(address), None)
    assert host.binding(address) == Binding("pci-stub", "pci-stub")
    assert plug(guest)
    assert os_acc.unplug(guest) == 1
    host.bind(address, None)


@scenario
def an_unknown_device_can_be_adopted_and_unplugged(host: HostUnderTest) -> None:
    address = host.places.single
    host.bind(address, "vfio-pci", "vfio-pci")
    host.start(single(host))
    consumer = str(uuid.uuid4())
    operator_actions.adopt_device(
        service.get(), PciAddress.parse(address), consumer, ""
    )
    (entry,) = os_acc.attached({"uuid": consumer})[consumer]
    assert entry["pci_id"] == address
    assert host.binding(address) == VFIO
    assert os_acc.unplug({"uuid": consumer}) == 1
    assert host.binding(address) == Binding(None)
    assert offered() == {address}


@scenario
def an_unknown_device_can_be_released(host: HostUnderTest) -> None:
    address = host.places.single
    host.bind(address, "vfio-pci", "vfio-pci")
    host.start(single(host))
    manager = service.get()
    with pytest.raises(exception.InvalidInput):
        operator_actions.release_device(manager, PciAddress.parse(address), None)
    assert host.binding(address) == VFIO
    operator_actions.release_device(manager, PciAddress.parse(address), "")
    assert host.binding(address) == Binding(None)
    assert offered() == {address}
