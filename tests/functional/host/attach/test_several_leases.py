# SPDX-License-Identifier: Apache-2.0

"""The devices of one instance are taken, and given back, with one call each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from os_acc import exception
from os_acc.helper.client import Helper
from os_acc.helper.connection import Connection
from os_acc.objects.pci import PciAddress
from os_acc.testing import TestHost, uuid_of

VFS = [f"0000:3b:02.{number}" for number in range(4)]


@pytest.fixture
def host(make_bench) -> TestHost:
    found: TestHost = make_bench(
        device_spec=['{"address": "0000:3b:*.*", "num_vfs": 4}']
    )
    found.restart()
    return found


@pytest.fixture
def calls(host: TestHost, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the helper's entry points that are called."""
    names: list[str] = []
    ask = Connection.ask

    def count(self, entrypoint, *rest):
        names.append(entrypoint.args[0].__name__)
        return ask(self, entrypoint, *rest)

    monkeypatch.setattr(Connection, "ask", count)
    return names


@pytest.mark.parametrize(
    ("count", "take", "give_back"),
    [(1, "take", "give_back"), (4, "several", "several")],
)
def test_the_number_of_calls_is_that_of_one_device(host, calls, count, take, give_back):
    before = host.kernel.snapshot()
    host.plug(1, *VFS[:count])
    assert calls == ["holders", take]
    calls.clear()
    assert host.unplug(1) == count
    assert calls == [give_back]
    assert host.kernel.snapshot() == before


@pytest.mark.parametrize("ahead", [VFS[1:2], VFS])
def test_each_device_may_refuse_the_epoch_once(host, let_a_device_see, ahead):
    """The store was lost and the clock went back."""
    for number, address in enumerate(ahead, start=1):
        let_a_device_see(address, host.manager.store.next_epoch() + number * 10**12)
    assert len(host.plug(1, *VFS)) == 4
    for number, address in enumerate(ahead, start=1):
        let_a_device_see(address, host.manager.store.next_epoch() + number * 10**12)
    assert host.unplug(1) == 4


def test_a_device_that_does_not_return_keeps_its_lease_alone(host):
    host.plug(1, *VFS)
    host.kernel.hang(VFS[2], "driver_override")
    with host.short_timeout(), pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    (left,) = host.manager.store.leases(uuid_of(1))
    assert str(left.address) == VFS[2]


def test_the_device_that_is_held_is_named(host, monkeypatch):
    """The helper answers once for all addresses of a call."""

    def check(_self: Helper, addresses: Sequence[PciAddress], _deadline: float) -> None:
        if PciAddress.parse(VFS[3]) in addresses:
            raise exception.DeviceInUse(f"{addresses[0]} is held by qemu")

    monkeypatch.setattr(Helper, "check_free", check)
    with pytest.raises(exception.DeviceInUse, match=f"{VFS[3]} is held by qemu"):
        host.plug(1, *VFS)
    assert host.manager.store.leases() == ()
