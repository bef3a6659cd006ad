# SPDX-License-Identifier: Apache-2.0

"""VFIO looks at drivers and at the header type, never at the class of a function.

iommu_device_claim_dma_owner() in drivers/iommu/iommu.c; vfio_pci_core_register_device()
in drivers/vfio/pci/vfio_pci_core.c.
"""

import dataclasses

import pytest

from os_acc.objects.device import RejectReason
from os_acc.testing import HostSpec, hosts

PORT, GPU, SWITCH = "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"


def hgx() -> HostSpec:
    """Return a host whose GPU and NVSwitch share a group behind a port without ACS."""
    port = hosts.root_port(PORT)
    behind = (*hosts.gpu("0000:17", parent=PORT), hosts.nvswitch("0000:18"))
    return HostSpec(
        (port, *(dataclasses.replace(each, group_of=PORT) for each in behind))
    )


def named(*addresses: str) -> list[str]:
    return [f'{{"address": "{each}"}}' for each in addresses]


def test_an_nvswitch_is_given_to_a_guest(make_bench):
    bench = make_bench(HostSpec((hosts.nvswitch("0000:18"),)))
    before = bench.kernel.snapshot()
    (entry,) = bench.plug(1, SWITCH)
    assert entry["pci_id"] == SWITCH
    bench.kernel.hold(SWITCH)
    bench.kernel.let_go(SWITCH)
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


def test_an_nvswitch_on_its_driver_keeps_its_group_from_a_guest(make_bench):
    bench = make_bench(hgx(), device_spec=named(GPU))
    refused = bench.rejected(GPU)
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert f"{SWITCH} (nvidia-nvswitch) shares its group" in refused.detail


def test_a_named_nvswitch_goes_to_the_guest_with_its_group(make_bench):
    bench = make_bench(hgx(), device_spec=named(GPU, SWITCH))
    before = bench.kernel.snapshot()
    bench.plug(1, GPU)
    assert bench.drivers(PORT, GPU, SWITCH) == ["pcieport", "vfio-pci", "vfio-pci"]
    bench.kernel.hold(GPU)
    bench.kernel.let_go(GPU)
    bench.unplug(1)
    assert bench.kernel.snapshot() == before


@pytest.mark.parametrize("driver", ["", "pci-stub"])
def test_the_chipset_stays_with_the_host(make_bench, driver):
    isa, disks, smbus = hosts.chipset("0000:00:1f")
    spec = HostSpec((dataclasses.replace(isa, driver=driver), disks, smbus))
    tags = '"allow_no_reset": true, "allow_no_erase": true'
    bench = make_bench(spec, device_spec=[f'{{"vendor_id": "8086", {tags}}}'])
    assert bench.rejected(isa.address).reason is RejectReason.BRIDGE
    bench.plug(1, disks.address)
    assert bench.drivers(isa.address, disks.address, smbus.address) == [
        driver or None,
        "vfio-pci",
        "vfio-pci",
    ]
    bench.kernel.hold(smbus.address)


def test_a_bridge_on_a_driver_that_performs_dma_keeps_its_group(make_bench):
    """That of CardBus bridges does not set driver_managed_dma."""
    cardbus = hosts.FunctionSpec("0000:17:00.2", 0x104C, 0xAC56, 0x060700, "yenta")
    gpu = dataclasses.replace(hosts.fpga("0000:17"), group_of="")
    spec = HostSpec((gpu, dataclasses.replace(cardbus, group_of=gpu.address)))
    bench = make_bench(spec, device_spec=named(gpu.address))
    assert "(yenta) shares its group" in bench.rejected(gpu.address).detail
