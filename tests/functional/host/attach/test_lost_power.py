# SPDX-License-Identifier: Apache-2.0

"""A slot that loses power: the kernel still lists the device, which answers nothing."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from os_acc import exception
from os_acc.cmd.device_states import DeviceStatus
from os_acc.host import health, mdev
from os_acc.testing import (
    HostSpec,
    MdevParentSpec,
    MdevTypeSpec,
    TestHost,
    hosts,
    instance,
    request,
)
from tests.expected_errors import has, raises
from tests.unit.cmd.console import Console

CARD, OTHER = "0000:05:00.0", "0000:06:00.0"
PF, VF = "0000:3b:00.0", "0000:3b:02.0"
NO_ANSWER = has(reason=exception.StepReason.NO_ANSWER, address=CARD)
NOT_FREE = exception.NoDeviceReason.NOT_FREE


@pytest.fixture
def bench(make_bench) -> TestHost:
    return make_bench(HostSpec((hosts.fpga("0000:05"), hosts.fpga("0000:06"))))


def read(bench: TestHost, times: int = 2) -> None:
    """Let the service read until a fault counts."""
    for _ in range(times):
        bench.manager.refresh()


def fault(bench: TestHost, address: str) -> str:
    (handle,) = bench.provider(address).device.handles
    return handle.fault


def writes_of_a_failed_plug(bench: TestHost, check=NO_ANSWER) -> list[str]:
    done = len(bench.kernel.writes())
    with pytest.raises(exception.HostStepFailed, check=check):
        bench.plug(1, CARD)
    return list(bench.kernel.writes(done))


def test_a_free_device_without_power_is_reserved_until_it_has_power(bench):
    bench.kernel.set_power(CARD, on=True)
    read(bench)
    assert fault(bench, CARD) == ""
    bench.kernel.set_power(CARD, on=False)
    read(bench)
    assert fault(bench, CARD) == f"{CARD} {health.SILENT}"
    assert fault(bench, OTHER) == ""
    with raises(NOT_FREE):
        bench.plug(1, CARD)
    bench.kernel.set_power(CARD, on=True)
    read(bench, 1)
    bench.plug(1, CARD)


def test_a_plug_refuses_it_before_anything_is_written(bench):
    """The service has not read the fault yet."""
    assert fault(bench, CARD) == ""
    bench.kernel.set_power(CARD, on=False)
    assert writes_of_a_failed_plug(bench) == []
    assert bench.manager.store.leases() == ()
    bench.kernel.set_power(CARD, on=True)
    bench.plug(1, CARD)
    assert bench.plugged(1) == [CARD]


def test_a_plug_takes_another_unit_of_the_same_provider(make_bench):
    nic = hosts.nic("0000:3b", name="ens1f0", boot_vfs=2)
    bench = make_bench(HostSpec((nic,)), device_spec=['{"product_id": "1889"}'])
    answers = health.answers

    def all_but_the_first(root: str, address: object) -> bool:
        return str(address) != VF and answers(root, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "answers", all_but_the_first)
        bench.plug(1, VF)
    assert bench.plugged(1) == ["0000:3b:02.1"]


def test_a_device_that_loses_power_after_its_selection_is_not_touched(
    bench, monkeypatch
):
    """A bitstream may have been fetched for minutes in between."""
    establish = type(bench.manager.life).establish

    def late(self, *arguments, **named):
        bench.kernel.set_power(CARD, on=False)
        return establish(self, *arguments, **named)

    monkeypatch.setattr(type(bench.manager.life), "establish", late)
    assert writes_of_a_failed_plug(bench) == []
    assert bench.manager.store.leases() == ()


def test_a_guest_keeps_it_and_it_is_reported(bench, tmp_path, caplog):
    entries = bench.plug(1, CARD)
    bench.kernel.set_power(CARD, on=False)
    read(bench)
    assert f"{CARD} {health.SILENT}" in caplog.text
    assert bench.plug(1, CARD) == entries
    device = Console(bench, tmp_path).device(CARD)
    assert device["State"] == DeviceStatus.LEASED.value
    assert health.SILENT in device["Reason"]
    assert bench.unplug(1) == 1


def test_after_a_reboot_a_guest_does_not_start_with_it(bench):
    bench.plug(1, CARD)
    bench.kernel.reboot()
    bench.restart()
    bench.kernel.set_power(CARD, on=False)
    assert writes_of_a_failed_plug(bench) == []
    bench.kernel.set_power(CARD, on=True)
    bench.plug(1, CARD)


def test_a_vf_answers_if_its_pf_does(make_bench):
    """The vendor in the configuration space of a VF is FFFFh."""
    nic = hosts.nic("0000:3b", name="ens1f0", boot_vfs=2)
    bench = make_bench(HostSpec((nic,)), device_spec=['{"product_id": "1889"}'])
    read(bench)
    bench.kernel.set_power(VF, on=False)
    read(bench)
    bench.plug(1, VF)
    bench.kernel.set_power(PF, on=False)
    with pytest.raises(exception.HostStepFailed):
        bench.plug(2, VF)
    read(bench)
    (provider,) = bench.manager.providers()
    assert all(health.SILENT in each.fault for each in provider.device.handles)


def test_a_parent_of_mediated_devices_without_power_serves_no_guest(make_bench):
    parent = MdevParentSpec(CARD, 2, (MdevTypeSpec("acme-1"),))
    card = dataclasses.replace(hosts.gpu("0000:05")[0], mdevs=parent)
    named = f'{{"address": "{CARD}", "mdev_types": "acme-1"}}'
    bench = make_bench(HostSpec((card,)), device_spec=[named])
    (provider,) = bench.manager.providers()
    bench.kernel.set_power(CARD, on=False)
    with pytest.raises(exception.HostStepFailed, check=NO_ANSWER):
        bench.manager.plug(instance(1), *request(provider))
    assert mdev.read_mdevs(bench.root) == ()


def test_a_device_that_sleeps_is_not_woken_by_the_service(bench, monkeypatch):
    bench.kernel.set_power(CARD, on=False)
    monkeypatch.setattr(health, "_is_suspended", lambda place: CARD in place)
    read(bench)
    assert fault(bench, CARD) == ""


def test_a_configuration_space_that_cannot_be_read_is_no_fault(bench, caplog):
    caplog.set_level(logging.INFO)
    for address in (CARD, OTHER):
        bench.kernel.set_power(address, on=False)
    place = bench.kernel.path("sys/bus/pci/devices", CARD, "config")
    with open(place, "wb"):
        pass
    read(bench)
    assert (fault(bench, CARD), fault(bench, OTHER) == "") == ("", False)
