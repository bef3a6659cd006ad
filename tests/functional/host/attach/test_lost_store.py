# SPDX-License-Identifier: Apache-2.0

"""No device is leased twice if the store is lost while devices are in use."""

from __future__ import annotations

import contextlib
import threading
from concurrent import futures
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.attach.manager import Manager
from os_acc.helper.reconciliation import Reconciler
from os_acc.objects.device import RejectReason
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, pci_functions, record
from os_acc.store.leases import Store, StoreDamaged
from os_acc.testing import TestHost, instance, request, uuid_of
from tests.expected_errors import raises
from tests.functional.host.operator_commands import adopt, release

GPU, AUDIO, FPGA, DISK = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0", "0000:d9:00.0"
NIC = "0000:3b:00.0"
PREBOUND = (f'{{"address": "{FPGA}", "prebound": true}}', '{"address": "*:*:*.*"}')
KINDS = [(GPU, "VM"), (FPGA, "VM"), (GPU, "host"), (FPGA, "none")]


def at(text: str) -> PciAddress:
    return PciAddress.parse(text)


@pytest.fixture
def host(make_bench) -> TestHost:
    """Build the host of two sockets; one of its cards is on vfio-pci at boot."""
    bench = make_bench(device_spec=list(PREBOUND))
    bench.bind(FPGA, "vfio-pci")
    return bench


def lose(bench: TestHost) -> None:
    """Remove the store, as an operator does by mistake; the process detects it."""
    for file in Path(bench.state_path).glob("os_acc.sqlite*"):
        file.unlink()
    with pytest.raises(StoreDamaged):
        bench.manager.store.leases()


def once_before(monkeypatch, bench: TestHost, nth: int) -> None:
    """Lose the store, unnoticed, before the nth read of all leases."""
    read, count = Store.recorded_state, iter(range(1, 1000))

    def recorded_state(store: Store):
        if next(count) == nth:
            lose(bench)
        return read(store)

    monkeypatch.setattr(Store, "recorded_state", recorded_state)


# -- a running service -----------------------------------------------------------


@pytest.mark.parametrize(("address", "target"), KINDS)
def test_what_was_leased_is_not_given_to_another(host, address, target):
    host.plug(1, address, attach_target=target)
    before = host.kernel.snapshot()
    lose(host)
    for _ in range(2):
        refused = host.rejected(address)
        assert refused.reason is RejectReason.UNKNOWN_STATE
        assert "which the store has lost" in refused.detail
        assert host.kernel.snapshot() == before
        host.restart()


@pytest.mark.parametrize("nth", range(1, 8))
def test_a_look_judges_and_chooses_by_the_same_leases(host, monkeypatch, nth):
    """A device in an unknown state makes the scan read the leases a second time."""
    host.bind(DISK, "vfio-pci")
    host.plug(1, GPU)
    selected, specs = request(host.provider(GPU))
    once_before(monkeypatch, host, nth)
    with pytest.raises((exception.NoDeviceAvailable, exception.DeviceGone)):
        host.manager.plug(instance(2), selected, specs)
    assert pci_functions.driver(at(GPU)) == "vfio-pci"
    assert record.read(at(GPU)) is not None


@pytest.mark.parametrize("nth", range(1, 6))
def test_the_loser_of_a_race_does_not_choose_what_was_leased(host, monkeypatch, nth):
    """A rival plug takes the selected device, and then the store is lost."""
    host.options["device_spec"] = ['{"address": "0000:3b:*.*", "num_vfs": 4}']
    (first,) = host.plug(1, NIC)
    selected, specs = request(host.provider(NIC))
    rival, mine = host.manager, host.restart()
    add, rivals = mine.store.add, iter((2,))
    given = []

    def after_a_rival(leases, seen=""):
        for number in rivals:
            given.extend(rival.plug(instance(number), selected, specs))
            once_before(monkeypatch, host, nth)
        return add(leases, *([seen] if seen else []))

    monkeypatch.setattr(mine.store, "add", after_a_rival)
    with contextlib.suppress(exception.OsAccError):
        given.extend(mine.plug(instance(3), selected, specs))
    taken = [entry["pci_id"] for entry in (first, *given)]
    assert len(taken) == len(set(taken))


