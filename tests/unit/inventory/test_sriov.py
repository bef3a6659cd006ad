# SPDX-License-Identifier: Apache-2.0

"""VFs are created at start; a PF that fails to create them stops no other one."""

import errno
import os
import shutil

import pytest
from oslo_config import cfg

from os_acc.cmd.checks import CheckContext, devices
from os_acc.inventory import sriov
from os_acc.objects.device import RejectReason
from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel as privsep_kernel
from os_acc.privsep import pci_functions
from os_acc.privsep.fpga import set_ports
from os_acc.privsep.outcome import Outcome
from os_acc.privsep.qat import set_qat_services
from os_acc.privsep.sriov import set_num_vfs
from os_acc.testing import FakeKernel, HostSpec, hosts
from os_acc.testing.specs import DriverSpec

NIC, QAT = "0000:3b:00.0", "0000:d8:00.0"


def spec(address: str, count: int) -> str:
    return f'{{"address": "{address[:-4]}*.*", "num_vfs": {count}}}'


def test_the_requested_vfs_are_made_and_the_host_does_not_take_them(make_bench):
    bench = make_bench(device_spec=[spec(NIC, 4)])
    bench.restart()
    state = bench.kernel.state(NIC)
    assert (state.numvfs, state.autoprobe) == (4, True)
    assert bench.drivers("0000:3b:02.0", "0000:3b:02.1") == [None, None]
    assert len(bench.provider(NIC).device.handles) == 4
    writes = bench.kernel.writes()
    bench.restart()
    assert bench.kernel.writes() == writes


def test_a_number_that_a_driver_of_all_or_none_would_ignore_is_rejected(
    make_bench, caplog
):
    bench = make_bench(device_spec=[spec(QAT, 4)])
    before = bench.kernel.snapshot()
    bench.restart()
    assert f"cannot create VFs of {QAT}:" in caplog.text
    assert "creates all 16 VFs at once, not 4" in caplog.text
    assert "set num_vfs to 16" in caplog.text
    assert bench.kernel.snapshot() == before


def test_all_vfs_of_such_a_driver_are_no_surprise(make_bench, caplog):
    bench = make_bench(device_spec=[spec(QAT, 16)])
    (entry,) = bench.plug(1, QAT)
    assert "cannot create VFs" not in caplog.text
    assert bench.drivers(entry["pci_id"]) == ["vfio-pci"]
    bench.unplug(1)
    assert bench.drivers(entry["pci_id"]) == [None]


def test_vfs_that_are_there_are_never_taken_from_guests(make_bench, caplog):
    host = HostSpec((hosts.nic("0000:3b", name="eno1", boot_vfs=3),))
    bench = make_bench(host, device_spec=[spec(NIC, 4)])
    bench.restart()
    assert "has 3 VFs, not 4" in caplog.text
    assert bench.kernel.writes() == []
    assert len(bench.provider(NIC).device.handles) == 3
    ((what, hint),) = checked(bench)
    assert what.endswith("without the VFs that device_spec requests: 3 of 4")
    assert "remove all VFs" in hint


def test_more_than_the_card_has_are_not_made(make_bench, caplog):
    bench = make_bench(device_spec=[spec(NIC, 9)])
    before = bench.kernel.snapshot()
    bench.restart()
    assert "it can have 8 VFs, not 9" in caplog.text
    assert bench.kernel.snapshot() == before


@pytest.mark.parametrize("error", [errno.EIO, errno.EBUSY, errno.ENOMEM])
def test_a_pf_that_refuses_stops_no_other(make_bench, caplog, error):
    bench = make_bench(device_spec=[spec(NIC, 4), spec(QAT, 16)])
    before = bench.kernel.snapshot()[0]
    bench.kernel.fail(NIC, "sriov_numvfs", error)
    bench.restart()
    assert f"cannot create VFs of {NIC}:" in caplog.text
    assert errno.errorcode[error] in caplog.text
    assert bench.kernel.state(NIC).numvfs == 0
    assert bench.kernel.state(NIC).autoprobe is True
    assert bench.kernel.state(QAT).numvfs == 16
    assert before
    bench.restart()
    assert bench.kernel.state(NIC).numvfs == 4


def test_a_pf_that_hangs_stops_no_other(make_bench, caplog):
    bench = make_bench(device_spec=[spec(NIC, 4), spec(QAT, 16)])
    bench.kernel.hang(NIC, "sriov_numvfs")
    bench.restart(write_timeout=2)
    assert "has not returned from a write" in caplog.text
    assert len(bench.provider(QAT).device.handles) == 16
    bench.let_go()
    bench.restart()
    assert bench.kernel.state(NIC).numvfs == 4
    assert bench.kernel.state(NIC).autoprobe is True


