# SPDX-License-Identifier: Apache-2.0

"""Weaknesses of Cyborg 17 in discovery and inventory do not occur here.

The numbers are those of the table in ``doc/source/reference/device-families.rst``,
which names the tests of other files for the rest.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from os_acc.objects.device import RejectReason
from os_acc.testing import FunctionSpec, HostSpec, hosts

NIC = hosts.nic("0000:3b", 0, name="ens1f0")
FPGA = hosts.fpga("0000:5e", 0)
VMD = FunctionSpec("0000:00:0e.0", 0x8086, 0x467F, 0x010400, "vmd")


def card(address: str, vendor: int, product: int, class_code: int) -> FunctionSpec:
    return FunctionSpec(address, vendor, product, class_code)


def classes(bench) -> dict[str, list[str]]:
    """Return the classes of the providers of each function."""
    found: dict[str, list[str]] = {}
    for provider in bench.manager.providers():
        for handle in provider.device.handles:
            name = provider.device.resource_class.removeprefix("CUSTOM_ACCELERATOR_")
            found.setdefault(str(handle.address), []).append(name)
    return found


def test_19_a_card_in_a_guest_without_an_interface_stops_no_discovery(make_bench):
    """19: an X710 PF on vfio-pci has no directory ``net``."""
    bench = make_bench(HostSpec((NIC, FPGA)))
    before = bench.manager.providers()
    bench.plug(1, NIC.address)
    assert bench.drivers(NIC.address) == ["vfio-pci"]
    assert not Path(bench.root, "sys/bus/pci/devices", NIC.address, "net").exists()
    assert bench.manager.providers() == before
    assert bench.manager.discover().set_aside == ()


@pytest.mark.parametrize("product", [0x158B, 0xFFFF])
def test_19_a_card_of_an_unknown_product_is_offered(make_bench, product):
    """19: an unknown product of Intel raised TypeError."""
    bench = make_bench(HostSpec((dataclasses.replace(NIC, product=product),)))
    assert classes(bench) == {NIC.address: ["NIC"]}


def test_20_an_ascend_card_has_a_class_and_a_provider_of_its_node(make_bench):
    """20: all hosts had one provider, without a class."""
    bench = make_bench(HostSpec((card("0000:05:00.0", 0x19E5, 0xD100, 0x120000),)))
    (first,) = bench.manager.providers()
    assert first.device.resource_class == "CUSTOM_ACCELERATOR_AICHIP"
    assert "CUSTOM_ASCEND_310" in first.device.traits
    bench.restart(node_name="node2")
    (second,) = bench.manager.providers()
    assert first.uuid != second.uuid


def test_20_the_product_of_an_ascend_card_of_another_vendor_is_no_ascend(make_bench):
    """20: the vendor was not compared."""
    bench = make_bench(HostSpec((card("0000:05:00.0", 0x1234, 0xD100, 0xFF0000),)))
    (provider,) = bench.manager.providers()
    assert provider.device.resource_class == "CUSTOM_ACCELERATOR_PCI"
    assert not any("ASCEND" in each for each in provider.device.traits)


def test_22_ids_and_class_decide_and_each_function_has_one_class(make_bench):
    """22: names decided, so that a disk was an FPGA as well, and an Alveo nothing."""
    bench = make_bench(
        HostSpec(
            (
                card("0000:05:00.0", 0x10EE, 0x5004, 0x120000),
                card("0000:06:00.0", 0x1BD4, 0x0911, 0x120000),
                card("0000:07:00.0", 0x1BD4, 0x1001, 0x010802),
            )
        )
    )
    assert classes(bench) == {
        "0000:05:00.0": ["FPGA"],
        "0000:06:00.0": ["FPGA"],
        "0000:07:00.0": ["SSD"],
    }


@pytest.mark.parametrize(
    "function",
    [
        hosts.nvme_disk("10000:01", 0),
        hosts.nic("10000:01", name="eno1"),
        card("10000:01:00.0", 0x19E5, 0xD802, 0x120000),
    ],
    ids=["disk", "NIC", "Ascend"],
)
def test_22_a_device_in_a_domain_of_a_vmd_is_plugged_and_unplugged(
    make_bench, function
):
    """22: domains of more than 16 bits were skipped."""
    port = dataclasses.replace(
        hosts.root_port("10000:00:02.0"), parent=VMD.address, group_of=VMD.address
    )
    device = dataclasses.replace(function, parent=port.address)
    bench = make_bench(HostSpec((VMD, port, device)))
    before = bench.drivers(device.address)
    (entry,) = bench.plug(1, device.address)
    assert entry["pci_id"] == "10000:01:00.0"
    assert bench.drivers(device.address) == ["vfio-pci"]
    assert bench.unplug(1) == 1
    assert bench.drivers(device.address) == before


def test_23_an_address_may_be_written_in_upper_case(make_bench):
    """23: an address in upper case was not compared, and turned the card to another."""
    spec = f'{{"address": "{FPGA.address.upper()}", "traits": "CUSTOM_FAST"}}'
    bench = make_bench(HostSpec((FPGA,)), device_spec=[spec])
    assert "CUSTOM_FAST" in bench.provider(FPGA.address).device.traits


def test_23_a_card_with_vfs_and_its_vfs_are_never_offered_both(make_bench):
    """23: VFs were offered as whole cards, beside their card."""
    gpu, audio = hosts.gpu("0000:17", 0)
    sriov = hosts.nic("0000:3b", boot_vfs=4, name="eno1").sriov
    bench = make_bench(HostSpec((dataclasses.replace(gpu, sriov=sriov), audio)))
    found = classes(bench)
    assert gpu.address not in found
    assert bench.rejected(gpu.address).reason is RejectReason.HAS_VFS
    assert len(found) == len({*found})


def test_25_the_order_of_traits_means_nothing(make_bench):
    """25: traits that changed places were lost."""
    spec = f'{{"address": "{FPGA.address}", "traits": "CUSTOM_A, CUSTOM_B"}}'
    bench = make_bench(HostSpec((FPGA,)), device_spec=[spec])
    before = bench.manager.providers()
    other = f'{{"address": "{FPGA.address}", "traits": "CUSTOM_B, CUSTOM_A"}}'
    bench.restart(device_spec=[other])
    assert bench.manager.providers() == before


def test_25_vfs_have_no_traits_of_another_card(make_bench):
    """25: the traits of a VF took the places of those of the last PF."""
    cards = [hosts.nic(f"0000:0{n}", name=f"eno{n}", boot_vfs=2) for n in (5, 6)]
    spec = [
        f'{{"address": "{each.address}", "physical_network": "net{n}"}}'
        for n, each in enumerate(cards)
    ]
    bench = make_bench(HostSpec(tuple(cards)), device_spec=spec)
    found = [
        {trait for trait in each.device.traits if "NET" in trait}
        for each in bench.manager.providers()
    ]
    assert found == [{"CUSTOM_NET0"}, {"CUSTOM_NET1"}]


def test_29_a_device_that_the_host_uses_is_not_offered(make_bench):
    """29: an interface that is up and a disk that is mounted were offered."""
    bench = make_bench()
    for address in ("0000:af:00.0", "0000:04:00.0"):
        assert bench.rejected(address).reason is RejectReason.HOST_USES
