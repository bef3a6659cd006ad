# SPDX-License-Identifier: Apache-2.0

"""A function that is put in beside a leased one, into its IOMMU group."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from os_acc import exception
from os_acc.testing import TestHost, hosts, instance

FIRST, SECOND = "0000:b1:00.0", "0000:b1:00.1"


def test_a_guest_is_not_started_beside_a_driver_of_the_host(
    make_bench: Callable[..., TestHost],
) -> None:
    host = make_bench(hosts.two_socket_host())
    spec = host.kernel.hot_unplug(SECOND)
    host.plug(1, FIRST)
    host.kernel.hot_plug(spec)
    with pytest.raises(exception.HostStepFailed, match=f"{SECOND} is bound to"):
        host.manager.plug(instance(1), None, None)
    host.kernel.hot_unplug(SECOND)
    assert host.manager.plug(instance(1), None, None)
