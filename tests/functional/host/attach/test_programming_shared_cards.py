# SPDX-License-Identifier: Apache-2.0

"""Several regions of a card, and several functions of a region, go to guests."""

from __future__ import annotations

from concurrent import futures

from os_acc import exception
from os_acc.host import dfl
from os_acc.objects.pci import PciAddress
from os_acc.testing import HostSpec, hosts, uuid_of
from tests.expected_errors import raises
from tests.unit import acme_card
from tests.unit.acme_card import PCI_A, PCI_B
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    OTHER_VF,
    POWER_ON,
    VF,
    VFS,
    function_trait,
    traits,
    upload,
)

# -- ports as VFs --------------------------------------------------------------


def test_each_port_of_a_card_is_a_region_for_a_guest(ports):
    upload(ports)
    assert function_trait(POWER_ON) in traits(ports, VF)
    assert function_trait(CRYPTO) in traits(ports, OTHER_VF)
    ports.plug(1, OTHER_VF)
    (entry,) = ports.plug(2, VF, function_id=GZIP)
    assert entry["pci_id"] == VF
    assert ports.kernel.held_by_hardware(CARD) == (GZIP, CRYPTO)
    for number in (1, 2):
        assert ports.unplug(number) == 1
    assert function_trait(GZIP) in traits(ports, VF)
    assert function_trait(CRYPTO) in traits(ports, OTHER_VF)


def test_the_host_has_its_ports_back_where_no_vfs_can_be_made(ports):
    ports.kernel.fail(CARD, "sriov_numvfs")
    assert ports.manager.providers() == ()
    card = dfl.read_card(ports.root, PciAddress.parse(CARD))
    assert [port.number for port in card.ports] == [0, 1]
    ports.restart()
    assert len(ports.manager.providers()) == 2


def test_a_card_of_several_ports_is_not_given_away_as_one(make_fpgas):
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO))
    bench = make_fpgas(HostSpec((card,)))
    assert "2" in bench.rejected(CARD).detail


# -- one region, two functions -------------------------------------------------


def test_each_function_of_a_region_goes_to_a_guest_of_its_own(
    two_functions, programmed
):
    for number, address in enumerate((PCI_A, PCI_B), 1):
        (entry,) = two_functions.plug(number, PCI_A, function_id=GZIP)
        assert entry["pci_id"] == address
    assert programmed == [GZIP]


def test_a_region_is_not_reprogrammed_while_a_guest_has_one_of_its_functions(
    two_functions,
    programmed,
):
    """Cyborg reprograms a region under a running VM: item 2 of its defects."""
    two_functions.plug(1, PCI_A, function_id=GZIP)
    with raises(exception.RegionReason.IN_USE, match=uuid_of(1)):
        two_functions.plug(2, PCI_A, function_id=CRYPTO)
    assert programmed == [GZIP]
    assert two_functions.plugged(2) == []
    two_functions.unplug(1)
    two_functions.plug(2, PCI_A, function_id=CRYPTO)
    assert programmed == [GZIP, CRYPTO]


def test_no_other_plugin_takes_what_is_leased(make_fpgas, install_plugins):
    """A plugin that chooses earlier is not given the regions of other plugins."""
    install_plugins(dfl="os_acc.plugins.dfl:DflPlugin", later=acme_card.PLUGIN)
    bench = make_fpgas(acme_card.spec(), device_spec=[VFS])
    acme_card.hold(bench, POWER_ON)
    bench.plug(1, PCI_A)
    assert bench.provider(PCI_A).device.plugin == "later"


def test_a_guest_that_took_the_region_as_it_was_keeps_that(two_functions, programmed):
    two_functions.plug(1, PCI_A)
    with raises(exception.RegionReason.IN_USE):
        two_functions.plug(2, PCI_A, function_id=GZIP)
    two_functions.plug(2, PCI_A)
    assert programmed == []


def test_a_region_is_programmed_once_for_a_guest_that_has_all_of_it(
    two_functions, programmed
):
    entries = two_functions.plug(1, PCI_A, amount=2, function_id=GZIP)
    assert {entry["pci_id"] for entry in entries} == {PCI_A, PCI_B}
    assert programmed == [GZIP]
    leases = two_functions.manager.store.leases(uuid_of(1))
    assert [lease.programming.function_id for lease in leases] == [GZIP, GZIP]


def test_of_guests_that_want_different_functions_at_once_one_gets_its_own(
    two_functions,
    programmed,
):
    asked = {1: GZIP, 2: CRYPTO}

    def plug(number: int) -> str:
        try:
            two_functions.plug(number, PCI_A, function_id=asked[number])
        except exception.RegionUnusable as error:
            if error.reason is not exception.RegionReason.IN_USE:
                raise
            return ""
        return asked[number]

    with futures.ThreadPoolExecutor(2) as pool:
        (got,) = [each for each in pool.map(plug, asked) if each]
    assert programmed == [got]
