# SPDX-License-Identifier: Apache-2.0

"""One wrong bit anywhere in the store is reported, or changes nothing.

The bits are random, and the same in each run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.stress.bit_flips import Flips
from tests.stress.result_tables import Count, Counting

#: 20,000 bits in all.
PARTS, BITS = 40, 500
#: The header of the file.
HEADER = 100 * 8


@pytest.fixture
def flips(place: str) -> Flips:
    return Flips(os.path.join(place, "bench"))


def survive(
    flips: Flips, counting: Counting, what: str, bits: Iterator[int] | range
) -> None:
    troubles = [flips.trouble(bit) for bit in bits]
    found = [each for each in troubles if each]
    tried = len(troubles)
    counting(Count("a wrong bit", what, tried, 1, tried, tried - len(found)))
    assert not found, f"{len(found)} not survived:\n" + "\n".join(found[:5])


# The shares are of one size: each has the same number of parts.
@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=pytest.mark.share(PARTS, part)) for part in range(PARTS)],
)
def test_a_random_bit_may_be_wrong(flips, counting, part):
    survive(flips, counting, f"part {part:02}", flips.bits(part, BITS))


def test_every_bit_of_the_header_may_be_wrong(flips, counting):
    survive(flips, counting, "the header", range(HEADER))
