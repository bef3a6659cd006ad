# SPDX-License-Identifier: Apache-2.0

"""Bindings of several instances in one call are checked before the first is made."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.objects.accelerator_request import RequestState
from os_acc.testing import uuid_of
from tests.functional.host.requests.request_states import FPGA, GPU, binding

OTHER_GPU = "0000:b1:00.0"


@pytest.fixture
def batches(book):
    """Return a request for the first and one for the second instance."""
    (first,), (second,) = book.create("one"), book.create("reserved")
    return first, second


@pytest.mark.parametrize(
    ("place", "plugged", "error"),
    [
        (None, None, exception.ProviderNotFound),
        (OTHER_GPU, None, exception.InvalidAllocation),
        (FPGA, OTHER_GPU, exception.Conflict),
    ],
    ids=["foreign provider", "other resource", "other accelerators"],
)
def test_an_instance_that_cannot_be_served_leaves_the_others_unbound(
    bench, book, batches, place, plugged, error
):
    first, second = batches
    if plugged:
        bench.plug(2, plugged)
    asked = binding(bench, place or FPGA, 2)
    if not place:
        asked["device_rp_uuid"] = uuid_of(77)
    before = bench.kernel.snapshot()
    with pytest.raises(error):
        book.bind({first.uuid: binding(bench, GPU, 1), second.uuid: asked})
    found = {each.uuid: each for each in book.find()}
    assert found[first.uuid] == first
    assert found[second.uuid].state is RequestState.BIND_FAILED
    assert found[second.uuid].reason
    assert bench.plugged(1) == []
    assert bench.kernel.snapshot() == before


def test_bindings_of_two_instances_are_made_in_one_call(bench, book, batches):
    first, second = batches
    asked = {first.uuid: binding(bench, GPU, 1), second.uuid: binding(bench, FPGA, 2)}
    assert {each.state for each in book.bind(asked)} == {RequestState.BOUND}
    assert book.bind(asked)
    assert (bench.plugged(1), bench.plugged(2)) == ([GPU], [FPGA])
