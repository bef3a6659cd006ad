# SPDX-License-Identifier: Apache-2.0

"""A device that its plugin erases is given to no guest before that has ended."""

from __future__ import annotations

import errno
import json
import os
import time
from unittest import mock

import pytest
from oslo_config import cfg

from os_acc import exception, service
from os_acc.attach import erasure
from os_acc.helper.client import Helper
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.placement.capacity import Units
from os_acc.privsep import claims
from os_acc.store.locks import consumer_lock
from os_acc.testing import TestHost, instance, uuid_of
from tests.functional.host.attach.test_refused_units import units
from tests.functional.host.operator_commands import release
from tests.unit import acme
from tests.unit.acme import advance
from tests.unit.store.store_files import unlearn

CARD, OTHER = "0000:5e:00.0", "0000:e3:00.0"
GPU = "0000:17:00.0"
QUARTER = 1 / acme.BLOCKS


@pytest.fixture
def host(make_bench, install_plugins, monkeypatch) -> TestHost:
    """Return a host with two cards that their plugin erases."""
    install_plugins(acme="tests.unit.acme:Erases")
    monkeypatch.setattr(acme.Erases, "fault", None)
    monkeypatch.setattr(acme.Erases, "answer", None)
    return make_bench()


def fill(host: TestHost, number: int = 1, address: str = CARD, **request: str) -> None:
    """Plug a card, and let the guest write to it."""
    host.plug(number, address, **request)
    acme.write_medium(host.root, address)


def use(host: TestHost, number: int = 1, address: str = CARD, **request: str) -> None:
    """Plug a card, let the guest write to it, and unplug it."""
    fill(host, number, address, **request)
    assert host.unplug(number) == 1


def erasing(host: TestHost) -> list[Lease]:
    """Return the leases of devices whose consumers have given them back."""
    return [each for each in host.manager.store.leases() if each.erasure]


def check_kept(host: TestHost, address: str = CARD) -> None:
    """Check that no guest gets the card."""
    with pytest.raises(exception.NoDeviceAvailable):
        host.plug(9, address)


def test_an_unplug_returns_before_the_erasure_and_no_guest_gets_the_card(host):
    before = host.drivers(CARD)
    use(host)
    (lease,) = erasing(host)
    assert lease.state is LeaseState.ERASING
    assert host.drivers(CARD) == before
    assert acme.marked(host.root) == []
    assert acme.has_data(host.root, CARD)
    with pytest.raises(exception.NoDeviceAvailable, match="being erased") as caught:
        host.plug(2, CARD)
    assert caught.value.retryable
    assert caught.value.elsewhere
    assert units(host, CARD) == Units(1, 1)
    advance(host, acme.BLOCKS - 1)
    assert [each.erased for each in erasing(host)] == [1 - QUARTER]
    check_kept(host)
    advance(host, 1)
    assert erasing(host) == []
    assert not acme.has_data(host.root, CARD)
    assert units(host, CARD) == Units(1)
    host.plug(2, CARD)


def test_the_instance_gets_another_card_at_once_and_waits_for_none(host):
    use(host)
    host.plug(1, OTHER)
    assert host.plugged(1) == [OTHER]
    assert [str(each.address) for each in erasing(host)] == [CARD]


def test_the_device_belongs_to_no_consumer_any_more(host, monkeypatch):
    use(host)
    (lease,) = erasing(host)
    assert host.manager.attached(None) == {}
    assert service.recorded(host.config()) == {}
    assert host.manager.attached(instance(1)) == {}
    assert lease.erasure.consumer == uuid_of(1)
    # No caller can end or move it.
    assert host.manager.unplug({"uuid": lease.consumer}) == 0
    with pytest.raises(exception.NotFound):
        host.manager.rekey(lease.consumer, uuid_of(3))
    assert erasing(host) == [lease]


def test_the_history_names_the_former_consumer_once_for_begin_and_end(host):
    use(host)
    advance(host)
    events = [
        (each.operation, each.consumer)
        for each in host.manager.store.events(100)
        if each.address == CARD
    ]
    ours = uuid_of(1)
    assert events[-3:-1] == [("replace", ours), ("erase", ours)]
    assert events[-1] == ("delete", ours)


# -- failures ------------------------------------------------------------------