def test_a_lease_is_not_added_to_another_store_than_was_read(host, monkeypatch):
    selected, specs = request(host.provider(GPU))
    add, losses = host.manager.store.add, iter((lose,))

    def after_a_loss(leases, seen):
        for loss in losses:
            loss(host)
        return add(leases, seen)

    monkeypatch.setattr(host.manager.store, "add", after_a_loss)
    looks = []
    look = host.manager.catalog.look
    monkeypatch.setattr(
        host.manager.catalog, "look", lambda *given: looks.append(1) or look(*given)
    )
    (entry,) = host.manager.plug(instance(1), selected, specs)
    assert entry["pci_id"] == GPU
    assert len(looks) == 2


def test_a_plan_for_what_is_on_vfio_pci_by_now_is_made_anew(host, monkeypatch):
    selected, specs = request(host.provider(DISK))
    look, steals = host.manager.catalog.look, iter((DISK,))

    def before_another(*given):
        inventory = look(*given)
        for address in steals:
            host.bind(address, "vfio-pci")
        return inventory

    monkeypatch.setattr(host.manager.catalog, "look", before_another)
    with raises(exception.ChangeReason.UNSETTLED, match="for another guest"):
        host.manager.plug(instance(1), selected, specs)
    assert host.manager.store.leases() == ()


def test_a_store_of_yesterday_gives_nothing_away(host):
    """The identity of the store is the same: only the helper detects the difference."""
    host.plug(1, GPU)
    host.unplug(1)
    file = Path(host.state_path, "os_acc.sqlite")
    yesterday = file.read_bytes()
    host.plug(2, GPU, attach_target="none")
    selected, specs = request(host.provider(GPU))
    file.write_bytes(yesterday)
    with pytest.raises(exception.NoDeviceAvailable, match="claimed by lease"):
        host.manager.plug(instance(3), selected, specs)
    assert host.rejected(GPU).reason is RejectReason.UNKNOWN_STATE
    assert pci_functions.driver(at(GPU)) == "nouveau"


def test_an_unplug_that_ends_meanwhile_leaves_no_trace(host, monkeypatch):
    host.plug(1, GPU)
    host.manager.catalog.reconciler.invalidate()
    recorded, unplugs = host.manager.life._helper.recorded, iter((1,))

    def before_an_unplug(deadline):
        found = recorded(deadline)
        for number in unplugs:
            host.unplug(number)
        return found

    monkeypatch.setattr(host.manager.life._helper, "recorded", before_an_unplug)
    assert host.provider(GPU)


# -- operations of the operator -----------------------------------------------------


@pytest.mark.parametrize(("address", "target"), [KINDS[0], KINDS[3]])
def test_it_is_released_by_the_helpers_record(host, address, target):
    before = host.kernel.snapshot()
    host.plug(1, address, attach_target=target)
    lose(host)
    release(host, address)
    assert host.kernel.snapshot() == before
    assert claims.claimed() == ()
    host.plug(2, address, attach_target=target)


def test_a_driver_other_than_on_record_is_refused(host):
    host.plug(1, GPU)
    lose(host)
    with pytest.raises(exception.InvalidInput, match="recorded nouveau"):
        release(host, GPU, "nvidia")
    release(host, GPU, "nouveau")


def test_what_was_bound_at_boot_goes_back_to_where_the_operator_says(host):
    before = host.kernel.snapshot()
    host.plug(1, FPGA)
    lose(host)
    with pytest.raises(exception.InvalidInput) as caught:
        release(host, FPGA)
    assert "--driver" in caught.value.hint
    release(host, FPGA, "vfio-pci")
    assert host.drivers(FPGA) == ["vfio-pci"]
    assert {each.driver for each in before} >= {"vfio-pci"}
    host.plug(2, FPGA)


@pytest.mark.parametrize(("address", "target"), [KINDS[0], KINDS[3]])
def test_it_is_adopted_with_the_helpers_record(host, address, target):
    before = host.kernel.snapshot()
    (plugged,) = host.plug(1, address, attach_target=target)
    lose(host)
    lease = adopt(host, address)
    (entry,) = host.manager.attached(instance(1))[uuid_of(1)]
    assert entry["device_rp_uuid"] == plugged["device_rp_uuid"]
    assert record.read(at(address)).lease == lease.uuid
    assert host.plugged(1) == [address]
    assert host.unplug(1) == 1
    assert host.kernel.snapshot() == before
    assert claims.claimed() == ()
    host.plug(2, address)


