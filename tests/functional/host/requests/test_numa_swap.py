# SPDX-License-Identifier: Apache-2.0

"""A bound request keeps its UUID and its binding when its device is replaced."""

from __future__ import annotations

import pytest

from os_acc.attach import serialize
from os_acc.objects.accelerator_request import RequestState
from os_acc.testing import TestHost, uuid_of
from tests.functional.host.attach.numa_host import (
    BESIDE,
    CARD,
    FAR,
    NEAR,
    again,
    with_vfs,
)
from tests.functional.host.requests.request_states import bind, states

BOUND, UNBOUND = RequestState.BOUND, RequestState.UNBOUND


@pytest.fixture
def bench(make_bench) -> TestHost:
    return with_vfs(make_bench)


def swap(bench):
    """Plug the bound requests in cells that do not allow the first device."""
    return again(bench, [0, 1])


@pytest.fixture
def made(bench, book):
    """Return two bound requests; the device of the first has been replaced."""
    made = book.create("two-near")
    bind(bench, book, *made, place=CARD)
    assert bench.plugged(1) == [FAR, NEAR]
    swap(bench)
    assert sorted(bench.plugged(1)) == [NEAR, BESIDE]
    return made


def devices(book):
    """Return the device of each request."""
    return {
        each.uuid: serialize.request(each).get("pci_id")
        for each in book.find(instance=uuid_of(1))
    }


def test_a_bound_request_keeps_its_uuid_when_its_device_changes(bench, book, made):
    one, other = made
    assert devices(book) == {one.uuid: BESIDE, other.uuid: NEAR}
    assert states(book) == [BOUND, BOUND]
    entries = swap(bench)
    assert {each["uuid"]: each["pci_id"] for each in entries} == devices(book)
    assert {each["numa_affinity"] for each in entries} == {"local"}
    events = book.events([one.uuid, other.uuid])["events"]
    assert {each["tag"]: each["status"] for each in events} == {
        one.uuid: "completed",
        other.uuid: "completed",
    }
    bench.restart()
    assert devices(book) == {one.uuid: BESIDE, other.uuid: NEAR}
    # A repeated binding confirms it.
    bind(bench, book, *made, place=CARD)


def test_a_replaced_device_is_unbound_with_its_request(bench, book, made):
    one, other = made
    assert book.unbind([one.uuid]) == 1
    assert states(book) == [UNBOUND, BOUND]
    assert bench.drivers(FAR, BESIDE, NEAR) == ["iavf", "iavf", "vfio-pci"]
    # The other one forms a complete set now.
    assert [each["uuid"] for each in swap(bench)] == [other.uuid]


def test_a_device_that_cannot_be_released_is_none_of_the_request(bench, book):
    made = book.create("two-near")
    bind(bench, book, *made, place=CARD)
    bench.kernel.fail(FAR, "driver_override", times=None)
    swap(bench)
    found = book.find(instance=uuid_of(1))
    assert [each.state for each in found[:2]] == [BOUND, BOUND]
    (old,) = found[2:]
    assert old.uuid not in {each.uuid for each in made}
    assert serialize.request(old)["pci_id"] == FAR
    # The set of the others is complete without it.
    assert book.unbind([made[1].uuid]) == 1
    assert [each["uuid"] for each in swap(bench)] == [made[0].uuid]
    bench.kernel.lift()