def test_a_lasting_failure_quarantines_until_an_operator_starts_it_again(
    host, monkeypatch
):
    use(host)
    monkeypatch.setattr(acme.Erases, "fault", RuntimeError("the medium is worn out"))
    advance(host, 1)
    (lease,) = erasing(host)
    assert lease.state is LeaseState.QUARANTINED
    assert "worn out" in lease.reason
    assert host.manager.life.eraser.due(1e9) == []
    advance(host)
    check_kept(host)
    assert units(host, CARD) == Units(1, 1)
    with pytest.raises(exception.PluginFailed):
        release(host, CARD)
    check_kept(host)
    monkeypatch.setattr(acme.Erases, "fault", None)
    acme.write_medium(host.root, CARD)
    release(host, CARD)
    (lease,) = erasing(host)
    assert (lease.state, lease.erased, lease.reason) == (
        LeaseState.ERASING,
        QUARTER,
        "",
    )
    advance(host, acme.BLOCKS - 1)
    assert not acme.has_data(host.root, CARD)
    host.plug(2, CARD)


@pytest.mark.parametrize(
    "fault",
    [
        exception.DeviceInUse("acmed uses it", address=CARD),
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    ],
    ids=["in use", "no descriptors"],
)
def test_a_passing_failure_is_retried(host, monkeypatch, fault):
    use(host)
    monkeypatch.setattr(acme.Erases, "fault", fault)
    advance(host, 1)
    (lease,) = erasing(host)
    assert lease.state is LeaseState.ERASING
    assert lease.reason
    check_kept(host)
    monkeypatch.setattr(acme.Erases, "fault", None)
    advance(host, acme.BLOCKS - 1)
    assert not acme.has_data(host.root, CARD)
    host.plug(2, CARD)


@pytest.mark.parametrize("answer", ["done", True, -0.5, 1.5, float("nan")])
def test_an_answer_that_is_no_part_is_no_proof(host, monkeypatch, answer):
    use(host)
    monkeypatch.setattr(acme.Erases, "answer", answer)
    advance(host, 1)
    (lease,) = erasing(host)
    assert lease.state is LeaseState.QUARANTINED
    assert "not a number from 0.0 to 1.0" in lease.reason


def test_an_operator_frees_a_device_that_cannot_be_erased_by_force_alone(
    host, monkeypatch
):
    use(host)
    monkeypatch.setattr(acme.Erases, "fault", RuntimeError("worn out"))
    with pytest.raises(exception.Conflict, match="being erased"):
        release(host, CARD, force=True)
    advance(host, 1)
    release(host, CARD, force=True)
    assert erasing(host) == []
    host.plug(2, CARD)


def test_force_forgets_a_card_that_left_before_its_erasure_began(host):
    use(host)
    host.kernel.hot_unplug(CARD)
    advance(host, 1)
    release(host, CARD, force=True)
    assert erasing(host) == []
    assert claims.claimed() == ()


def test_a_step_that_never_ends_quarantines_a_device_that_can_be_forced(
    host, monkeypatch
):
    clock = time.time_ns
    use(host)
    stuck = exception.DeviceStuck("the firmware hangs", address=CARD)
    monkeypatch.setattr(acme.Erases, "fault", stuck)
    for hours in (0, 5.9, 6.1):
        later = int(hours * 3600 * 10**9)
        monkeypatch.setattr(time, "time_ns", lambda later=later: clock() + later)
        advance(host, 1)
        (lease,) = erasing(host)
        assert lease.state is LeaseState.ERASING
    monkeypatch.setattr(erasure, "_WATCHED_SECONDS", 0)
    advance(host, 1)
    for _try in range(2):
        (lease,) = erasing(host)
        assert lease.state is LeaseState.QUARANTINED
        assert "for 6 hours" in lease.reason
        with pytest.raises(exception.HostError):
            release(host, CARD)
    release(host, CARD, force=True)
    assert erasing(host) == []


def test_without_its_plugin_no_other_one_offers_the_device(host, install_plugins):
    use(host)
    install_plugins()
    host.restart()
    advance(host)
    (lease,) = erasing(host)
    assert lease.state is LeaseState.QUARANTINED
    assert "which has to erase" in lease.reason
    assert host.rejected(CARD).reason is RejectReason.NO_PLUGIN
    install_plugins(acme="tests.unit.acme:Erases")
    host.restart()
    release(host, CARD)
    advance(host, acme.BLOCKS - 1)
    assert not acme.has_data(host.root, CARD)
    host.plug(2, CARD)


