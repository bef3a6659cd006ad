# SPDX-License-Identifier: Apache-2.0

"""The plugin of NVMe devices, from plug to erasure."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from os_acc import exception
from os_acc.cmd.checks import CheckContext, devices, helpers
from os_acc.helper.client import Helper
from os_acc.objects.device import Erasure, RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.objects.nvme_erasure import EraseMethod, choose
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, pci_functions, privileged_conf
from os_acc.privsep.nvme import disks, survey
from os_acc.privsep.nvme.disks import MARKS
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.device_specs import (
    BLOCK,
    CRYPTO,
    FORMATS,
    MANAGES,
    OVERWRITE,
    SEVERAL,
    VIRTUALIZES,
    NvmeSpec,
)
from tests.functional.host.operator_commands import release
from tests.functional.host.plugins.nvme_drive import DATA, DRIVE, advance, host_with

#: The VFs of a drive, which is another one.
PF, FIRST, SECOND = "0000:41:00.0", "0000:41:00.1", "0000:41:00.2"
ZEROES = bytes(1 << 16)
KEPT = json.dumps({"address": DRIVE, "allow_no_erase": True})
NOTHING = {"os_acc_nvme": {"erase_methods": []}}
TWO_VFS = [json.dumps({"address": PF, "num_vfs": 2})]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    with host_with(tmp_path, NvmeSpec()) as host:
        yield host


def host_with_vfs(directory: Path, *, fna: int = 0b100) -> TestHost:
    """Return a host whose VFs, without a driver, have the namespaces 2 and 3."""
    drive = dataclasses.replace(
        hosts.nvme_sriov("0000:41", 0),
        nvme=NvmeSpec(
            private=((2,), (3,)),
            oacs=FORMATS | MANAGES | VIRTUALIZES,
            cmic=SEVERAL,
            fna=fna,
        ),
    )
    return TestHost(directory, HostSpec((drive,)), device_spec=TWO_VFS)


def is_marked(host: TestHost, address: str = DRIVE) -> bool:
    return os.path.exists(host.kernel.path(MARKS, address))


def binding(host: TestHost, address: str) -> tuple[str | None, str | None]:
    state = host.kernel.state(address)
    return state.driver, state.driver_override


def erasing(host: TestHost) -> list[LeaseState]:
    return [each.state for each in host.manager.store.leases() if each.erasure]


def test_a_drive_is_erased_by_default(host):
    assert host.provider(DRIVE).device.plugin == "nvme"
    assert host.provider(DRIVE).device.erasure is Erasure.PLUGIN
    host.plug(1, DRIVE)
    host.kernel.write_medium(DRIVE, 1, DATA)
    host.unplug(1)
    assert erasing(host) == [LeaseState.ERASING]
    assert DATA in host.kernel.read_medium(DRIVE, 1)
    advance(host)
    assert erasing(host) == []
    assert DATA not in host.kernel.read_medium(DRIVE, 1)
    host.plug(2, DRIVE)


@pytest.mark.parametrize(
    ("sanicap", "fna", "method"),
    [
        (CRYPTO | BLOCK | OVERWRITE, 0b100, EraseMethod.SANITIZE_CRYPTO),
        (BLOCK | OVERWRITE, 0b100, EraseMethod.SANITIZE_BLOCK),
        (OVERWRITE, 0b100, EraseMethod.FORMAT_CRYPTO),
        (0, 0, EraseMethod.FORMAT),
    ],
)
def test_the_strongest_quick_method_is_the_default(tmp_path, sanicap, fna, method):
    with host_with(tmp_path, NvmeSpec(sanicap=sanicap, fna=fna)) as host:
        address = PciAddress.parse(DRIVE)
        queue = survey.wait_for_queue(address)
        methods = map(EraseMethod, host.manager.plugins.get("nvme").conf.erase_methods)
        assert choose(survey.survey(address, queue), methods).method is method


def test_deallocation_is_no_default(tmp_path):
    with host_with(tmp_path, NvmeSpec(oacs=0)) as host:
        with pytest.raises(exception.HostStepFailed, match="cannot be erased"):
            host.plug(1, DRIVE)
        host.groups["os_acc_nvme"] = {"erase_methods": ["deallocate"]}
        host.restart()
        host.plug(1, DRIVE)


@pytest.mark.parametrize(
    ("groups", "options"),
    [(NOTHING, {}), ({}, {"enabled_plugins": ["pci"]})],
    ids=["no methods", "no plugin"],
)
def test_a_drive_that_nothing_erases_is_offered_by_tag_alone(tmp_path, groups, options):
    with host_with(tmp_path, NvmeSpec(), groups=groups, **options) as host:
        assert host.rejected(DRIVE).reason is RejectReason.NO_ERASE
        context = CheckContext(host.config(), host.root, None)
        found = {each.what: each.hint for each in devices.others(context)}
        hint = found[f"not offered (cannot be erased between guests): {DRIVE}"]
        assert "erase_methods" in hint
        assert "allow_no_erase" in hint
        host.restart(device_spec=[KEPT])
        assert host.provider(DRIVE).device.plugin == "pci"
        assert host.provider(DRIVE).device.erasure is Erasure.NONE


def test_a_tagged_drive_keeps_its_data_and_its_provider(host):
    erased = host.provider(DRIVE)
    host.restart(device_spec=[KEPT])
    kept = host.provider(DRIVE)
    assert kept.device.plugin == "pci"
    assert (kept.name, kept.uuid) == (erased.name, erased.uuid)
    assert kept.device.resource_class == erased.device.resource_class
    host.plug(1, DRIVE)
    host.kernel.write_medium(DRIVE, 1, DATA)
    assert not is_marked(host)
    host.unplug(1)
    assert host.manager.store.leases() == ()
    assert DATA in host.kernel.read_medium(DRIVE, 1)


def test_vfs_of_one_drive_may_be_erased_or_not(tmp_path):
    """Each half has a provider of its own, whose name its plugins do not decide."""
    drive = hosts.nvme_sriov("0000:41", 0, private=((1,), (2,)))
    specs = [
        json.dumps({"address": FIRST, "allow_no_erase": True}),
        json.dumps({"address": PF, "num_vfs": 2}),
    ]

    def offered(host: TestHost) -> dict[str, tuple[str, str]]:
        return {
            str(handle.address): (each.device.plugin, str(each.device.address))
            for each in host.manager.providers()
            for handle in each.device.handles
        }

    with TestHost(tmp_path, HostSpec((drive,)), device_spec=specs) as host:
        assert offered(host) == {FIRST: ("pci", FIRST), SECOND: ("nvme", SECOND)}
        host.restart(enabled_plugins=["pci"])
        assert offered(host) == {FIRST: ("pci", FIRST)}
        assert host.rejected(SECOND).reason is RejectReason.NO_ERASE


def test_without_its_helper_nothing_is_plugged_and_an_erasure_waits(host, monkeypatch):
    error = exception.HelperUnavailable("sudo: a password is required")
    refused = mock.Mock(side_effect=error)
    with monkeypatch.context() as patch:
        patch.setattr(Helper, "run_step", refused)
        with pytest.raises(exception.HelperUnavailable) as raised:
            host.plug(1, DRIVE)
        assert "os-acc check" in raised.value.hint
        assert host.drivers(DRIVE) == ["nvme"]
        assert not is_marked(host)
    # The plugin's release needs the helper, too: the lease waits for it.
    (lease,) = host.manager.store.leases()
    assert lease.state is LeaseState.RELEASING
    host.unplug(1)
    assert host.manager.store.leases() == ()
    host.plug(1, DRIVE)
    host.unplug(1)
    with monkeypatch.context() as patch:
        patch.setattr(Helper, "run_step", refused)
        advance(host)
    assert erasing(host) == [LeaseState.ERASING]
    advance(host)
    assert erasing(host) == []


def test_the_check_starts_the_helper_where_drives_are_offered(host):
    def findings() -> list[str]:
        context = CheckContext(host.config(), host.root, None)
        return [each.what for each in helpers.nvme(context)]

    assert host.manager
    (what,) = findings()
    assert "--privsep_context os_acc.privsep.nvme.context" in what
    host.options["device_spec"] = [KEPT]
    host.restart()
    assert findings() == []


def test_a_vf_that_cannot_be_erased_is_never_plugged(tmp_path):
    with host_with_vfs(tmp_path, fna=0b110) as host:
        with pytest.raises(exception.HostStepFailed, match=r"all namespaces .* \(FNA"):
            host.plug(1, PF)
        assert binding(host, FIRST) == (None, None)
        assert not is_marked(host, FIRST)
        # Both stay offered: neither has data of a guest.
        assert host.manager.store.leases() == ()
        assert claims.claimed() == ()
        assert len(host.provider(PF).device.handles) == 2


def test_a_vf_is_checked_on_its_driver_and_gets_its_own_binding_back(tmp_path):
    with host_with_vfs(tmp_path) as host:
        host.kernel.write_medium(PF, 2, DATA)
        host.plug(1, PF)
        assert host.drivers(FIRST) == ["vfio-pci"]
        assert is_marked(host, FIRST)
        # A check erases nothing.
        assert host.kernel.read_medium(FIRST, 2).startswith(DATA)
        (lease,) = host.manager.store.leases()
        (taken,) = claims.claimed()
        rest = "", "", "nvme", "nvme", "node1", "QEMU0+1"
        assert taken == ((0, 0x41, 0, 1), lease.uuid, "guest", *rest)
        host.unplug(1)
        advance(host)
        assert binding(host, FIRST) == (None, None)
        assert DATA not in host.kernel.read_medium(FIRST, 2)


def test_the_mark_is_made_before_the_disk_appears(tmp_path, monkeypatch):
    with host_with_vfs(tmp_path) as host:
        rebind, looks = pci_functions.rebind, host.directory / "looks"

        def looked_at(address: PciAddress, name: str) -> None:
            with looks.open("a") as file:
                file.write(f"{name} {is_marked(host, str(address))}\n")
            rebind(address, name)

        monkeypatch.setattr(pci_functions, "rebind", looked_at)
        host.plug(1, PF)
        assert looks.read_text().splitlines() == ["nvme True", "vfio-pci True"]


@pytest.mark.parametrize(
    ("attribute", "nth", "after", "is_limited"),
    [
        ("driver_override", 1, False, False),
        ("drivers_probe", 1, False, False),
        ("drivers_probe", 1, True, True),
        ("identify", 1, True, False),
        ("identify", 4, False, True),
        ("unbind", 1, True, False),
        ("unbind", 1, True, True),
    ],
)
def test_a_check_that_is_killed_leaves_nothing(
    tmp_path, attribute, nth, after, is_limited
):
    with host_with_vfs(tmp_path) as host:
        if is_limited:
            limits = Path(host.root, *privileged_conf.PATH)
            limits.parent.mkdir(parents=True)
            limits.write_text(f"[os_acc]\ndevice_spec = {TWO_VFS[0]}\n")
        host.restart()
        host.kernel.write_medium(PF, 2, DATA)
        at = PF if attribute == "identify" and not after else FIRST
        host.kernel.kill(at, attribute, nth=nth, after=after)
        with pytest.raises(exception.OsAccError):
            host.plug(1, PF)
        assert host.manager.store.leases() == ()
        assert claims.claimed() == ()
        assert binding(host, FIRST) == (None, None)
        assert not is_marked(host, FIRST)
        # No guest had it: it is not erased.
        assert host.kernel.read_medium(FIRST, 2).startswith(DATA)
        host.plug(1, PF)


def test_a_plug_that_fails_early_leaves_no_mark(host):
    host.kernel.fail(DRIVE, "driver_override")
    with pytest.raises(exception.OsAccError):
        host.plug(1, DRIVE)
    assert host.drivers(DRIVE) == ["nvme"]
    assert not is_marked(host)


def test_missing_udev_rules_are_reported_where_drives_are_offered(host):
    def findings() -> list[str]:
        context = CheckContext(host.config(), host.root, None)
        return [each.what for each in devices.udev_rules(context)]

    assert host.manager
    assert findings() == [
        f"udev and LVM would scan the data of guests on {DRIVE}: 50-os-acc.rules is "
        "missing"
    ]
    rules = Path(host.root, "etc/udev/rules.d/50-os-acc.rules")
    rules.parent.mkdir(parents=True)
    rules.touch()
    assert findings() == []
    rules.unlink()
    host.options["device_spec"] = [KEPT]
    host.restart()
    assert findings() == []


def test_a_disk_that_the_host_uses_is_named(host):
    host.plug(1, DRIVE)
    host.kernel.write_medium(DRIVE, 1, DATA)
    host.unplug(1)
    mounts = Path(host.kernel.path("proc/self/mounts"))
    before = mounts.read_text()
    mounts.write_text(f"{before}/dev/nvme1n1 /srv ext4 rw 0 0\n")
    advance(host)
    (lease,) = [each for each in host.manager.store.leases() if each.erasure]
    assert lease.state is LeaseState.ERASING
    assert "nvme1n1 is mounted at /srv (release it" in lease.reason
    assert DATA in host.kernel.read_medium(DRIVE, 1)
    mounts.write_text(before)
    advance(host)
    assert erasing(host) == []


def test_the_disks_stay_claimed_while_the_drive_sanitizes_itself(tmp_path):
    with host_with(tmp_path, NvmeSpec(sanicap=BLOCK)) as host:
        host.plug(1, DRIVE)
        host.kernel.write_medium(DRIVE, 1, DATA)
        host.unplug(1)
        for part in (0.25, 0.5):
            advance(host)
            host.kernel.advance_sanitize(DRIVE, part)
            (disk,) = disks.wait_for_disks(PciAddress.parse(DRIVE), (1,)).values()
            with pytest.raises(OSError, match="busy"):
                host.kernel.open_disk(disk.node, disk.device)
        advance(host)
        (lease,) = host.manager.store.leases()
        assert lease.erased == 0.5
        host.kernel.advance_sanitize(DRIVE, 1.0)
        advance(host)
        assert erasing(host) == []
        assert DATA not in host.kernel.read_medium(DRIVE, 1)
        host.plug(2, DRIVE)


def test_a_drive_in_the_place_of_one_that_waits_for_its_erasure_is_quarantined(host):
    host.plug(1, DRIVE)
    host.kernel.write_medium(DRIVE, 1, DATA)
    host.unplug(1)
    old = host.kernel.hot_unplug(DRIVE)
    assert old.nvme is not None
    other = dataclasses.replace(old, nvme=dataclasses.replace(old.nvme, serial="B"))
    host.kernel.hot_plug(other)
    host.kernel.write_medium(DRIVE, 1, DATA)
    advance(host)
    (lease,) = host.manager.store.leases()
    assert lease.state is LeaseState.QUARANTINED
    assert "S64HNE0R500001) has left the host, and is not erased" in lease.reason
    assert host.kernel.read_medium(DRIVE, 1).startswith(DATA)
    with pytest.raises(exception.NoDeviceAvailable):
        host.plug(2, DRIVE)
    host.kernel.hot_unplug(DRIVE)
    host.kernel.hot_plug(old)
    release(host, DRIVE)
    advance(host)
    assert DATA not in host.kernel.read_medium(DRIVE, 1)
    host.plug(2, DRIVE)


@pytest.mark.parametrize(
    "left",
    [
        {"namespaces": (), "unvmcap": 1 << 40},
        {"namespaces": (), "unattached": (1,)},
    ],
    ids=["deleted", "detached"],
)
def test_a_drive_that_its_guest_has_left_without_a_disk_serves_no_other(tmp_path, left):
    spec = NvmeSpec(oacs=FORMATS | MANAGES, sanicap=CRYPTO)
    with host_with(tmp_path, spec) as host:
        host.plug(1, DRIVE)
        # The guest sends Namespace Management or Namespace Attachment.
        old = host.kernel.hot_unplug(DRIVE)
        now, (controller,) = dataclasses.replace(old.nvme, **left), old.devices
        bare = (dataclasses.replace(controller, children=()),)
        host.kernel.hot_plug(dataclasses.replace(old, nvme=now, devices=bare))
        host.bind(DRIVE, "vfio-pci")
        host.unplug(1)
        advance(host)
        host.kernel.advance_sanitize(DRIVE, 1.0)
        advance(host)
        (lease,) = host.manager.store.leases()
        assert lease.state is LeaseState.QUARANTINED
        assert "is erased, but has no" in lease.reason
        # The operator makes or attaches them again.
        left_over = host.kernel.hot_unplug(DRIVE)
        host.kernel.hot_plug(
            dataclasses.replace(left_over, nvme=old.nvme, devices=old.devices)
        )
        release(host, DRIVE)
        advance(host)
        host.plug(2, DRIVE)
