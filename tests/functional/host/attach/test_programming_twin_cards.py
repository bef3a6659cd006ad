# SPDX-License-Identifier: Apache-2.0

"""Cards with the same serial number are different cards."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc import exception
from os_acc.testing import HostSpec, TestHost, instance, request
from tests.expected_errors import has
from tests.unit.fpga import CARD, GZIP, OTHER_CARD, held, two_cards, upload


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


def test_each_of_two_is_programmed_for_one_guest(twins):
    selected, specs = request(twins.provider(CARD), twins.provider(OTHER_CARD))
    specs |= {"accel1:function_id": GZIP, "accel2:function_id": GZIP}
    twins.manager.plug(instance(1), selected, specs)
    assert (held(twins, CARD), held(twins, OTHER_CARD)) == (GZIP, GZIP)


def test_one_is_programmed_while_a_guest_has_the_other(twins):
    twins.plug(1, CARD)
    twins.plug(2, OTHER_CARD, function_id=GZIP)
    assert held(twins, OTHER_CARD) == GZIP


def test_what_is_proved_of_one_says_nothing_of_the_other(twins):
    twins.kernel.fail_programming(CARD, "reconfig CRC error")
    with pytest.raises(exception.ProgrammingFailed):
        twins.plug(1, CARD, function_id=GZIP)
    twins.plug(2, OTHER_CARD, function_id=GZIP)
    with pytest.raises(
        exception.RegionUnusable, check=has(reason=exception.RegionReason.UNKNOWN)
    ):
        twins.plug(3, CARD)
