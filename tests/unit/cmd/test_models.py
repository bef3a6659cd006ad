# SPDX-License-Identifier: Apache-2.0

"""Listings show the models of devices, if the host has their names."""

import pytest

from os_acc.testing import hosts
from tests.unit.cmd.console import Console

GPU, PF, VF, QAT = "0000:17:00.0", "0000:3b:00.0", "0000:3b:02.0", "0000:d8:00.0"
A40 = "GA102GL [A40]"


@pytest.fixture
def named(console: Console) -> Console:
    """Return a shell on a host with the database of pciutils, and VFs of a card."""
    hosts.install_model_names(console.bench.root)
    console.configure('{"vendor_id": "10de"}', f'{{"address": "{PF}", "num_vfs": 2}}')
    console.bench.restart(device_spec=[f'{{"address": "{PF}", "num_vfs": 2}}'])
    return console


def test_devices_are_listed_with_their_models(named):
    assert named.device(GPU)["Model"] == A40
    assert named.device(PF)["Model"] == "Ethernet Controller E810-C for QSFP"
    assert named.device(VF)["Model"] == "Ethernet Adaptive Virtual Function"


def test_a_device_is_shown_with_its_vendor(named):
    found = named.json("device", "show", GPU)
    assert found["Model"] == f"NVIDIA Corporation {A40}"


def test_a_provider_has_the_model_of_its_card(named):
    models = [each["Model"] for each in named.json("provider", "list")]
    assert models == [A40, "Ethernet Controller E810-C for QSFP", A40]


def test_the_tree_names_the_models(named):
    tree = " ".join(named.run("topology", "--long", "--max-width", "400").out.split())
    assert f"display; {A40}; nouveau" in tree
    assert "network, 2 of 8 VFs; Ethernet Controller E810-C for QSFP; ens1f0" in tree
    assert "Ethernet Adaptive Virtual Function; no driver" in tree
    rows = {each["Name"]: each for each in named.json("topology")}
    assert rows[GPU]["Model"] == A40
    assert rows["cell 0"]["Model"] is None


def test_a_model_without_a_name_is_its_numbers(named):
    named.configure(f'{{"address": "{QAT}"}}')
    assert named.device(QAT)["Model"] == "8086:4940"
    shown = named.json("device", "show", QAT)
    assert shown["Model"] == "Intel Corporation Device 4940"
    assert "8086:4940" not in named.run("topology").out


def test_without_the_database_models_are_numbers(console):
    assert console.device(GPU)["Model"] == "10de:2235"
    assert console.json("device", "show", GPU)["Model"] == "10de:2235"
    assert "10de:2235" not in console.run("topology").out
