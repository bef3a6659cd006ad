# SPDX-License-Identifier: Apache-2.0

"""The NUMA policy in a device profile applies to its devices."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.attach import serialize
from os_acc.testing import instance
from tests.functional.host.requests.request_states import GPU, TOO_FAR, bind


@pytest.mark.parametrize(("cell", "near"), [(0, True), (1, False)])
def test_the_policy_of_a_bound_request_is_kept_once_the_cells_are_known(
    bench, book, cell, near
):
    """Nova binds requests before it fits the guest to the host's cells."""
    (one,) = book.create("near")
    bind(bench, book, one)
    assert bench.plugged(1) == [GPU]
    bench.restart()
    before, found = bench.kernel.snapshot(), book.find()
    guest = instance(1) | {"numa_cells": [cell]}
    if near:
        (entry,) = bench.manager.plug(guest, None, None)
        assert (entry["uuid"], entry["numa_affinity"]) == (one.uuid, "local")
        (bound,) = book.find()
        assert serialize.request(bound)["numa_affinity"] == "local"
        return
    with pytest.raises(exception.NoDeviceAvailable, check=TOO_FAR, match="required"):
        bench.manager.plug(guest, None, None)
    assert (bench.kernel.snapshot(), book.find()) == (before, found)
