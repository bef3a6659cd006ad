# SPDX-License-Identifier: Apache-2.0

"""Several cards are programmed at the same time, one region of a card at a time.

Cards with the same serial number are different cards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent import futures

import pytest

from os_acc import exception
from os_acc.helper import client
from os_acc.objects.epoch import DAY
from os_acc.testing import HostSpec, TestHost, instance, request
from tests.expected_errors import raises
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    OTHER_CARD,
    OTHER_VF,
    VF,
    held,
    two_cards,
    upload,
)


@pytest.fixture
def pool() -> Iterator[futures.ThreadPoolExecutor]:
    with futures.ThreadPoolExecutor(2) as threads:
        yield threads


def two(bench: TestHost, first: str, second: str) -> tuple[object, object]:
    """Return a request for two regions with a function each."""
    upload(bench)
    upload(bench, "crypto", CRYPTO)
    selected, specs = request(bench.provider(first), bench.provider(second))
    return selected, specs | {
        "accel1:function_name": "gzip",
        "accel2:function_name": "crypto",
    }


def test_the_cards_of_a_request_are_programmed_at_the_same_time(fpgas, pool):
    selected, specs = two(fpgas, CARD, OTHER_CARD)
    for address in (CARD, OTHER_CARD):
        fpgas.kernel.hang(address, "program")
    plug = pool.submit(fpgas.manager.plug, instance(1), selected, specs)
    # Neither programming ends before both have begun.
    fpgas.kernel.wait_until_blocked(2)
    assert fpgas.programmings() == ["blocked", "blocked"]
    fpgas.kernel.lift()
    assert len(plug.result()) == 2
    assert (held(fpgas, CARD), held(fpgas, OTHER_CARD)) == (GZIP, CRYPTO)


def test_cards_that_have_seen_different_epochs_are_programmed_for_one_guest(
    fpgas, let_a_device_see
):
    """One was used while the clock was ahead, the other was not."""
    selected, specs = two(fpgas, CARD, OTHER_CARD)
    let_a_device_see(CARD, fpgas.manager.store.next_epoch() + 400 * DAY)
    assert len(fpgas.manager.plug(instance(1), selected, specs)) == 2
    assert (held(fpgas, CARD), held(fpgas, OTHER_CARD)) == (GZIP, CRYPTO)
    assert fpgas.unplug(1) == 2


def test_a_card_is_programmed_while_that_of_another_guest_is(fpgas, pool):
    upload(fpgas)
    fpgas.kernel.hang(CARD, "program")
    slow = pool.submit(fpgas.plug, 1, CARD, function_id=GZIP)
    fpgas.kernel.wait_until_blocked()
    fpgas.plug(2, OTHER_CARD, function_id=GZIP)
    assert fpgas.programmings() == ["blocked", "done"]
    assert not slow.done()
    fpgas.kernel.lift()
    assert len(slow.result()) == 1


def test_the_regions_of_a_card_are_programmed_one_after_the_other(
    ports, pool, monkeypatch
):
    events: list[str] = []
    real = client.Helper.program

    def program(self, region, *rest):
        events.append(f"begin {region.number}")
        real(self, region, *rest)
        events.append(f"end {region.number}")

    monkeypatch.setattr(client.Helper, "program", program)
    # The other region holds the second function already.
    selected, specs = two(ports, OTHER_VF, VF)
    ports.kernel.hang(CARD, "program")
    plug = pool.submit(ports.manager.plug, instance(1), selected, specs)
    ports.kernel.wait_until_blocked()
    assert len(events) == 1
    ports.kernel.lift()
    assert len(plug.result()) == 2
    first, second = (each.removeprefix("end ") for each in events[1::2])
    assert events == [
        f"begin {first}",
        f"end {first}",
        f"begin {second}",
        f"end {second}",
    ]
    assert {first, second} == {"0", "1"}
    assert sorted(ports.kernel.held_by_hardware(CARD)) == sorted((GZIP, CRYPTO))


def test_a_region_waits_for_that_of_another_guest_on_its_card(ports, pool):
    upload(ports)
    # A service that starts waits for a card that is being programmed.
    hasty = ports.start(plug_timeout=1.0)
    ports.kernel.hang(CARD, "program")
    slow = pool.submit(ports.plug, 1, VF, function_id=GZIP)
    ports.kernel.wait_until_blocked()
    selected, specs = request(ports.provider(OTHER_VF))
    specs["accel1:function_id"] = GZIP
    # This plug waits for the card if its time suffices to get there.
    with pytest.raises((exception.LockTimeout, exception.DeviceStuck)):
        hasty.plug(instance(2), selected, specs)
    assert ports.programmings() == ["blocked"]
    ports.kernel.lift()
    assert len(slow.result()) == 1
    ports.plug(2, OTHER_VF, function_id=GZIP)
    assert ports.kernel.held_by_hardware(CARD) == (GZIP, GZIP)


# -- cards with the same serial number ---------------------------------------------


@pytest.fixture
def twins(make_fpgas) -> TestHost:
    """Build a host with two cards whose serial numbers are not programmed."""
    cards = [
        dataclasses.replace(
            card,
            attributes=(
                *card.attributes,
                ("serial_number", f"{'-'.join(['00'] * 8)}\n"),
            ),
        )
        for card in two_cards().functions
    ]
    bench = make_fpgas(HostSpec(tuple(cards)))
    upload(bench)
    return bench


def test_each_of_two_twins_is_programmed_for_one_guest(twins):
    selected, specs = request(twins.provider(CARD), twins.provider(OTHER_CARD))
    specs |= {"accel1:function_id": GZIP, "accel2:function_id": GZIP}
    twins.manager.plug(instance(1), selected, specs)
    assert (held(twins, CARD), held(twins, OTHER_CARD)) == (GZIP, GZIP)


def test_one_twin_is_programmed_while_a_guest_has_the_other(twins):
    twins.plug(1, CARD)
    twins.plug(2, OTHER_CARD, function_id=GZIP)
    assert held(twins, OTHER_CARD) == GZIP


def test_what_is_proved_of_one_twin_says_nothing_of_the_other(twins):
    twins.kernel.fail_programming(CARD, "reconfig CRC error")
    with pytest.raises(exception.ProgrammingFailed):
        twins.plug(1, CARD, function_id=GZIP)
    twins.plug(2, OTHER_CARD, function_id=GZIP)
    with raises(exception.RegionReason.UNKNOWN):
        twins.plug(3, CARD)