def test_a_write_without_effect_is_found(make_bench, caplog):
    bench = make_bench(device_spec=[spec(NIC, 4)])
    bench.kernel.ignore(NIC, "sriov_numvfs")
    bench.restart()
    assert "found 0" in caplog.text


@pytest.mark.parametrize(("nth", "made"), [(1, 0), (2, 4)])
def test_an_autoprobe_without_effect_is_found_and_put_right(
    make_bench, caplog, nth, made
):
    bench = make_bench(device_spec=[spec(NIC, 4)])
    bench.kernel.ignore(NIC, "sriov_drivers_autoprobe", nth=nth)
    bench.restart()
    assert "sriov_drivers_autoprobe: no-effect" in caplog.text
    assert bench.kernel.state(NIC).numvfs == made
    bench.restart()
    state = bench.kernel.state(NIC)
    assert (state.numvfs, state.autoprobe) == (4, True)
    assert bench.drivers("0000:3b:02.0") == [None]


def test_a_card_whose_identity_cannot_be_read_is_named(make_bench, caplog, monkeypatch):
    bench = make_bench(device_spec=[spec(NIC, 4)])

    class Unreadable(FakeKernel):
        def read(self, path: str) -> str:
            if path.endswith(f"{NIC}/modalias"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return super().read(path)

    monkeypatch.setattr(privsep_kernel, "current", Unreadable(bench.root))
    bench.restart()
    assert f"{NIC}: modalias: EIO" in caplog.text
    assert bench.kernel.writes() == []


def test_vfs_are_made_only_where_they_are_requested_and_possible(make_bench):
    bench = make_bench(device_spec=[spec("0000:5e:00.0", 4), '{"address": "*"}'])
    bench.restart()
    assert bench.kernel.writes() == []
    # Its entry asks for its VFs, not for the card.
    assert bench.rejected("0000:5e:00.0").reason is RejectReason.NO_VFS


def claim_as_a_pci_device(config):
    config.register_opts([cfg.MultiStrOpt("device_spec", default=[])], group="pci")
    config.set_override("device_spec", [f'{{"address": "{NIC}"}}'], group="pci")


def claim_as_an_mdev_parent(config):
    config.register_opts([cfg.ListOpt("enabled_mdev_types")], group="devices")
    config.set_override("enabled_mdev_types", ["ice-1"], group="devices")
    config.register_opts([cfg.ListOpt("device_addresses")], group="mdev_ice-1")
    config.set_override("device_addresses", [NIC], group="mdev_ice-1")


@pytest.mark.parametrize("claim", [claim_as_a_pci_device, claim_as_an_mdev_parent])
def test_a_pf_that_nova_claims_gets_none(make_bench, caplog, claim):
    bench = make_bench(device_spec=[spec(NIC, 4)])
    config = bench.config()
    claim(config)
    bench.start(config)
    assert bench.kernel.state(NIC).numvfs == 0
    assert f"cannot create VFs of {NIC}: Nova claims it" in caplog.text


def test_vfs_are_made_where_a_lost_store_had_counted_further(
    make_bench, let_a_device_see
):
    bench = make_bench(device_spec=[spec(NIC, 4)])
    let_a_device_see(NIC, bench.manager.store.next_epoch() + 10**12)
    bench.kernel.write(
        bench.kernel.path(f"sys/bus/pci/devices/{NIC}/sriov_numvfs"), "0"
    )
    shutil.rmtree(bench.state_path)
    bench.restart()
    assert bench.kernel.state(NIC).numvfs == 4


def bound(bench, driver, verb="bind"):
    path = bench.kernel.path(f"sys/bus/pci/drivers/{driver}/{verb}")
    bench.kernel.write(path, NIC)


def checked(bench):
    context = CheckContext(bench.config(), bench.root, None)
    return [(each.what, each.hint) for each in devices.vfs(context)]


@pytest.mark.parametrize("target", ["host", "none", "VM"])
def test_no_vfs_are_made_of_a_pf_that_is_leased_while_they_are_planned(
    make_bench, monkeypatch, caplog, target
):
    bench = make_bench(device_spec=[f'{{"address": "{NIC}"}}'])
    plan, first = sriov.plan, iter([bench.plug])

    def planned(*args):
        found = plan(*args)
        for plug in first:
            plug(1, NIC, attach_target=target)
        return found

    bench.restart()
    monkeypatch.setattr(sriov, "plan", planned)
    bench.start(device_spec=[spec(NIC, 4)])
    assert bench.plugged(1) == [NIC]
    assert bench.kernel.state(NIC).numvfs == 0
    assert f"cannot create VFs of {NIC}: it is leased as a whole" in caplog.text


@pytest.mark.parametrize(
    ("card", "change", "count"),
    [
        (hosts.nic("0000:6b", name="eno1"), set_num_vfs, 4),
        (hosts.qat_gen4("0000:6b"), set_qat_services, 3),
        (hosts.dfl("0000:6b", vfs=1), set_ports, 1),
    ],
)
def test_the_helper_changes_no_pf_that_it_has_recorded_for_a_lease(
    make_bench, card, change, count
):
    bench = make_bench(HostSpec((card,)), device_spec=['{"address": "0000:6b:*.*"}'])
    pf = PciAddress.parse(card.address)
    bench.plug(1, card.address, attach_target="host")
    before = bench.kernel.writes()
    (lease,) = bench.manager.store.leases()
    identity = pci_functions.identity(pf)
    epoch = bench.manager.store.next_epoch()
    answer = change(pf.parts, identity, count, epoch, 1000)
    assert answer == (Outcome.CLAIMED, errno.EBUSY, card.address, lease.uuid)
    assert bench.kernel.writes() == before


def test_vfs_are_made_once_the_driver_of_the_pf_has_arrived(make_bench, caplog):
    bench = make_bench(device_spec=[spec(NIC, 4)])
    bound(bench, "ice", "unbind")
    bench.restart()
    assert f"cannot create VFs of {NIC}: no driver is bound to it" in caplog.text
    assert bench.rejected(NIC).reason is RejectReason.NO_VFS
    ((what, hint),) = checked(bench)
    assert what == (
        f"{NIC}: without the VFs that device_spec requests: 0 of 4; no driver is bound "
        "to it"
    )
    assert "driver" in hint
    writes = bench.kernel.writes()
    bench.manager.watch()
    assert bench.kernel.writes() == writes
    assert caplog.text.count("cannot create VFs") == 1

    bound(bench, "ice")
    bench.manager.watch()
    assert bench.kernel.state(NIC).numvfs == 4
    assert len(bench.manager.catalog.snapshots.offered()[0]) == 1
    assert bench.rejected(NIC).reason is RejectReason.HAS_VFS
    assert checked(bench) == [("each PF has the VFs that num_vfs requests", "")]
    writes = bench.kernel.writes()
    bench.manager.watch()
    assert bench.kernel.writes() == writes


def test_a_driver_without_vfs_is_asked_once_and_the_next_one_again(make_bench, caplog):
    other = DriverSpec("other", ((0x8086, 0x1592),))
    host = HostSpec((hosts.nic("0000:3b", name="eno1"),), drivers=(other,))
    bench = make_bench(host, device_spec=[spec(NIC, 4)])
    assert bench.drivers(NIC) == ["other"]
    bench.restart()
    assert f"{NIC}: its driver other cannot create VFs" in caplog.text
    assert "ENOENT" not in caplog.text
    asked = bench.kernel.writes()
    bench.manager.watch()
    assert bench.kernel.writes() == asked
    bound(bench, "other", "unbind")
    bound(bench, "ice")
    bench.manager.watch()
    assert bench.kernel.state(NIC).numvfs == 4


def test_a_refusal_is_tried_again_after_a_while_and_logged_once(
    make_bench, caplog, monkeypatch
):
    bench = make_bench(device_spec=[spec(NIC, 4)])
    bench.kernel.fail(NIC, "sriov_numvfs", errno.EIO, times=2)
    bench.restart()
    asked = bench.kernel.writes()
    bench.manager.watch()
    assert bench.kernel.writes() == asked
    monkeypatch.setattr(sriov, "PAUSE", 0.0)
    bench.manager.watch()
    assert bench.kernel.writes() != asked
    assert caplog.text.count("cannot create VFs") == 1
    bench.manager.watch()
    assert bench.kernel.state(NIC).numvfs == 4


def test_vfs_that_an_operator_removes_stay_away_until_a_start(make_bench):
    bench = make_bench(device_spec=[spec(NIC, 4)])
    bench.restart()
    path = bench.kernel.path(f"sys/bus/pci/devices/{NIC}/sriov_numvfs")
    bench.kernel.write(path, "0")
    bench.manager.watch()
    bench.manager.watch()
    assert bench.kernel.state(NIC).numvfs == 0
    # Another binding of the PF is no removal.
    bound(bench, "ice", "unbind")
    bench.manager.watch()
    bound(bench, "ice")
    bench.manager.watch()
    assert bench.kernel.state(NIC).numvfs == 4


def test_a_card_that_is_put_in_again_gets_its_vfs(make_bench):
    bench = make_bench(device_spec=[spec(NIC, 4)])
    bench.restart()
    card = bench.kernel.hot_unplug(NIC)
    bench.manager.watch()
    bench.kernel.hot_plug(card)
    bench.manager.watch()
    assert bench.kernel.state(NIC).numvfs == 4
