# SPDX-License-Identifier: Apache-2.0

"""``accel:attach_target`` gives a device to the guest, to the host, or to neither."""

import pytest

from os_acc import exception
from os_acc.helper.connection import Connection
from os_acc.privsep import claims
from os_acc.privsep.outcome import Outcome
from os_acc.testing import DriverSpec, drivers, instance, uuid_of
from os_acc.testing.tree import Tree
from tests.expected_errors import raises
from tests.unit.fpga import CARD, GZIP, held, upload

GPU = "0000:17:00.0"


def test_the_guest_is_the_default(bench):
    (by_default,) = bench.plug(1, GPU)
    bench.unplug(1)
    (asked_for,) = bench.plug(1, GPU, attach_target="VM")
    differing = {"uuid", "attach_handle_uuid", "created_at"}
    assert {k: v for k, v in asked_for.items() if k not in differing} == {
        k: v for k, v in by_default.items() if k not in differing
    }


@pytest.mark.parametrize(("target", "kind"), [("host", "HOST"), ("none", "NONE")])
def test_what_is_not_the_guests_stays_where_it_is(bench, target, kind):
    before = bench.kernel.snapshot()
    (entry,) = bench.plug(1, GPU, attach_target=target)
    assert "pci_id" not in entry
    assert (entry["attach_handle_type"], entry["state"]) == (kind, "Bound")
    assert bench.kernel.snapshot() == before
    assert bench.plugged(1) == [GPU]
    with pytest.raises(exception.NoDeviceAvailable):
        bench.plug(2, GPU)
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


@pytest.mark.parametrize("target", ["host", "none"])
def test_a_helper_that_continues_after_the_rollback_records_nothing(
    bench, monkeypatch, target
):
    ask, late = Connection.ask, []

    def stops(connection, entrypoint, milliseconds, request=None):
        if entrypoint is claims.reserve and not late:
            late.append(request)
            raise exception.HelperLost("it does not answer")
        return ask(connection, entrypoint, milliseconds, request)

    monkeypatch.setattr(Connection, "ask", stops)
    with pytest.raises(exception.HelperLost):
        bench.plug(1, GPU, attach_target=target)
    assert bench.plugged(1) == []
    answers = claims.reserve(*late[0].values())
    assert {each[0] for each in answers} == {Outcome.STALE}
    bench.restart()
    bench.plug(2, GPU)


def test_another_target_is_another_request(bench):
    bench.plug(1, GPU, attach_target="host")
    with raises(exception.ConflictReason.CONSUMER):
        bench.plug(1, GPU, attach_target="VM")


def test_the_host_cannot_use_what_has_no_driver(bench):
    bench.bind(GPU, "")
    with raises(exception.StepReason.REFUSED, match="no driver"):
        bench.plug(1, GPU, attach_target="host")
    assert bench.plugged(1) == []
    (entry,) = bench.plug(1, GPU, attach_target="none")
    assert entry["attach_handle_type"] == "NONE"


@pytest.mark.parametrize("target", ["host", "none"])
def test_the_host_may_do_with_it_what_it_likes(bench, target):
    first = bench.plug(1, GPU, attach_target=target)
    bench.bind(GPU, "")
    assert bench.plug(1, GPU, attach_target=target) == first
    before = bench.kernel.snapshot()
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


@pytest.mark.parametrize("target", ["host", "none"])
def test_a_reboot_changes_nothing_of_it(bench, target):
    first = bench.plug(1, GPU, attach_target=target)
    bench.kernel.reboot()
    bench.restart()
    before = bench.kernel.snapshot()
    assert bench.manager.plug(instance(1), None, None) == first
    assert bench.kernel.snapshot() == before
    assert bench.unplug(1) == 1


@pytest.mark.parametrize("target", ["host", "none"])
def test_a_region_for_the_host_is_programmed_also_after_a_reboot(fpgas, target):
    upload(fpgas)
    first = fpgas.plug(1, function_id=GZIP, attach_target=target)
    assert held(fpgas) == GZIP
    assert fpgas.drivers(CARD) == ["dfl-pci"]
    (lease,) = fpgas.manager.store.leases(uuid_of(1))
    assert lease.programming.function_id == GZIP
    fpgas.kernel.reboot()
    assert held(fpgas) != GZIP
    fpgas.restart()
    assert fpgas.manager.plug(instance(1), None, None) == first
    assert held(fpgas) == GZIP
    assert fpgas.drivers(CARD) == ["dfl-pci"]


def test_a_card_that_the_host_has_moved_is_not_moved_back(fpgas):
    upload(fpgas)
    fpgas.plug(1, function_id=GZIP, attach_target="host")
    fpgas.kernel.reboot()
    fpgas.restart()
    fpgas.kernel.fail_programming(CARD, "reconfig CRC error")
    with raises(exception.ProgrammingReason.CRC):
        fpgas.manager.plug(instance(1), None, None)
    with Tree(fpgas.root).transaction() as tree:
        drivers.register(tree, DriverSpec("pci-stub"))
    fpgas.bind(CARD, "pci-stub")
    before = fpgas.kernel.snapshot()
    with pytest.raises(exception.DeviceGone, match="is without its driver"):
        fpgas.manager.plug(instance(1), None, None)
    assert fpgas.kernel.snapshot() == before
    assert fpgas.unplug(1) == 1
    assert fpgas.kernel.snapshot() == before


def test_an_attach_target_needs_an_accelerator(bench):
    with pytest.raises(exception.InvalidExtraSpec, match="attach_target"):
        bench.manager.plug(instance(1), None, {"accel:attach_target": "host"})


def test_one_group_has_one_target(bench):
    specs = {
        "resources1:CUSTOM_ACCELERATOR_GPU": "1",
        "accel1:attach_target": "host",
        "os_acc1:attach_target": "none",
    }
    with pytest.raises(exception.InvalidExtraSpec, match="contradicts another key"):
        bench.manager.plug(instance(1), None, specs)
