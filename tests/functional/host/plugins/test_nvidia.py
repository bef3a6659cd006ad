# SPDX-License-Identifier: Apache-2.0

"""vGPUs of NVIDIA's driver on virtual functions, without mediated devices."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from os_acc import exception, service
from os_acc.objects.device import Provider, RejectReason
from os_acc.objects.lease import LeaseState, Owner
from os_acc.objects.pci import PciAddress
from os_acc.plugins.nvidia import NvidiaPlugin
from os_acc.privsep import StepTarget, vgpu
from os_acc.testing import HostSpec, TestHost, hosts, instance
from os_acc.testing.nvidia import CURRENT
from tests.expected_errors import raises
from tests.unit.plugins.vgpus import (
    BUS,
    HALF,
    PF,
    VFS,
    WHOLE,
    set_type,
    tagged,
    type_of,
)
from tests.unit.plugins.vgpus import host as host

#: Far longer than a slow machine needs, in seconds.
LONG = 120.0


def providers(host: TestHost) -> list[Provider]:
    return list(host.manager.discover().providers.values())


def faults(host: TestHost) -> dict[str, bool]:
    (provider,) = providers(host)
    return {str(each.address): bool(each.fault) for each in provider.device.handles}


def written(host: TestHost, since: int = 0) -> list[str]:
    return [
        f"{each.path.rpartition('/')[2]}={each.text.strip()}"
        for each in host.kernel.writes(since)
    ]


def test_a_plug_creates_the_vgpu_and_an_unplug_deletes_it(host):
    before = host.kernel.snapshot()
    (entry,) = host.plug(1, VFS[0])
    assert entry["pci_id"] == VFS[0]
    assert entry["vfio_driver"] == "nvidia"
    assert type_of(host, VFS[0]) == HALF
    assert host.drivers(VFS[0]) == ["nvidia"]
    place = Path(host.root, "run/os_acc")
    assert [each.name for each in place.glob("*.vgpu*")] == [f"{VFS[0]}.vgpu"]
    host.unplug(1)
    assert type_of(host, VFS[0]) == 0
    assert not list(place.glob("*.vgpu*"))
    assert host.kernel.snapshot() == before
    # Neither driver nor override nor reset: the VF stays where it is.
    assert written(host) == [f"current_vgpu_type={HALF}", "current_vgpu_type=0"]


def test_one_provider_for_each_type_of_a_card(host):
    host.restart(device_spec=[*tagged(*VFS[:3]), *tagged(VFS[3], kind=WHOLE)])
    found = {
        str(each.device.address): [str(one.address) for one in each.device.handles]
        for each in providers(host)
    }
    assert found == {VFS[0]: list(VFS[:3]), VFS[3]: [VFS[3]]}
    (half, whole) = providers(host)
    assert half.device.resource_class == "CUSTOM_ACCELERATOR_VGPU"
    assert f"CUSTOM_VGPU_NVIDIA_{HALF}" in half.device.traits
    assert f"CUSTOM_VGPU_NVIDIA_{WHOLE}" in whole.device.traits


def test_units_without_capacity_are_reserved_and_not_missing(host):
    assert faults(host) == dict.fromkeys(VFS, False)
    host.plug(1, VFS[0])
    host.plug(2, VFS[0])
    assert list(faults(host).values()) == [False, False, True, True]
    host.unplug(1)
    assert sum(faults(host).values()) == 0
    with pytest.raises(exception.NoDeviceAvailable):
        [host.plug(number, VFS[0]) for number in (3, 4)]


def test_plugs_at_once_get_what_the_card_has_capacity_for(host):
    """All four have leases of VFs while there is capacity for two."""
    before = host.kernel.snapshot()
    host.manager  # noqa: B018 - starts the service
    leased = threading.Barrier(4)
    prepare = NvidiaPlugin.prepare

    def together(*arguments: Any) -> None:
        leased.wait(LONG)
        prepare(*arguments)

    with (
        pytest.MonkeyPatch.context() as patch,
        futures.ThreadPoolExecutor(4) as threads,
    ):
        patch.setattr(NvidiaPlugin, "prepare", together)
        plugs = [threads.submit(host.plug, each, VFS[0]) for each in (1, 2, 3, 4)]
        errors = [each.exception(LONG) for each in plugs]
    refused = [each for each in errors if each is not None]
    assert len(refused) == 2
    for error in refused:
        assert isinstance(error, exception.HostStepFailed)
        assert error.reason is exception.StepReason.NO_CAPACITY
        assert error.retryable
        assert error.elsewhere
        assert "no capacity left" in error.message
        assert "vgpu_type" in error.hint
        assert not getattr(error, "__notes__", [])
    leases = host.manager.store.leases()
    assert [each.state for each in leases] == [LeaseState.HELD] * 2
    vgpus = sorted(type_of(host, each) for each in VFS)
    assert vgpus == [0, 0, HALF, HALF]
    marks = Path(host.root, "run/os_acc").glob("*.vgpu*")
    assert len(list(marks)) == 2
    assert sum(faults(host).values()) == 2
    for number in (1, 2, 3, 4):
        host.unplug(number)
    assert host.kernel.snapshot() == before
    assert [type_of(host, each) for each in VFS] == [0] * 4
    assert sum(faults(host).values()) == 0


def test_another_refusal_is_not_taken_for_a_lack_of_capacity(host):
    host.kernel.fail(VFS[0], CURRENT, errno.EINVAL)
    with raises(exception.StepReason.REFUSED) as caught:
        host.plug(1, VFS[0])
    assert not caught.value.retryable


def test_the_vgpu_of_another_tool_is_never_touched(host):
    set_type(host, VFS[0], HALF)
    refused = host.rejected(VFS[0])
    assert (refused.reason, refused.detail) == (
        RejectReason.HOST_USES,
        f"it is a vGPU of type {HALF}",
    )
    host.plug(1, VFS[1])
    host.unplug(1)
    assert type_of(host, VFS[0]) == HALF


def test_a_write_without_effect_fails_the_plug(host):
    host.kernel.ignore(VFS[0], CURRENT)
    with pytest.raises(exception.HostStepFailed, match="current_vgpu_type"):
        host.plug(1, VFS[0])
    assert host.manager.store.leases() == ()
    assert type_of(host, VFS[0]) == 0


def test_a_vgpu_that_a_guest_holds_is_not_deleted(host):
    host.plug(1, VFS[0])
    host.kernel.hold(VFS[0])
    before = len(host.kernel.writes())
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    # A driver of another version may delete it.
    assert not host.kernel.writes(before)
    assert type_of(host, VFS[0]) == HALF
    assert host.lease_state() is LeaseState.RELEASING
    host.kernel.let_go(VFS[0])
    host.unplug(1)
    assert type_of(host, VFS[0]) == 0


def test_a_refused_deletion_is_repeated(host):
    host.plug(1, VFS[0])
    host.kernel.fail(VFS[0], CURRENT, errno.EPERM)
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    assert host.lease_state() is LeaseState.RELEASING
    host.unplug(1)
    assert type_of(host, VFS[0]) == 0


def test_a_late_release_spares_the_vgpu_of_the_next_tenant(host):
    host.plug(1, VFS[0])
    (first,) = host.manager.store.leases()
    host.unplug(1)
    host.restart(device_spec=tagged(VFS[0]))
    host.plug(2, VFS[0])
    (second,) = host.manager.store.leases()
    assert (first.address, first.uuid) != (second.address, second.uuid)
    assert first.address == second.address
    devices = host.manager.life.devices
    ((_lease, failed),) = devices.try_give_back([first], time.monotonic() + 60)
    assert type_of(host, VFS[0]) == HALF
    assert failed is not None


@pytest.mark.parametrize("enabled", [[], ["pci"]], ids=["all plugins", "pci alone"])
def test_a_vf_without_a_type_is_rejected(host, enabled):
    """Another plugin would take it from the driver of its card."""
    named = [f'{{"address": "{BUS}:00.*"}}']
    host.restart(device_spec=named, enabled_plugins=enabled)
    assert providers(host) == []
    assert host.rejected(VFS[0]).reason is RejectReason.UNSUPPORTED
    assert "vgpu_type" in host.rejected(VFS[0]).detail
    # The whole card is not offered while it has VFs.
    assert host.rejected(PF).reason is RejectReason.HAS_VFS


def test_without_the_plugin_no_other_one_offers_the_vf(host):
    host.restart(enabled_plugins=["pci"])
    assert host.rejected(VFS[0]).reason is RejectReason.NO_PLUGIN


@pytest.mark.parametrize("tag", [PF, VFS[0]])
def test_a_function_that_cannot_be_a_vgpu_is_rejected(tmp_path, tag):
    gpu, _audio = hosts.gpu(BUS)
    vgpus = hosts.vgpu_card(BUS, vfs=4)
    spec = HostSpec((gpu,) if tag == PF else (vgpus,))
    with TestHost(tmp_path, spec, device_spec=tagged(tag)) as host:
        if tag != PF:
            host.bind(tag, "vfio-pci")
        assert host.rejected(tag).reason is RejectReason.NO_VGPU


def test_only_a_caller_that_attaches_unmanaged_gets_it(host):
    manager = service.build(host.config(), host.root, Owner.NOVA, unmanaged=False)
    refused = {each.address: each for each in manager.discover().refused}
    assert refused[PciAddress.parse(VFS[0])].reason is RejectReason.MANAGED


@pytest.mark.parametrize("value", ["0", "-1", "nvidia-558", "1.5", ""])
def test_a_type_is_a_number(tmp_path, value):
    spec = HostSpec((hosts.vgpu_card(BUS),))
    named = [f'{{"address": "{VFS[0]}", "vgpu_type": "{value}"}}']
    with (
        TestHost(tmp_path, spec, device_spec=named) as host,
        pytest.raises(exception.InvalidConfiguration, match="vgpu_type"),
    ):
        host.restart()


def test_a_vgpu_that_another_tool_creates_just_before_ours_stays(host, monkeypatch):
    """The driver refuses our type, and the rollback deletes nothing."""
    mark = vgpu._mark

    def late(address: PciAddress, *values: Any) -> None:
        mark(address, *values)
        set_type(host, VFS[0], HALF)

    monkeypatch.setattr(vgpu, "_mark", late)
    with pytest.raises(exception.HostStepFailed, match="current_vgpu_type"):
        host.plug(1, VFS[0])
    assert type_of(host, VFS[0]) == HALF
    assert host.manager.store.leases() == ()


def test_a_vf_that_cannot_be_read_is_reserved_alone(host):
    assert faults(host) == dict.fromkeys(VFS, False)
    directory = Path(host.root, "sys/bus/pci/devices", VFS[0], "nvidia")
    path = directory / "creatable_vgpu_types"
    path.unlink()
    # O_NOFOLLOW: reading a link is refused.
    path.symlink_to("current_vgpu_type")
    assert faults(host) == {each: each == VFS[0] for each in VFS}
    assert host.manager.host_info()["set_aside"] == []


def test_an_untagged_vf_that_cannot_be_read_is_rejected_alone(host):
    host.restart(device_spec=[f'{{"address": "{BUS}:00.4"}}', *tagged(*VFS[1:])])
    host.manager.discover()
    path = Path(host.root, "sys/bus/pci/devices", VFS[0], CURRENT)
    path.unlink()
    path.symlink_to("creatable_vgpu_types")
    assert host.rejected(VFS[0]).reason in (
        RejectReason.UNREADABLE,
        RejectReason.HOST_USES,
    )
    assert faults(host) == dict.fromkeys(VFS[1:], False)


def target_of(host: TestHost, vf: str, *members: str) -> StepTarget:
    """Return the target of a step, outside of a worker."""
    os.makedirs(os.path.join(host.root, "run/os_acc"), exist_ok=True)
    lease = "77777777-7777-4777-8777-777777777777"
    functions = tuple(map(PciAddress.parse, members))
    return StepTarget(lease, PciAddress.parse(vf), functions)


def test_the_vf_of_the_target_is_the_one_that_is_written(host):
    """An IOMMU group may have a lower function."""
    target = target_of(host, VFS[1], *VFS[:2])
    with host.kernel.installed():
        vgpu.create_vgpu.function(target, HALF)
        assert [type_of(host, each) for each in VFS[:2]] == [0, HALF]
        vgpu.delete_vgpu.function(target)
        assert [type_of(host, each) for each in VFS[:2]] == [0, 0]


@pytest.mark.parametrize("kind", [54, 1153, 0])
def test_a_type_that_the_card_cannot_create_is_refused(host, kind):
    target = target_of(host, VFS[0], VFS[0])
    with (
        host.kernel.installed(),
        pytest.raises(OSError, match="Invalid argument" if kind else "is not a type"),
    ):
        vgpu.create_vgpu.function(target, kind)
    assert type_of(host, VFS[0]) == 0
    with host.kernel.installed():
        vgpu.delete_vgpu.function(target)
    assert not list(Path(host.root, "run/os_acc").glob("*.vgpu"))


def test_a_step_of_another_lease_deletes_nothing(host):
    """The helper's record of functions may have been lost."""
    own = target_of(host, VFS[0], VFS[0])
    other = dataclasses.replace(own, lease="88888888-8888-4888-8888-888888888888")
    with host.kernel.installed():
        vgpu.create_vgpu.function(own, HALF)
        vgpu.delete_vgpu.function(other)
        assert type_of(host, VFS[0]) == HALF
        with pytest.raises(OSError, match=f"is a vGPU of type {HALF} already"):
            vgpu.create_vgpu.function(other, HALF)
        vgpu.create_vgpu.function(own, HALF)
        vgpu.delete_vgpu.function(own)
    assert type_of(host, VFS[0]) == 0


