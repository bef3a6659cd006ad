# SPDX-License-Identifier: Apache-2.0

"""A drive whose VF has the data of a guest, and whose VFs are gone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.helper.errors import DeviceClaimed
from os_acc.objects.device import RejectReason
from os_acc.privsep import claims
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.device_specs import CRYPTO
from tests.functional.host.operator_commands import release
from tests.functional.host.plugins.nvme_drive import DATA, advance
from tests.unit.store.store_files import execute, file_in

PF, VF, OTHER_VF = "0000:65:00.0", "0000:65:00.1", "0000:65:00.2"
MOVED, MOVED_VF = "0000:66:00.0", "0000:66:00.1"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    """Return a host with a guest that has a VF, and data in its namespace 2."""
    pf = hosts.nvme_sriov("0000:65", 1, private=((2,), (3,), (), ()))
    pf = dataclasses.replace(pf, nvme=dataclasses.replace(pf.nvme, sanicap=CRYPTO))
    spec = [json.dumps({"address": "*:*:*.*"})]
    with TestHost(tmp_path, HostSpec((pf,)), device_spec=spec) as host:
        set_vfs(host, 4)
        host.plug(1, VF)
        host.kernel.write_medium(VF, 2, DATA)
        yield host


def set_vfs(host: TestHost, count: int, pf: str = PF) -> None:
    path = host.kernel.path(f"sys/bus/pci/devices/{pf}/sriov_numvfs")
    host.kernel.write(path, str(count))


def lose_store(host: TestHost) -> None:
    for file in Path(host.state_path).glob("os_acc.sqlite*"):
        file.unlink()


def moved_by_a_reboot(host: TestHost) -> str:
    host.kernel.reboot({PF: MOVED})
    return MOVED


def released_and_moved_by_a_reboot(host: TestHost) -> str:
    host.unplug(1)
    return moved_by_a_reboot(host)


def store_lost(host: TestHost) -> str:
    lose_store(host)
    set_vfs(host, 0)
    return PF


def store_lost_and_reboot(host: TestHost) -> str:
    lose_store(host)
    host.kernel.reboot()
    return PF


def store_lost_and_moved(host: TestHost) -> str:
    lose_store(host)
    return moved_by_a_reboot(host)


def lease_damaged_and_reboot(host: TestHost) -> str:
    execute(file_in(host.state_path), "UPDATE leases SET digest = 'none'")
    host.kernel.reboot()
    return PF


def lease_of_another_node(host: TestHost) -> str:
    host.options["node_name"] = "node2"
    host.options["state_path"] = str(host.directory / "node2")
    host.kernel.reboot()
    return PF


LEASED = (moved_by_a_reboot, released_and_moved_by_a_reboot)
LOST = (
    *(store_lost, store_lost_and_reboot, store_lost_and_moved),
    *(lease_damaged_and_reboot, lease_of_another_node),
)


def check_kept(host: TestHost, pf: str) -> None:
    """Check that no guest gets the drive, by the service and by the helper."""
    with pytest.raises((exception.NoDeviceAvailable, LookupError)):
        host.plug(2, pf)
    assert host.drivers(pf) == ["nvme"]


@pytest.mark.parametrize("way", LEASED)
def test_a_moved_drive_is_kept_for_the_lease_of_its_vf(host, way, caplog):
    pf = way(host)
    host.restart()
    rejected = host.rejected(pf)
    assert (rejected.reason, rejected.detail) == (RejectReason.VFS_LEASED, VF)
    check_kept(host, pf)
    assert "lost" not in caplog.text


@pytest.mark.parametrize("way", LOST)
def test_a_drive_is_kept_after_the_loss_of_the_lease_of_its_vf(host, way):
    pf = way(host)
    host.restart()
    assert host.rejected(pf).reason is RejectReason.UNKNOWN_STATE
    check_kept(host, pf)


def check_erased(host: TestHost, pf: str) -> None:
    """Check that the data is erased, and that a guest can have the drive."""
    for _ in range(3):
        advance(host)
        host.kernel.advance_sanitize(pf, 1.0)
    assert not host.manager.store.leases()
    assert not claims.claimed()
    set_vfs(host, 0, pf)
    host.restart()
    host.plug(2, pf)
    assert DATA not in host.kernel.read_medium(pf, 2)


def test_an_erasure_goes_on_once_the_vfs_are_there_again(host):
    pf = released_and_moved_by_a_reboot(host)
    host.restart()
    set_vfs(host, 4, pf)
    check_erased(host, pf)


@pytest.mark.parametrize("way", [store_lost, store_lost_and_moved])
def test_a_vf_of_a_lost_lease_can_be_released_once_it_is_there_again(host, way):
    pf = way(host)
    set_vfs(host, 4, pf)
    host.restart()
    release(host, MOVED_VF if pf == MOVED else VF)
    check_erased(host, pf)


@pytest.mark.parametrize("way", [store_lost, store_lost_and_moved])
def test_the_release_of_the_drive_erases_its_vf_of_a_lost_lease(host, way):
    pf = way(host)
    host.restart()
    release(host, pf)
    check_erased(host, pf)


def test_the_release_of_a_drive_with_two_leases_changes_nothing(host):
    host.plug(3, OTHER_VF)
    pf = store_lost(host)
    host.restart()
    with pytest.raises(DeviceClaimed):
        release(host, pf)
    assert not host.manager.store.leases()
    check_kept(host, pf)


@pytest.mark.parametrize("is_lost", [False, True], ids=["held", "lost"])
def test_a_service_makes_the_vfs_again_that_a_reboot_has_removed(tmp_path, is_lost):
    pf = hosts.nvme_sriov("0000:65", 1, private=((2,), (3,), (), ()))
    spec = [json.dumps({"address": "*:*:*.*", "num_vfs": 4})]
    with TestHost(tmp_path, HostSpec((pf,)), device_spec=spec) as host:
        host.plug(1, VF)
        host.kernel.write_medium(VF, 2, DATA)
        if is_lost:
            lose_store(host)
        host.kernel.reboot()
        host.restart()
        assert host.kernel.state(PF).numvfs == 4
        if is_lost:
            release(host, VF)
        else:
            host.unplug(1)
        advance(host)
        assert DATA not in host.kernel.read_medium(VF, 2)
        assert claims.claimed() == ()


def test_a_drive_that_cannot_be_erased_leaves_the_record_of_its_vf(tmp_path):
    pf = hosts.nvme_sriov("0000:65", 1, private=((2,), (3,), (), ()))
    spec = [json.dumps({"address": "*:*:*.*"})]
    with TestHost(tmp_path, HostSpec((pf,)), device_spec=spec) as host:
        set_vfs(host, 4)
        host.plug(1, VF)
        host.kernel.write_medium(VF, 2, DATA)
        store_lost_and_reboot(host)
        host.restart()
        release(host, PF)
        advance(host)
        (quarantined,) = host.manager.store.leases()
        assert "only Sanitize reaches it" in quarantined.reason
        set_vfs(host, 4)
        release(host, PF, force=True)
        host.restart()
        release(host, VF)
        advance(host)
        assert DATA not in host.kernel.read_medium(VF, 2)


def test_the_record_of_a_vf_ends_with_the_drive_if_its_address_is_anothers(tmp_path):
    pf = hosts.nvme_sriov("0000:65", 1, private=((2,), (3,), (), ()))
    pf = dataclasses.replace(pf, nvme=dataclasses.replace(pf.nvme, sanicap=CRYPTO))
    spec = [json.dumps({"address": "*:*:*.*"})]
    both = HostSpec((pf, hosts.nvme_disk("0000:41", 1)))
    with TestHost(tmp_path, both, device_spec=spec) as host:
        set_vfs(host, 4)
        host.plug(1, VF)
        host.kernel.write_medium(VF, 2, DATA)
        lose_store(host)
        host.kernel.reboot({PF: MOVED, "0000:41:00.0": VF})
        host.restart()
        release(host, MOVED)
        check_erased(host, MOVED)
