# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What providers are called, and whose they are."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc.objects import naming
from os_acc.objects.pci import PciAddress, PciIdentity

PLACE = PciAddress.parse("0000:3b:00.1")
CARD = PciIdentity(0x8086, 0x0B2B, 0, 0, 0, "")
KEY = naming.key(CARD, PLACE)


@pytest.mark.parametrize(
    ("serial", "place", "key"),
    [
        ("", "0000:3b:00.0", "8086_1592_0000_3b_00_0"),
        ("", "10000:3b:00.1", "8086_1592_10000_3b_00_1"),
        ("00-1b-21", "0000:3b:00.0", "8086_1592_00_1b_21"),
        ("00-1b-21", "0000:5e:00.0", "8086_1592_00_1b_21"),
        ("00-1b-21", "0000:3b:00.1", "8086_1592_00_1b_21_1"),
    ],
)
def test_a_device_is_named_by_its_serial_number_or_its_place(serial, place, key):
    identity = PciIdentity(0x8086, 0x1592, 0, 0, 0, serial)
    assert naming.key(identity, PciAddress.parse(place)) == key


def test_where_the_serial_number_is_not_its_own_the_place_names_it():
    of_all = dataclasses.replace(CARD, serial="0")
    assert naming.key_of_place(of_all, PLACE) == KEY


def test_a_card_is_never_called_as_its_only_region_is():
    region, card = naming.of_device("node1", KEY), naming.of_card("node1", KEY)
    assert region == "node1_accel_8086_0b2b_0000_3b_00_1"
    assert card == "node1_accel_card_8086_0b2b_0000_3b_00_1"
    assert naming.uuid_of(region) != naming.uuid_of(card)


def test_the_uuid_of_a_name_never_changes():
    """Allocations stand on it, and the store may be lost."""
    name = "node1_accel_8086_0b2b_0000_3b_00_1"
    assert naming.uuid_of(name) == "19f0dead-f544-5e77-a15d-95599505e131"


@pytest.mark.parametrize("make", [naming.of_device, naming.of_card])
def test_name_and_uuid_together_prove_a_provider_ours(make):
    name = make("node1", KEY)
    assert naming.is_ours("node1", name, naming.uuid_of(name))
    assert not naming.is_ours("node1", name, naming.uuid_of("another"))
    assert not naming.is_ours("node2", name, naming.uuid_of(name))


def test_a_provider_of_novas_is_not_ours():
    name = "node1_pci_0000_3b_00_1"
    assert not naming.is_ours("node1", name, naming.uuid_of(name))
