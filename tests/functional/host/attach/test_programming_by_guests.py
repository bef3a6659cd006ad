# SPDX-License-Identifier: Apache-2.0

"""A guest can program a card that it has as a whole: the contents are unverified."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.testing import HostSpec, TestHost, hosts, uuid_of
from tests.expected_errors import raises
from tests.functional.host.attach.test_rebuild import die
from tests.unit.fpga import (
    CARD,
    GZIP,
    POWER_ON,
    VF,
    function_trait,
    traits,
    upload,
)


def tells_of_a_function(bench: TestHost, address: str = CARD) -> bool:
    return any("_FUNCTION_" in trait for trait in traits(bench, address))


def test_what_it_has_programmed_is_not_the_function_of_the_next_guest(fpgas):
    """The author of a bitstream chooses the function that it reports."""
    upload(fpgas)
    fpgas.plug(1)
    fpgas.kernel.program_as_guest(CARD, GZIP)
    fpgas.unplug(1)
    assert not tells_of_a_function(fpgas)
    fpgas.plug(2, function_id=GZIP)
    assert fpgas.programmings() == ["done"]


def test_it_is_not_believed_what_it_was_given(fpgas):
    upload(fpgas)
    for number in (1, 2):
        fpgas.plug(number, function_id=GZIP)
        assert not tells_of_a_function(fpgas)
        fpgas.unplug(number)
        assert not tells_of_a_function(fpgas)
    assert fpgas.programmings() == ["done"] * 2


def test_a_card_goes_to_the_next_guest_that_takes_it_as_it_is(fpgas):
    for number in (1, 2):
        (entry,) = fpgas.plug(number)
        assert entry["pci_id"] == CARD
        fpgas.unplug(number)
    assert fpgas.programmings() == []


def test_the_doubt_outlives_whoever_has_plugged(fpgas, monkeypatch):
    upload(fpgas)
    # The kernel has bound the card, and no record says so.
    monkeypatch.setattr("os_acc.attach.verification.check_viable", die)
    with pytest.raises(KeyboardInterrupt):
        fpgas.plug(1)
    fpgas.restart()
    assert not tells_of_a_function(fpgas)


def test_a_card_that_no_guest_ever_had_is_believed(fpgas):
    fpgas.kernel.open_node("dfl-port.0")
    with pytest.raises(exception.DeviceInUse):
        fpgas.plug(1)
    assert function_trait(POWER_ON) in traits(fpgas)


def test_a_failure_is_not_forgotten_because_a_guest_had_the_card_before(fpgas):
    upload(fpgas)
    fpgas.plug(1)
    fpgas.unplug(1)
    fpgas.kernel.fail_programming(CARD, "reconfig CRC error")
    with pytest.raises(exception.ProgrammingFailed):
        fpgas.plug(2, function_id=GZIP)
    with raises(exception.RegionReason.UNKNOWN):
        fpgas.plug(3)


def test_a_card_that_cannot_be_programmed_is_what_it_is(make_fpgas):
    fixed = make_fpgas(HostSpec((hosts.dfl("0000:3b", reconfigurable=False),)))
    fixed.plug(1)
    assert function_trait(POWER_ON) in traits(fixed)
    fixed.unplug(1)
    assert function_trait(POWER_ON) in traits(fixed)


def test_a_guest_that_has_one_port_cannot_program_it(ports):
    ports.plug(1, VF)
    ports.unplug(1)
    assert function_trait(POWER_ON) in traits(ports, VF)


def test_what_is_kept_for_a_guest_is_believed(fpgas):
    upload(fpgas)
    for number in (1, 2):
        fpgas.plug(number, function_id=GZIP, attach_target="none")
        (lease,) = fpgas.manager.store.leases(uuid_of(number))
        assert not lease.is_the_guests
        fpgas.unplug(number)
        assert function_trait(GZIP) in traits(fpgas)
    assert fpgas.programmings() == ["done"]