def test_a_vgpu_whose_type_cannot_be_read_back_is_deleted(host, monkeypatch):
    """The write has created it, and the rollback has to know whose it is."""
    target = target_of(host, VFS[0], VFS[0])
    read = StepTarget.read

    def fail_once(target: StepTarget, function: PciAddress, attribute: str) -> str:
        if type_of(host, VFS[0]) == HALF:
            monkeypatch.setattr(StepTarget, "read", read)
            raise OSError(errno.EIO, os.strerror(errno.EIO), attribute)
        return read(target, function, attribute)

    monkeypatch.setattr(StepTarget, "read", fail_once)
    with host.kernel.installed():
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            vgpu.create_vgpu.function(target, HALF)
        assert type_of(host, VFS[0]) == HALF
        vgpu.delete_vgpu.function(target)
    assert type_of(host, VFS[0]) == 0


def test_a_held_vgpu_is_not_even_written(host):
    """A driver of another version may delete it."""
    target = target_of(host, VFS[0], VFS[0])
    with host.kernel.installed():
        vgpu.create_vgpu.function(target, HALF)
        host.kernel.hold(VFS[0])
        before = len(host.kernel.writes())
        with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
            vgpu.delete_vgpu.function(target)
    assert not host.kernel.writes(before)


def test_a_provider_keeps_its_vf_when_lower_ones_join(host):
    host.restart(device_spec=tagged(*VFS[1:]))
    (before,) = providers(host)
    host.restart(device_spec=tagged(*VFS))
    (after,) = providers(host)
    assert str(after.device.address) == VFS[1]
    assert (after.name, after.uuid) == (before.name, before.uuid)
    assert len(after.device.handles) == 4