def test_a_card_that_is_pulled_waits_for_its_return(host):
    use(host)
    host.kernel.hot_unplug(CARD)
    advance(host, 1)
    (lease,) = erasing(host)
    assert lease.state is LeaseState.QUARANTINED
    assert "has left the host" in lease.reason


# -- crashes and restarts ------------------------------------------------------


def test_a_restart_and_a_reboot_continue_the_erasure(host):
    use(host)
    advance(host, 1)
    host.restart()
    (lease,) = erasing(host)
    assert lease.erased == QUARTER
    host.kernel.reboot()
    host.restart()
    check_kept(host)
    advance(host, acme.BLOCKS - 1)
    assert erasing(host) == []
    assert not acme.has_data(host.root, CARD)


def test_a_crash_after_the_last_call_erases_nothing_twice(host, monkeypatch):
    use(host)
    advance(host, acme.BLOCKS - 1)
    lost = exception.HelperLost("killed")
    with monkeypatch.context() as patch:
        patch.setattr(Helper, "forget", mock.Mock(side_effect=lost))
        advance(host, 1)
    (lease,) = erasing(host)
    assert lease.erased == 1.0
    monkeypatch.setattr(acme.Erases, "fault", RuntimeError("erased twice"))
    advance(host, 1)
    assert erasing(host) == []


def test_one_caller_at_a_time_erases_a_device(host):
    use(host)
    (lease,) = erasing(host)
    with host.manager.locks.hold([consumer_lock(lease.uuid)], 1e9):
        assert host.start().life.eraser.advance(lease.uuid, 1e9) is None
    assert host.manager.life.eraser.advance(lease.uuid, 1e9).erased == QUARTER


# -- plugs that fail -----------------------------------------------------------


def test_a_plug_that_fails_before_the_device_leaves_the_host_erases_nothing(
    host, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(acme.Erases, "prepare", mock.Mock(side_effect=RuntimeError))
        with pytest.raises(exception.PluginFailed):
            host.plug(1, CARD)
    assert host.manager.store.leases() == ()
    host.plug(1, CARD)


def test_an_older_version_keeps_the_device(host, monkeypatch):
    """It reads a state that it does not know: the record is damaged."""
    use(host)
    unlearn(monkeypatch, LeaseState.ERASING)
    host.restart()
    check_kept(host)
    assert host.manager.store.leases() == ()
    assert host.manager.store.damaged_claims() == (PciAddress.parse(CARD),)


def test_a_call_of_an_erasure_is_short_whatever_time_its_caller_has(host, monkeypatch):
    given: list[float] = []

    def erase(self, handle, steps) -> float:
        given.append(steps.seconds_left())
        return 1.0

    monkeypatch.setattr(acme.Erases, "erase", erase)
    host.plug(1, CARD)
    host.unplug(1)
    (lease,) = host.manager.store.leases()
    host.manager.life.eraser.advance(lease.uuid, time.monotonic() + 1_000)
    (seconds,) = given
    assert seconds <= host.manager.settings.write_timeout


def test_nothing_is_erased_that_a_guest_of_nova_may_have(host):
    use(host)
    before = acme.medium_of(host.root, CARD).read_bytes()
    config = host.config()
    config.register_opts([cfg.MultiStrOpt("device_spec", default=[])], group="pci")
    named = [json.dumps({"address": CARD})]
    config.set_override("device_spec", named, group="pci")
    host._manager = host.start(config)
    advance(host, 2)
    assert acme.medium_of(host.root, CARD).read_bytes() == before
    (lease,) = erasing(host)
    assert lease.state is LeaseState.QUARANTINED
    assert f"Nova's [pci] device_spec names {CARD}" in lease.reason
    with pytest.raises(exception.InvalidConfiguration, match="device_spec"):
        release(host, CARD)
    host.restart()
    release(host, CARD)
    advance(host, acme.BLOCKS)
    assert not erasing(host)
    assert acme.medium_of(host.root, CARD).read_bytes() != before
