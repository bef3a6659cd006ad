# SPDX-License-Identifier: Apache-2.0

"""VFs are created at start; a PF that fails to create them stops no other one."""

from __future__ import annotations

import errno
import os
import shutil

import pytest
from oslo_config import cfg

from os_acc.privsep import kernel as privsep_kernel
from os_acc.testing import FakeKernel, HostSpec, hosts

NIC, QAT = "0000:3b:00.0", "0000:d8:00.0"


def spec(address: str, count: int) -> str:
    return f'{{"address": "{address[:-4]}*.*", "num_vfs": {count}}}'


def test_as_many_vfs_are_made_as_the_operator_says(make_bench):
    bench = make_bench(device_spec=[spec(NIC, 4)])
    bench.restart()
    assert bench.kernel.state(NIC).numvfs == 4
    assert len(bench.provider(NIC).device.handles) == 4
    writes = bench.kernel.writes()
    bench.restart()
    assert bench.kernel.writes() == writes


def test_the_host_does_not_take_them_but_its_own_way_of_probing_stays(make_bench):
    bench = make_bench(device_spec=[spec(NIC, 2)])
    bench.restart()
    assert bench.drivers("0000:3b:02.0", "0000:3b:02.1") == [None, None]
    assert bench.kernel.state(NIC).autoprobe is True


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


def test_more_than_the_card_has_are_not_made(make_bench, caplog):
    bench = make_bench(device_spec=[spec(NIC, 9)])
    before = bench.kernel.snapshot()
    bench.restart()
    assert "ERANGE" in caplog.text
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
    bench.restart(write_timeout=0.5)
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
            if path.endswith(f"{NIC}/device"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return super().read(path)

    monkeypatch.setattr(privsep_kernel, "current", Unreadable(bench.root))
    bench.restart()
    assert f"{NIC}: device: EIO" in caplog.text
    assert bench.kernel.writes() == []


def test_vfs_are_made_only_where_they_are_asked_for(bench):
    bench.restart()
    assert bench.kernel.writes() == []


def test_a_function_that_can_have_none_is_left_alone(make_bench):
    bench = make_bench(device_spec=[spec("0000:5e:00.0", 4)])
    bench.restart()
    assert bench.kernel.writes() == []
    assert bench.provider("0000:5e:00.0")


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
