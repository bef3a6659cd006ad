# SPDX-License-Identifier: Apache-2.0

"""Bindings of several instances in one call are checked before the first is made."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.objects.accelerator_request import RequestState
from os_acc.testing import uuid_of
from tests.expected_errors import has
from tests.unit.requests.request_states import FPGA, GPU, binding

OTHER_GPU = "0000:b1:00.0"


@pytest.fixture
def batches(book):
    """Return a request for the first and one for the second instance."""
    (first,), (second,) = book.create("one"), book.create("reserved")
    return first, second


def check_only_the_second_failed(bench, book, first, second):
    found = {each.uuid: each for each in book.find()}
    assert found[first.uuid] == first
    assert found[second.uuid].state is RequestState.BIND_FAILED
    assert found[second.uuid].reason
    assert bench.plugged(1) == []


def test_a_provider_of_another_host_leaves_the_other_instances_unbound(
    bench, book, batches
):
    first, second = batches
    foreign = {**binding(bench, FPGA, 2), "device_rp_uuid": uuid_of(77)}
    before = bench.kernel.snapshot()
    with pytest.raises(exception.ProviderNotFound, match=uuid_of(77)):
        book.bind({first.uuid: binding(bench, GPU, 1), second.uuid: foreign})
    check_only_the_second_failed(bench, book, first, second)
    assert bench.kernel.snapshot() == before


def test_a_provider_of_another_resource_leaves_the_other_instances_unbound(
    bench, book, batches
):
    first, second = batches
    with pytest.raises(exception.InvalidAllocation):
        book.bind(
            {
                first.uuid: binding(bench, GPU, 1),
                second.uuid: binding(bench, OTHER_GPU, 2),
            }
        )
    check_only_the_second_failed(bench, book, first, second)


def test_an_instance_with_accelerators_leaves_the_other_instances_unbound(
    bench, book, batches
):
    first, second = batches
    bench.plug(2, OTHER_GPU)
    with pytest.raises(
        exception.Conflict,
        match=uuid_of(2),
        check=has(reason=exception.ConflictReason.CONSUMER),
    ):
        book.bind(
            {
                first.uuid: binding(bench, GPU, 1),
                second.uuid: binding(bench, FPGA, 2),
            }
        )
    (plugged,) = (each for each in book.find(uuid_of(2)) if not each.is_made)
    assert plugged.state is RequestState.BOUND
    check_only_the_second_failed(bench, book, first, second)


def test_bindings_of_two_instances_are_made_in_one_call(bench, book, batches):
    first, second = batches
    asked = {first.uuid: binding(bench, GPU, 1), second.uuid: binding(bench, FPGA, 2)}
    assert {each.state for each in book.bind(asked)} == {RequestState.BOUND}
    assert book.bind(asked)
    assert (bench.plugged(1), bench.plugged(2)) == ([GPU], [FPGA])
