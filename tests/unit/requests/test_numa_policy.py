# SPDX-License-Identifier: Apache-2.0

"""The NUMA policy in a device profile applies to its devices."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.testing import instance
from tests.expected_errors import has
from tests.unit.requests.request_states import GPU, bind


@pytest.mark.parametrize(("cell", "near"), [(0, True), (1, False)])
@pytest.mark.usefixtures("book")
def test_a_flavor_with_such_a_profile_is_served_by_it(bench, cell, near):
    bench.restart()
    provider = bench.provider(GPU)
    selected = {
        "allocations": {
            provider.uuid: {"resources": {provider.device.resource_class: 1}}
        },
        "mappings": {"device_profile_0": [provider.uuid]},
    }
    specs = {"accel:device_profile": "near"}
    guest = instance(1) | {"numa_cells": [cell]}
    if near:
        (entry,) = bench.manager.plug(guest, selected, specs)
        assert entry["numa_affinity"] == "local"
        return
    with pytest.raises(
        exception.NoDeviceAvailable,
        check=has(reason=exception.NoDeviceReason.NUMA_POLICY),
        match="required",
    ):
        bench.manager.plug(guest, selected, specs)
    assert bench.plugged(1) == []


def test_a_request_that_is_bound_cannot_keep_to_it_and_says_so(bench, book, caplog):
    (one,) = book.create("near")
    bind(bench, book, one)
    assert bench.plugged(1) == [GPU]
    assert "the NUMA policy of group" in caplog.text
