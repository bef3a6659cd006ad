# SPDX-License-Identifier: Apache-2.0

"""A swapped PCI function reaches the same function of its region."""

from __future__ import annotations

import pytest
from acme_accelerator import simulation

from os_acc import exception
from os_acc.testing import HostSpec, TestHost
from tests.expected_errors import raises
from tests.functional.host.attach.numa_host import again, set_nodes
from tests.unit import acme_card
from tests.unit.acme_card import PF
from tests.unit.fpga import CRYPTO, GZIP, POWER_ON, is_unknown, upload

#: They reach GZIP, CRYPTO, GZIP and CRYPTO.
PLACES = [f"0000:5e:00.{number}" for number in range(1, 5)]
FIRST_CRYPTO, LAST_CRYPTO = PLACES[1], PLACES[3]


@pytest.fixture
def region(make_fpgas, _example_plugin) -> TestHost:
    """Return a host with four PCI functions on a region of two functions."""
    spec = HostSpec((simulation.card(PF, vfs=4),))
    host = make_fpgas(spec, device_spec=['{"address": "*:*:*.*", "num_vfs": 4}'])
    acme_card.hold(host, POWER_ON)
    both = f"{GZIP},{CRYPTO}"
    upload(host, "both", declared=both, interface=acme_card.INTERFACE)
    return host


def leave(host: TestHost, *near: str) -> None:
    """Let these PCI functions alone be in cell 0."""
    set_nodes(host, {each: 0 if each in near else 1 for each in PLACES})


def plug_crypto(host: TestHost) -> None:
    (entry,) = host.plug(1, PF, numa_policy="required", function_id=CRYPTO)
    assert entry["pci_id"] == FIRST_CRYPTO


@pytest.mark.parametrize("between", ["nothing", "reboot"])
def test_a_swap_takes_a_pci_function_that_reaches_the_same_function(
    region, programmed, between
):
    plug_crypto(region)
    if between == "reboot":
        region.kernel.reboot()
        acme_card.hold(region, POWER_ON)
        region.restart()
    leave(region, PLACES[0], PLACES[2], LAST_CRYPTO)
    (entry,) = again(region, [0])
    assert (entry["pci_id"], entry["function_id"]) == (LAST_CRYPTO, CRYPTO)
    assert again(region, [0]) == [entry]
    assert len(programmed) == (2 if between == "reboot" else 1)
    assert not is_unknown(region)


def test_without_such_a_pci_function_a_swap_changes_nothing(region, programmed):
    plug_crypto(region)
    region.kernel.reboot()
    acme_card.hold(region, POWER_ON)
    region.restart()
    leave(region, PLACES[0], PLACES[2])
    before = region.manager.store.leases()
    for _attempt in range(2):
        with raises(exception.NoDeviceReason.NUMA_POLICY, match=FIRST_CRYPTO):
            again(region, [0])
    assert region.manager.store.leases() == before
    assert len(programmed) == 1
    assert not is_unknown(region)


def test_each_device_of_a_group_keeps_its_function(region):
    """The flavor requests the bitstream alone, and each device reaches one function."""
    region.plug(2, PF, function_id=GZIP)
    asked = {"numa_policy": "required", "bitstream_name": "both"}
    entries = region.plug(1, PF, amount=2, **asked)
    assert [each["function_id"] for each in entries] == [CRYPTO, GZIP]
    region.unplug(2)
    leave(region, PLACES[0], LAST_CRYPTO)
    found = again(region, [0])
    assert [each["function_id"] for each in found] == [CRYPTO, GZIP]
    assert [each["pci_id"] for each in found] == [LAST_CRYPTO, PLACES[0]]