def test_a_release_beside_an_adoption_leaves_the_record_as_the_lease(host, monkeypatch):
    host.plug(1, GPU)
    lose(host)
    claim = Reconciler.claim
    adopted = threading.Event()
    pool = futures.ThreadPoolExecutor(1)
    released = []

    def beside(*args):
        found = claim(*args)
        if released:
            # The release has the record, if it did not wait for the adoption.
            adopted.wait(30)
        else:
            released.append(pool.submit(release, host, GPU))
            futures.wait(released, timeout=0.5)
        return found

    monkeypatch.setattr(Reconciler, "claim", beside)
    lease = adopt(host, GPU)
    adopted.set()
    with pytest.raises(exception.Conflict, match=f"is leased to {uuid_of(1)}"):
        released[0].result(30)
    assert record.read(at(GPU)).lease == lease.uuid
    assert host.unplug(1) == 1
    assert host.drivers(GPU) == ["nouveau"]


def test_a_guest_that_still_runs_keeps_what_the_store_has_lost(host):
    host.plug(1, GPU)
    host.kernel.hold(GPU)
    lose(host)
    with pytest.raises(exception.DeviceInUse, match="4711"):
        release(host, GPU)
    assert host.rejected(GPU).reason is RejectReason.UNKNOWN_STATE
    assert host.drivers(GPU, AUDIO) == ["vfio-pci", "vfio-pci"]
    host.kernel.let_go(GPU)
    release(host, GPU)
    assert host.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]


def test_what_was_pulled_out_is_released_as_well(host):
    host.plug(1, FPGA, attach_target="none")
    lose(host)
    spec = host.kernel.hot_unplug(FPGA)
    release(host, FPGA)
    assert claims.claimed() == ()
    host.kernel.hot_plug(spec)
    assert host.drivers(FPGA) == [None]
    host.plug(2, FPGA)


def test_what_the_configuration_names_no_more_can_be_released(host):
    host.plug(1, GPU)
    lose(host)
    host.restart(device_spec=[f'{{"address": "{DISK}"}}'])
    release(host, GPU)
    assert host.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]


def test_a_damaged_record_is_released_by_its_operator(host):
    host.plug(1, GPU, attach_target="host")
    lose(host)
    Path(host.root, "run/os_acc", f"{GPU}.lease").write_text("rubbish")
    assert host.rejected(GPU).reason is RejectReason.UNKNOWN_STATE
    for address in (GPU, AUDIO):
        release(host, address)
    host.plug(2, GPU)


def test_another_process_sees_what_was_released(host):
    host.plug(1, FPGA, attach_target="none")
    lose(host)
    assert host.rejected(FPGA)
    mine: Manager = host.manager
    other = host.restart()
    operator_actions.release_device(other, at(FPGA), None)
    host._manager = mine
    assert host.provider(FPGA)


# -- records without a loss -----------------------------------------------------------


def test_a_plug_and_an_unplug_leave_no_record(host):
    for address, target in KINDS:
        host.plug(1, address, attach_target=target)
        assert claims.claimed()
        host.unplug(1)
        assert claims.claimed() == ()


def test_a_plug_that_fails_leaves_no_record(host):
    host.kernel.fail(AUDIO, "unbind")
    with raises(exception.StepReason.REFUSED):
        host.plug(1, GPU)
    assert claims.claimed() == ()


def test_an_unplug_of_what_was_pulled_out_leaves_no_record(host):
    host.plug(1, GPU)
    for address in (GPU, AUDIO):
        host.kernel.hot_unplug(address)
    assert host.unplug(1) == 1
    assert claims.claimed() == ()


def test_a_lease_of_before_the_helper_kept_records_is_given_back(host):
    before = host.kernel.snapshot()
    host.plug(1, GPU)
    for address in (GPU, AUDIO):
        record.remove(at(address))
    host.restart()
    assert host.unplug(1) == 1
    assert host.kernel.snapshot() == before


def test_a_re_key_leaves_the_record_as_it_is(host):
    host.plug(1, GPU)
    before = claims.claimed()
    host.manager.rekey(uuid_of(1), uuid_of(2))
    assert claims.claimed() == before
    assert host.unplug(2) == 1
    assert claims.claimed() == ()


def test_no_lease_takes_what_the_helper_has_for_another(host):
    before, (selected, specs) = host.kernel.snapshot(), request(host.provider(GPU))
    claims.reserve(
        pci_functions.group(at(GPU)),
        ((at(GPU).parts, pci_functions.identity(at(GPU))),),
        1,
        30_000,
        uuid_of(9),
        "host",
        "",
    )
    with pytest.raises(exception.NoDeviceAvailable, match=uuid_of(9)):
        host.manager.plug(instance(1), selected, specs)
    assert host.kernel.snapshot() == before
    assert host.manager.store.leases() == ()
    assert host.rejected(GPU).reason is RejectReason.UNKNOWN_STATE
