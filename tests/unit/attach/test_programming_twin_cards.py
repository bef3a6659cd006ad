# SPDX-License-Identifier: Apache-2.0

"""Cards that have the same serial number are different cards all the same."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc import exception
from os_acc.testing import HostSpec
from tests.expected_errors import has
from tests.unit.bench import instance, request
from tests.unit.fpga import CARD, GZIP, OTHER_CARD, FpgaBench, two_cards


@pytest.fixture
def twins(make_fpgas) -> FpgaBench:
    """Nobody has programmed their serial numbers."""
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
    bench.upload()
    return bench


def test_each_of_two_is_programmed_for_one_guest(twins):
    selected, specs = request(twins.provider(CARD), twins.provider(OTHER_CARD))
    specs |= {"accel1:function_id": GZIP, "accel2:function_id": GZIP}
    twins.manager.plug(instance(1), selected, specs)
    assert (twins.held(CARD), twins.held(OTHER_CARD)) == (GZIP, GZIP)


def test_one_is_programmed_while_a_guest_has_the_other(twins):
    twins.ask(1, CARD)
    twins.ask(2, OTHER_CARD, function_id=GZIP)
    assert twins.held(OTHER_CARD) == GZIP


def test_what_is_proved_of_one_says_nothing_of_the_other(twins):
    twins.kernel.fail_programming(CARD, "reconfig CRC error")
    with pytest.raises(exception.ProgrammingFailed):
        twins.ask(1, CARD, function_id=GZIP)
    twins.ask(2, OTHER_CARD, function_id=GZIP)
    with pytest.raises(
        exception.RegionUnusable, check=has(reason=exception.RegionReason.UNKNOWN)
    ):
        twins.ask(3, CARD)
