# SPDX-License-Identifier: Apache-2.0

"""A process killed during an operation leaves no leaked devices or leases."""

from __future__ import annotations

import signal

import pytest

import os_acc
from os_acc import exception

from ..host import VFIO, Binding, HostUnderTest
from ..processes import AnotherProcess, helpers
from .common import (
    devices,
    flavor,
    instance,
    offered,
    only_provider,
    plug,
    scenario,
    single,
)


def _victim(
    host: HostUnderTest, guest: dict[str, str], *steps: str, dies_at: str
) -> AnotherProcess:
    provider = only_provider()
    victim = host.another_process(
        *steps,
        instance=guest,
        provider=provider.uuid,
        extra_specs=flavor(provider),
        dies_at=dies_at,
    )
    victim.wait_until_ready()
    return victim


@scenario
def a_service_killed_after_its_intent_has_changed_nothing(
    host: HostUnderTest,
) -> None:
    host.start(single(host))
    before, guest = host.snapshot(), instance()
    _victim(host, guest, "plug", dies_at="intent").wait_until_killed()
    assert list(os_acc.attached()) == [guest["uuid"]]
    host.again()
    assert os_acc.attached() == {}
    assert host.snapshot() == before
    assert offered() == {host.places.single}


@scenario
def a_service_killed_before_its_commit_is_rolled_back(host: HostUnderTest) -> None:
    host.start(single(host))
    before, guest = host.snapshot(), instance()
    _victim(host, guest, "plug", dies_at="bound").wait_until_killed()
    assert host.binding(host.places.single) == VFIO
    host.again()
    assert os_acc.attached() == {}
    assert host.snapshot() == before


@scenario
def what_a_dead_service_has_sent_its_helper_is_refused(host: HostUnderTest) -> None:
    """The call reaches the privileged side after the rollback of the plug."""
    host.start(single(host), helper_process=True)
    before, guest = host.snapshot(), instance()
    ours = helpers(host.options, "base")
    victim = _victim(host, guest, "plug", dies_at="sent")
    theirs = helpers(host.options, "base") - ours
    assert theirs
    for pid in theirs:
        host.signal(pid, signal.SIGSTOP)
    victim.wait_until_killed()
    host.again()
    assert os_acc.attached() == {}
    for pid in theirs:
        host.signal(pid, signal.SIGCONT)
    host.wait_until(lambda: not theirs & helpers(host.options, "base"))
    assert host.snapshot() == before


@scenario
def a_service_killed_while_it_unplugs_is_rolled_forward(host: HostUnderTest) -> None:
    host.start(single(host))
    before, guest = host.snapshot(), instance()
    victim = _victim(host, guest, "plug", "unplug", dies_at="release")
    victim.wait_until_killed()
    assert host.binding(host.places.single) == VFIO
    assert os_acc.attached()[guest["uuid"]][0]["state"] == "Deleting"
    host.again()
    assert os_acc.attached() == {}
    assert host.snapshot() == before


@scenario
def a_helper_killed_while_it_plugs_is_undone_and_replaced(
    host: HostUnderTest,
) -> None:
    host.start(single(host), helper_process=True)
    before, guest = host.snapshot(), instance()
    with host.helper_dies_in_call(), pytest.raises(exception.HelperLost):
        plug(guest)
    assert os_acc.attached() == {}
    assert host.snapshot() == before
    assert devices(plug(guest)) == [host.places.single]
    assert os_acc.unplug(guest) == 1


@scenario
def a_helper_killed_while_it_unplugs_leaves_the_lease(host: HostUnderTest) -> None:
    host.start(single(host), helper_process=True)
    before, guest = host.snapshot(), instance()
    plug(guest)
    with host.helper_dies_in_call(), pytest.raises(exception.DevicesUnreleased) as left:
        os_acc.unplug(guest)
    assert isinstance(left.value.unreleased[0][1], exception.HelperLost)
    assert os_acc.attached(guest)[guest["uuid"]][0]["state"] == "Deleting"
    assert os_acc.unplug(guest) == 1
    assert host.binding(host.places.single) == Binding(None)
    assert host.snapshot() == before
