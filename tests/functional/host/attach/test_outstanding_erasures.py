# SPDX-License-Identifier: Apache-2.0

"""No loss of the store, of a record or of the plugin frees a device that has data."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
from pathlib import Path
from unittest import mock

import pytest

from os_acc import exception
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.privsep import claims, worker
from os_acc.privsep.kernel import LOCKS
from os_acc.testing import TestHost
from tests.functional.host.attach.test_erasure import CARD, erasing, fill, use
from tests.functional.host.operator_commands import adopt, release
from tests.unit import acme
from tests.unit.acme import advance
from tests.unit.store import store_files
from tests.unit.store.store_files import lose_store

ERASES, RIVAL = "tests.unit.acme:Erases", "tests.unit.acme:Rival"


@pytest.fixture
def host(make_bench, install_plugins, monkeypatch) -> TestHost:
    """Return a host with a card that its plugin erases."""
    install_plugins(acme=ERASES)
    monkeypatch.setattr(acme.Erases, "fault", None)
    return make_bench()


def check_unknown(host: TestHost) -> None:
    """Check that the card waits for an operator, and that no guest gets it."""
    assert host.rejected(CARD).reason is RejectReason.UNKNOWN_STATE


def check_erased(host: TestHost) -> None:
    """Check that the card is erased to its end, and free then."""
    assert erasing(host)
    advance(host)
    assert not acme.has_data(host.root, CARD)
    assert claims.claimed() == ()
    host.plug(2, CARD)


@pytest.mark.parametrize(("target", "calls"), [("VM", 0), ("VM", 1), ("none", 0)])
def test_a_store_that_is_lost_during_the_erasure_leaves_the_card_unknown(
    host, target, calls
):
    use(host, attach_target=target)
    advance(host, calls)
    lose_store(host)
    check_unknown(host)
    release(host, CARD)
    check_erased(host)


@pytest.mark.parametrize("is_plugged", [True, False], ids=["in a guest", "given back"])
def test_the_record_names_the_plugin_that_offers_the_card_no_more(
    host, install_plugins, is_plugged
):
    if is_plugged:
        fill(host)
    else:
        use(host)
    install_plugins(rival=RIVAL)
    lose_store(host)
    # The plugin has to release what a guest had.
    missing = pytest.raises(exception.PluginFailed, match="acme")
    with missing if is_plugged else contextlib.nullcontext():
        release(host, CARD)
    advance(host, 1)
    (lease,) = host.manager.store.leases()
    assert (lease.state, lease.plugin) == (LeaseState.QUARANTINED, "acme")
    owed = "which prepared" if is_plugged else "which has to erase"
    assert owed in lease.reason
    assert host.rejected(CARD).reason is RejectReason.NO_PLUGIN
    install_plugins(acme=ERASES)
    host.restart()
    release(host, CARD)
    check_erased(host)


def test_an_adopted_card_owes_what_its_record_says(host, install_plugins):
    host.plug(1, CARD)
    install_plugins(rival=RIVAL)
    lose_store(host)
    lease = adopt(host, CARD)
    assert (lease.plugin, lease.needs_erase) == ("acme", True)


def test_a_lost_card_that_is_pulled_stays_on_record_until_force(host):
    use(host)
    lose_store(host)
    pulled = host.kernel.hot_unplug(CARD)
    with pytest.raises(exception.DeviceGone, match="acme has not erased it"):
        release(host, CARD)
    host.kernel.hot_plug(pulled)
    check_unknown(host)
    host.kernel.hot_unplug(CARD)
    release(host, CARD, force=True)
    assert claims.claimed() == ()


def test_a_card_that_is_pulled_out_of_a_guest_stays_on_record(host):
    fill(host)
    pulled = host.kernel.hot_unplug(CARD)
    host.unplug(1)
    lose_store(host)
    host.kernel.hot_plug(pulled)
    check_unknown(host)
    release(host, CARD)
    check_erased(host)


def test_a_damaged_lease_is_released_to_its_erasure_after_a_reboot(host):
    use(host)
    file = store_files.file_in(host.state_path)
    store_files.execute(file, "UPDATE leases SET digest = ''")
    host.kernel.reboot()
    host.restart()
    release(host, CARD)
    check_unknown(host)
    release(host, CARD)
    check_erased(host)


def test_a_damaged_record_of_the_helper_is_replaced(host):
    use(host)
    Path(host.root, LOCKS, f"{CARD}.lease").write_text("rubbish")
    check_erased(host)


def test_force_gives_up_the_plugins_release_but_not_the_data(host, monkeypatch):
    fill(host)
    with monkeypatch.context() as patch:
        patch.setattr(acme.Erases, "release", mock.Mock(side_effect=RuntimeError))
        with pytest.raises(exception.DevicesUnreleased):
            host.unplug(1)
        release(host, CARD, force=True)
    check_erased(host)


def test_force_frees_no_card_whose_erasure_can_go_on(host, monkeypatch):
    use(host)
    monkeypatch.setattr(acme.Erases, "fault", RuntimeError("worn out"))
    advance(host, 1)
    full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    monkeypatch.setattr(acme.Erases, "fault", full)
    with pytest.raises(exception.OsAccError):
        release(host, CARD, force=True)
    monkeypatch.setattr(acme.Erases, "fault", None)
    check_erased(host)


def test_a_call_of_the_plugin_that_keeps_the_lock_is_no_failure(host):
    use(host)
    advance(host, 1)
    with open(Path(host.root, LOCKS, CARD), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        advance(host, 1)
    (lease,) = erasing(host)
    assert (lease.reason, lease.erased) == ("", 2 / acme.BLOCKS)


def test_a_plug_that_a_reboot_has_ended_is_erased(host):
    fill(host)
    (lease,) = host.manager.store.leases()
    # The process ended between the guest's start and the commit.
    half = dataclasses.replace(lease, state=LeaseState.PREPARING)
    host.manager.store.replace([half])
    # The helper's record is gone: it does not tell that no guest had the card.
    host.kernel.reboot()
    host.restart()
    host.manager.recovery.replay(1e9)
    check_erased(host)


def test_a_card_is_erased_although_the_helper_has_lost_its_record(host):
    fill(host)
    Path(host.root, LOCKS, f"{CARD}.lease").unlink()
    host.unplug(1)
    assert [
        each.lease for each in host.manager.catalog.reconciler.records(1e9).values()
    ]
    check_erased(host)


def test_an_erasure_follows_the_epochs_of_the_helper(host):
    def raise_epoch() -> None:
        path = Path(host.root, LOCKS, CARD)
        seen = int(path.read_bytes().partition(b" ")[0])
        path.write_bytes(worker._record(b"%020d" % (seen + 3_600_000_000)))

    use(host)
    raise_epoch()
    advance(host, 1)
    (lease,) = erasing(host)
    assert (lease.erased, lease.reason) == (1 / acme.BLOCKS, "")
    raise_epoch()
    advance(host, acme.BLOCKS - 1)
    assert erasing(host) == []


def test_force_begins_no_erasure_of_a_card_that_is_not_back(host):
    fill(host)
    host.kernel.fail(CARD, "unbind", errno.EIO)
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    host.kernel.fail(CARD, "unbind", errno.EIO)
    release(host, CARD, force=True)
    host.kernel.lift()
    assert host.manager.store.leases() == ()
    check_unknown(host)
    release(host, CARD)
    check_erased(host)
