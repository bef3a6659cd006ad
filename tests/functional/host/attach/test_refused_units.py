# SPDX-License-Identifier: Apache-2.0

"""A unit that its plugin does not prepare until it changes is reserved, not offered."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.cmd.checks import CheckContext, devices
from os_acc.objects.pci import PciAddress
from os_acc.placement.capacity import Units
from os_acc.plugins.nvme import NvmePlugin
from os_acc.plugins.pci import PciPlugin
from os_acc.privsep.nvme import survey
from os_acc.privsep.nvme.commands import VirtualizationAction
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.device_specs import FORMATS, MANAGES, SEVERAL, VIRTUALIZES, NvmeSpec
from tests.expected_errors import raises

DRIVE = "0000:d9:00.0"
PF, FIRST, SECOND = "0000:41:00.0", "0000:41:00.1", "0000:41:00.2"
#: The drive of QEMU 7.2: no Sanitize, and capacity without a namespace.
UNERASABLE = NvmeSpec(oacs=FORMATS | MANAGES, unvmcap=1 << 30)
WHY = (
    "cannot be erased: sanitize-crypto, sanitize-block: the controller does not "
    "support it (SANICAP); format-crypto, format: it has capacity without a namespace "
    "(UNVMCAP), and only Sanitize reaches the data of namespaces that were deleted"
)
MakeHost = Callable[..., TestHost]


def drive(spec: NvmeSpec) -> Any:
    return dataclasses.replace(hosts.nvme_disk("0000:d9", 1), nvme=spec)


@pytest.fixture
def host(make_bench: MakeHost) -> TestHost:
    host = make_bench(HostSpec((drive(UNERASABLE),)))
    host.restart()
    return host


def units(host: TestHost, address: str = DRIVE) -> Units:
    """Return the units of a provider, as they go to Placement."""
    host.manager.refresh()
    provider = host.provider(address)
    (found,) = (
        each.units[provider.device.resource_class]
        for each in host.manager.catalog.snapshots.newest()
        if each.uuid == provider.uuid
    )
    return found


def fault(host: TestHost, address: str = DRIVE) -> str:
    (found,) = (
        handle.fault
        for provider in host.manager.providers()
        for handle in provider.device.handles
        if str(handle.address) == address
    )
    return found


def refuse(host: TestHost, number: int = 1, address: str = DRIVE) -> str:
    """Check that a plug fails for good; return its message."""
    with raises(exception.StepReason.UNSUITABLE) as raised:
        host.plug(number, address)
    assert not raised.value.retryable
    return raised.value.message


def test_the_second_server_is_not_scheduled_to_a_refused_unit(host):
    assert units(host) == Units(1, 0)
    assert refuse(host) == f"{DRIVE}: it {WHY}"
    assert units(host) == Units(1, 1)
    assert fault(host) == f"{DRIVE}: it {WHY}"
    with pytest.raises(exception.NoDeviceAvailable, match="cannot be erased"):
        host.plug(2, DRIVE)
    assert host.manager.store.leases() == ()


def test_a_refusal_outlives_the_service(host):
    refuse(host)
    host.restart()
    assert units(host) == Units(1, 1)


def exchange(host: TestHost) -> None:
    host.kernel.hot_unplug(DRIVE)
    host.kernel.hot_plug(drive(NvmeSpec()))


def change_options(host: TestHost) -> None:
    host.groups["os_acc_nvme"] = {"erase_methods": ["deallocate"]}
    host.restart()


def release(host: TestHost) -> None:
    operator_actions.release_device(host.manager, PciAddress.parse(DRIVE), None)


@pytest.mark.parametrize("change", [exchange, change_options, release])
def test_it_is_asked_again_after_a_change_or_by_command(host, change):
    refuse(host)
    change(host)
    assert units(host) == Units(1, 0)
    assert fault(host) == ""


def test_it_is_asked_again_once_its_namespaces_have_changed(host):
    refuse(host)
    disk = Path(host.root, f"sys/bus/pci/devices/{DRIVE}/nvme/nvme1/nvme1n1/size")
    disk.write_text("4194304\n")
    assert units(host) == Units(1, 0)


def test_the_service_finds_a_drive_that_cannot_be_erased_before_a_plug(host):
    assert host.manager.health_steps.read()
    assert units(host) == Units(1, 1)
    assert fault(host) == f"{DRIVE} {WHY}"
    # The next round forgets it, once the drive or the options have changed.
    host.groups["os_acc_nvme"] = {"erase_methods": ["deallocate"]}
    exchange(host)
    host.manager.health_steps.read()
    assert units(host) == Units(1, 0)


def test_a_check_finds_it_before_the_first_guest_and_changes_nothing(host):
    writes = len(host.kernel.writes())
    context = CheckContext(host.config(), host.root, None)
    (found,) = devices.health(context)
    assert found.what == f"{DRIVE} is reserved: {DRIVE} {WHY}"
    assert len(host.kernel.writes()) == writes
    assert units(host) == Units(1, 0)
    refuse(host)
    (found,) = devices.health(CheckContext(host.config(), host.root, None))
    assert found.what == f"{DRIVE} is reserved: {DRIVE}: it {WHY}"
    assert f"os-acc device release {DRIVE}" in found.hint


def test_a_check_of_drives_that_can_be_erased_is_silent(make_bench):
    host = make_bench(HostSpec((drive(NvmeSpec()),)))
    assert not list(devices.health(CheckContext(host.config(), host.root, None)))


def test_another_vf_of_the_drive_serves_the_server(make_bench):
    spec = NvmeSpec(
        private=((2,), (3,)),
        oacs=FORMATS | MANAGES | VIRTUALIZES,
        cmic=SEVERAL,
        vq_flexible=16,
        vi_flexible=8,
    )
    pf = dataclasses.replace(hosts.nvme_sriov("0000:41", 0), nvme=spec)
    named = json.dumps({"address": PF, "num_vfs": 2})
    host = make_bench(HostSpec((pf,)), device_spec=[named])
    host.restart()
    queue = survey.wait_for_queue(PciAddress.parse(PF))
    queue.virtualize(VirtualizationAction.OFFLINE, 1)
    (entry,) = host.plug(1, FIRST)
    assert entry["pci_id"] == SECOND
    assert units(host, FIRST) == Units(2, 1)
    assert "secondary controller 1 is offline" in fault(host, FIRST)
    host.unplug(1)


def test_an_answer_that_may_change_is_not_remembered(make_bench, monkeypatch):
    host = make_bench(HostSpec((drive(NvmeSpec()),)))
    busy = exception.HostStepFailed("the controller is busy")
    monkeypatch.setattr(NvmePlugin, "prepare", mock.Mock(side_effect=busy))
    with pytest.raises(exception.HostStepFailed):
        host.plug(1, DRIVE)
    assert units(host) == Units(1, 0)


def test_every_plugin_may_refuse_a_device_for_good(make_bench, monkeypatch):
    gpu = "0000:5e:00.0"
    host = make_bench()
    reason = exception.StepReason.UNSUITABLE
    old = exception.HostStepFailed("its firmware is too old", reason=reason)
    monkeypatch.setattr(PciPlugin, "prepare", mock.Mock(side_effect=old))
    assert refuse(host, address=gpu) == "its firmware is too old"
    assert fault(host, gpu) == "its firmware is too old"
    assert units(host, gpu).reserved == 1
    monkeypatch.undo()


def test_a_refusal_that_cannot_be_recorded_hides_no_error(host):
    Path(host.state_path, "refusals").write_text("")
    with pytest.raises(exception.HostStepFailed, match="cannot be erased") as raised:
        host.plug(1, DRIVE)
    assert any("cannot record" in each for each in raised.value.__notes__)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"state": 1, "reason": 2}', "\0"])
def test_a_damaged_record_refuses_nothing(host, text):
    refuse(host)
    Path(host.state_path, "refusals", DRIVE).write_text(text)
    assert units(host) == Units(1, 0)
