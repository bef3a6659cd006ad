# SPDX-License-Identifier: Apache-2.0

"""A device that a process of the host holds is skipped, and nothing of it is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from unittest import mock

import pytest

from os_acc import exception
from os_acc.attach import plugin_steps
from os_acc.helper import client
from os_acc.objects.lease import Lease
from os_acc.testing import HostSpec, TestHost, hosts
from tests.unit.forked_processes import Child

PF = "0000:3b:00.0"


@pytest.fixture
def host(make_bench: Callable[..., TestHost]) -> TestHost:
    """Return a host with three VFs that the operator has put on vfio-pci."""
    card = hosts.nic("0000:3b", name="eno1", vfs=8)
    assert card.sriov is not None
    card = dataclasses.replace(card, sriov=dataclasses.replace(card.sriov, boot_vfs=3))
    host = make_bench(
        HostSpec((card,)), device_spec=[f'{{"address": "{PF}", "prebound": true}}']
    )
    for vf in vfs(host):
        host.bind(vf, "vfio-pci")
    return host


def vfs(host: TestHost) -> list[str]:
    found = host.manager.discover().host.functions
    return [str(each) for each in sorted(found) if str(each) != PF]


def test_another_unit_is_chosen(host):
    first, second, third = vfs(host)
    for vf in (first, second):
        host.kernel.hold(vf, pid=4711, command="qemu")
    before = host.kernel.snapshot()
    (entry,) = host.plug(1, first)
    assert entry["pci_id"] == third
    assert host.unplug(1) == 1
    assert host.kernel.snapshot() == before


def test_a_unit_of_which_root_cannot_tell_is_not_chosen(host):
    first, second, _third = vfs(host)
    host.kernel.chown(first)
    (entry,) = host.plug(1, first)
    assert entry["pci_id"] == second


@pytest.mark.parametrize("place", [PF, "card 3"])
def test_a_plugin_that_gives_another_address_fails_with_its_error(
    host, monkeypatch, place
):
    busy = exception.DeviceInUse("its firmware is busy", address=place)
    monkeypatch.setattr(plugin_steps, "prepare", mock.Mock(side_effect=busy))
    with pytest.raises(exception.DeviceInUse, match="busy"):
        host.plug(1, vfs(host)[0])
    assert host.manager.store.leases() == ()


def test_a_unit_of_a_guest_is_given_to_no_other_consumer(host):
    first, second, _third = vfs(host)
    host.kernel.hold(first, pid=4711, command="qemu")
    host.plug(1, first, attach_target="none")
    assert host.plugged(1) == [second]


def test_a_process_that_comes_after_the_check_keeps_no_lease(host, monkeypatch):
    first, *_ = vfs(host)

    def refuse(_helper: client.Helper, leases: list[Lease], *_: object) -> None:
        (lease,) = leases
        host.kernel.hold(str(lease.address), pid=4711, command="qemu")
        raise exception.HostStepFailed("refused", address=str(lease.address))

    monkeypatch.setattr(client.Helper, "take", refuse)
    with pytest.raises(exception.HostStepFailed, match="refused"):
        host.plug(1, first)
    assert host.manager.store.leases() == ()
    assert host.unplug(1) == 0


def test_a_request_for_more_units_than_are_free_leaves_no_lease(host):
    first, *_ = vfs(host)
    host.kernel.hold(first, pid=4711, command="qemu")
    writes = host.kernel.writes()
    with pytest.raises(exception.DeviceInUse, match="qemu") as caught:
        host.plug(1, first, amount=3)
    assert caught.value.retryable
    assert host.kernel.writes() == writes
    assert host.manager.store.leases() == ()
    # The instance can be deleted while the process goes on.
    assert host.unplug(1) == 0


def test_a_crash_at_the_check_leaves_no_lease(host, monkeypatch):
    # The next start would wait for the process to release it.
    def plug(pause: Callable[[], None]) -> None:
        monkeypatch.setattr(client.Helper, "check_free", lambda *_: pause())
        host.plug(1, vfs(host)[0])

    child = Child(plug)
    assert child.hears() == "paused"
    child.is_killed()
    assert host.manager.store.leases() == ()
