# SPDX-License-Identifier: Apache-2.0

"""The host offers providers with persistent names."""

import dataclasses

import pytest

from os_acc.testing import FunctionSpec, HostSpec, hosts

GPU, FPGA = "0000:17:00.0", "0000:5e:00.0"


def with_serial(function: FunctionSpec, serial: str) -> FunctionSpec:
    return dataclasses.replace(function, attributes=(("serial_number", f"{serial}\n"),))


def names(bench) -> list[str]:
    return [provider.name for provider in bench.manager.providers()]


def test_each_card_is_a_provider_named_by_its_node_and_identity(bench):
    assert names(bench) == [
        "node1_accel_8086_4940_0000_d8_00_0",
        "node1_accel_8086_1592_0000_3b_00_0",
        "node1_accel_144d_a824_0000_d9_00_0",
        "node1_accel_10de_2235_0000_17_00_0",
        "node1_accel_10ee_5000_0000_5e_00_0",
        "node1_accel_10de_2235_0000_b1_00_0",
        "node1_accel_10ee_5000_0000_e3_00_0",
    ]


@pytest.mark.parametrize(
    ("address", "resource_class", "traits"),
    [
        (GPU, "GPU", {"CUSTOM_PCI_10DE_2235", "CUSTOM_NUMA_CELL_0"}),
        (FPGA, "FPGA", {"CUSTOM_PCI_10EE_5000", "CUSTOM_NUMA_CELL_0"}),
        ("0000:3b:00.0", "NIC", {"CUSTOM_PCI_8086_1592", "CUSTOM_NUMA_CELL_0"}),
        ("0000:d8:00.0", "QAT", {"CUSTOM_PCI_8086_4940", "CUSTOM_NUMA_CELL_1"}),
        ("0000:d9:00.0", "SSD", {"CUSTOM_PCI_144D_A824", "CUSTOM_NUMA_CELL_1"}),
        ("0000:e3:00.0", "FPGA", {"CUSTOM_PCI_10EE_5000"}),
    ],
)
def test_a_card_offers_what_its_class_ids_and_cell_say(
    bench, address, resource_class, traits
):
    device = bench.provider(address).device
    assert device.resource_class == f"CUSTOM_ACCELERATOR_{resource_class}"
    assert device.traits == traits


def test_the_operator_names_class_and_traits(make_bench):
    bench = make_bench(
        device_spec=[
            '{"address": "0000:5e:00.0", "resource_class": "FPGA",'
            ' "traits": "CUSTOM_FAST, cool"}'
        ]
    )
    device = bench.provider(FPGA).device
    assert device.resource_class == "FPGA"
    assert device.traits == {
        "CUSTOM_FAST",
        "CUSTOM_COOL",
        "CUSTOM_NUMA_CELL_0",
        "CUSTOM_PCI_10EE_5000",
    }


def test_providers_survive_the_loss_of_the_store(make_bench, tmp_path):
    bench = make_bench()
    before = bench.manager.providers()
    bench.restart(state_path=str(tmp_path / "elsewhere"))
    assert bench.manager.providers() == before
    bench.kernel.reboot()
    assert bench.manager.providers() == before


def test_vfs_that_are_tagged_differently_are_different_providers(make_bench):
    bench = make_bench(
        device_spec=[
            '{"address": "0000:3b:02.0", "resource_class": "CUSTOM_FAST"}',
            '{"address": "0000:3b:02.1", "resource_class": "CUSTOM_FAST"}',
            '{"address": "0000:3b:02.2", "resource_class": "CUSTOM_SLOW"}',
            '{"address": "0000:3b:00.0", "num_vfs": 4}',
        ]
    )
    found = {
        provider.device.resource_class: len(provider.device.handles)
        for provider in bench.manager.providers()
    }
    assert found["CUSTOM_FAST"] == 2
    assert found["CUSTOM_SLOW"] == 1
    assert sum(found.values()) == 4
    assert len({provider.uuid for provider in bench.manager.providers()}) == len(found)


def test_a_thousand_vfs_are_offered_at_once(make_bench):
    bench = make_bench(hosts.many_vfs_host(), device_spec=['{"product_id": "1889"}'])
    counts = [len(each.device.handles) for each in bench.manager.providers()]
    assert counts == [256] * 4


# -- regions of cards ------------------------------------------------------------


def test_the_regions_of_a_card_stand_below_it_and_others_below_the_node(make_bench):
    spec = hosts.fpga_host()
    ports = '{"address": "0000:af:*.*", "num_vfs": 2}'
    whole = '{"address": "0000:3b:00.0"}'
    bench = make_bench(
        HostSpec((*spec.functions, hosts.fpga("0000:05"))),
        device_spec=[ports, whole, '{"address": "0000:05:00.0"}'],
    )
    found = {
        each.name: each.card and each.card.name for each in bench.manager.providers()
    }
    assert found == {
        "node1_accel_8086_0b2b_0000_3b_00_0": "node1_accel_card_8086_0b2b_0000_3b_00_0",
        "node1_accel_8086_0b2c_0000_af_00_1": "node1_accel_card_8086_0b2b_0000_af_00_0",
        "node1_accel_8086_0b2c_0000_af_00_2": "node1_accel_card_8086_0b2b_0000_af_00_0",
        "node1_accel_10ee_5000_0000_05_00_0": None,
    }
