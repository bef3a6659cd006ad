# SPDX-License-Identifier: Apache-2.0

from hypothesis import given
from hypothesis import strategies as st

from os_acc.objects.epoch import DAY, LIMIT, AcceptedEpochs

EPOCHS = st.integers(0, LIMIT)


@given(EPOCHS, EPOCHS, EPOCHS)
def test_the_nearest_epoch_is_accepted_and_new(seen, clock, epoch):
    accepted = AcceptedEpochs.at(seen, clock)
    nearest = accepted.nearest(epoch)
    assert accepted.seen <= nearest <= accepted.limit
    assert nearest > seen or seen == LIMIT
    if seen < epoch <= accepted.limit:
        assert nearest == epoch


def test_an_epoch_that_was_far_ahead_is_near_the_clock_afterwards():
    assert AcceptedEpochs.at(7, 1000).nearest(2**62) == 1001
    assert AcceptedEpochs.at(2000, 1000).nearest(2**62) == 2001
    assert AcceptedEpochs.at(2000, 1000).nearest(3) == 2001
    assert AcceptedEpochs.at(7, 1000).limit == 1000 + DAY