@pytest.mark.parametrize(
    ("named", "reboots"),
    [
        pytest.param(tagged(*VFS, kind=WHOLE), True, id="another type"),
        pytest.param(tagged(*VFS[1:]), False, id="not named"),
        pytest.param([f'{{"address": "{BUS}:00.*"}}'], True, id="no type"),
    ],
)
def test_a_guest_keeps_its_type_when_device_spec_changes(host, named, reboots):
    host.plug(1, VFS[0])
    if reboots:
        host.kernel.reboot()
    else:
        # The driver is loaded again.
        set_type(host, VFS[0], 0)
    manager = host.restart(device_spec=named)
    manager.plug(instance(1), None, None)
    assert type_of(host, VFS[0]) == HALF
    host.unplug(1)
    assert type_of(host, VFS[0]) == 0


def test_a_guest_gets_its_type_while_no_scan_succeeds(host, monkeypatch):
    host.plug(1, VFS[0])
    host.kernel.reboot()
    failing = mock.Mock(side_effect=RuntimeError("no scan"))
    monkeypatch.setattr(NvidiaPlugin, "discover", failing)
    host.restart().plug(instance(1), None, None)
    assert type_of(host, VFS[0]) == HALF


def test_a_lease_without_a_type_says_so(host):
    """A version without the field wrote it."""
    host.plug(1, VFS[0])
    (lease,) = host.manager.store.leases()
    host.manager.store.replace(
        [
            dataclasses.replace(
                lease, handle=dataclasses.replace(lease.handle, vgpu_type=0)
            )
        ]
    )
    host.kernel.reboot()
    with pytest.raises(exception.HostStepFailed, match="does not record the type"):
        host.restart().plug(instance(1), None, None)
