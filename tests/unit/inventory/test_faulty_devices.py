# SPDX-License-Identifier: Apache-2.0

"""A faulty device is counted as reserved, is leased to no instance, and is reported."""

import dataclasses
from collections.abc import Iterator

import pytest

from os_acc import exception
from os_acc.host.uevents import ErrorRecovery, Uevent
from os_acc.objects.device import Device
from os_acc.objects.pci import PciAddress
from os_acc.plugins import base, pci

GPU = "0000:17:00.0"
BROKEN = Uevent("change", PciAddress.parse(GPU), ErrorRecovery.FAILED)
MENDED = Uevent("change", PciAddress.parse(GPU), ErrorRecovery.SUCCESSFUL)


@pytest.fixture
def told(bench):
    """Return ``told(event)``, which delivers an event of the kernel to the service."""

    def tell(event: Uevent) -> None:
        bench.manager.catalog.health.note(event)
        bench.manager.refresh()

    return tell


def units(bench):
    """Return the published (total, reserved) of the card."""
    uuid = bench.provider(GPU).uuid
    for each in bench.manager.catalog.snapshots.newest():
        if each.uuid == uuid:
            (found,) = each.units.values()
            return found.total, found.reserved
    return None


def test_it_stays_in_the_inventory_as_reserved_and_no_guest_gets_it(bench, told):
    assert units(bench) == (1, 0)
    told(BROKEN)
    assert units(bench) == (1, 1)
    with pytest.raises(exception.NoDeviceAvailable, match="PCIe error"):
        bench.plug(1, GPU)
    told(MENDED)
    assert units(bench) == (1, 0)
    bench.plug(1, GPU)
    assert bench.plugged(1) == [GPU]


def test_who_has_it_keeps_it_and_its_unit_is_not_counted_twice(bench, told):
    before = bench.plug(1, GPU)
    told(BROKEN)
    assert units(bench) == (1, 0)
    assert bench.plug(1, GPU) == before
    assert bench.unplug(1) == 1
    bench.manager.refresh()
    assert units(bench) == (1, 1)


def test_a_function_takes_the_rest_of_its_group_along(bench):
    provider = bench.provider(GPU)
    (handle,) = provider.device.handles
    last = handle.members[-1]
    bench.manager.catalog.health.note(Uevent("change", last, ErrorRecovery.BEGUN))
    (handle,) = bench.provider(GPU).device.handles
    assert str(last) in handle.fault


@pytest.fixture
def hot_bench(bench, monkeypatch):
    """Let a plugin report a fault of a card that the kernel does not report."""
    discover = pci.PciPlugin.discover

    def with_heat(self: pci.PciPlugin, candidates: base.Candidates) -> Iterator[Device]:
        for device in discover(self, candidates):
            if str(device.address) == GPU:
                (handle,) = device.handles
                handle = dataclasses.replace(handle, fault="is too hot")
                device = dataclasses.replace(device, handles=(handle,))
            yield device

    monkeypatch.setattr(pci.PciPlugin, "discover", with_heat)
    return bench


def test_a_plugin_may_say_that_a_device_is_out_of_order(hot_bench):
    assert units(hot_bench) == (1, 1)
    with pytest.raises(exception.NoDeviceAvailable, match="too hot"):
        hot_bench.plug(1, GPU)
