# SPDX-License-Identifier: Apache-2.0

"""VFs of an NVMe PF get their share of its queues and interrupts, and are online."""

import dataclasses
import errno
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from os_acc import exception
from os_acc.inventory import sriov
from os_acc.objects.device import RejectReason
from os_acc.objects.nvme import FlexibleResources, parse_flexible
from os_acc.objects.pci import PciAddress
from os_acc.privsep.nvme import survey
from os_acc.privsep.nvme.commands import VirtualizationAction
from os_acc.testing import FakeKernel, HostSpec, TestHost, hosts
from os_acc.testing.device_specs import FORMATS, MANAGES, SEVERAL, VIRTUALIZES, NvmeSpec

PF, FIRST, SECOND = "0000:41:00.0", "0000:41:00.1", "0000:41:00.2"
MakeHost = Callable[..., TestHost]


def with_vfs(make_bench: MakeHost, count: int = 2, **changes: Any) -> TestHost:
    """Return a host that asks for VFs of a drive, whose resources are flexible."""
    spec = NvmeSpec(
        private=((2,), (3,)),
        oacs=FORMATS | MANAGES | VIRTUALIZES,
        cmic=SEVERAL,
        vq_flexible=16,
        vi_flexible=8,
    )
    drive = dataclasses.replace(
        hosts.nvme_sriov("0000:41", 0), nvme=dataclasses.replace(spec, **changes)
    )
    named = json.dumps({"address": PF, "num_vfs": count})
    return make_bench(HostSpec((drive,)), device_spec=[named])


def flexible() -> tuple[FlexibleResources, FlexibleResources]:
    return survey.wait_for_queue(PciAddress.parse(PF)).flexible_resources()


def secondaries(count: int = 2) -> list[tuple[int, int, bool]]:
    queue = survey.wait_for_queue(PciAddress.parse(PF))
    return [
        (each.queues, each.interrupts, each.is_online)
        for each in queue.secondaries()[:count]
    ]


@pytest.mark.parametrize(
    "changes",
    [{}, {"is_greedy": True}, {"oacs": FORMATS | MANAGES}],
    ids=["plain", "greedy", "as QEMU"],
)
def test_a_vf_is_plugged_erased_and_plugged_again(make_bench, changes):
    host = with_vfs(make_bench, **changes)
    host.restart()
    total = host.kernel.state(PF).numvfs
    assert total == 2
    assert secondaries() == [(4, 2, True)] * 2
    host.plug(1, FIRST)
    assert host.drivers(FIRST) == ["vfio-pci"]
    host.unplug(1)
    for attempt in host.manager.retrier.continue_erasures():
        attempt.result(60)
    assert host.manager.store.leases() == ()
    assert secondaries() == [(4, 2, True)] * 2


def test_a_start_after_a_kill_brings_the_others_online(make_bench):
    host = with_vfs(make_bench)
    host.restart()
    queue = survey.wait_for_queue(PciAddress.parse(PF))
    queue.virtualize(VirtualizationAction.OFFLINE, 2)
    assert secondaries() == [(4, 2, True), (0, 0, False)]
    writes = len(host.kernel.writes())
    host.restart()
    assert secondaries() == [(4, 2, True)] * 2
    # The one that is online, which a guest may have, is not reset.
    written = [each.path for each in host.kernel.writes()[writes:]]
    assert written == [f"sys/bus/pci/devices/{SECOND}/reset"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("at", "attribute", "nth"),
    [
        *((PF, "virtualization management", nth) for nth in range(1, 9)),
        (PF, "reset", 1),
        (PF, "sriov_numvfs", 1),
        (FIRST, "reset", 1),
    ],
)
def test_a_start_after_a_kill_at_any_step_completes_it(
    make_bench, at, attribute, nth, after
):
    host = with_vfs(make_bench, is_greedy=True)
    host.kernel.kill(at, attribute, nth=nth, after=after)
    host.restart()
    assert secondaries() != [(4, 2, True)] * 2 or nth == 8
    host.restart()
    assert secondaries() == [(4, 2, True)] * 2
    assert [each.primary for each in flexible()] == [8, 4]


def test_no_vfs_are_made_for_which_the_resources_are_too_few(make_bench, caplog):
    host = with_vfs(make_bench, vq_flexible=3)
    host.restart()
    assert host.kernel.state(PF).numvfs == 0
    assert "its 3 flexible queue resources are too few for 2 VFs" in caplog.text
    assert host.rejected(PF).reason is RejectReason.NO_VFS


def test_a_controller_that_refuses_is_asked_again_after_a_while(
    make_bench, caplog, monkeypatch
):
    host = with_vfs(make_bench)
    host.kernel.fail(PF, "virtualization management", errno.EIO)
    host.restart()
    assert "cannot give its VFs queues and interrupts" in caplog.text
    assert secondaries() == [(0, 0, False)] * 2
    host.manager.watch()
    assert secondaries() == [(0, 0, False)] * 2
    monkeypatch.setattr(sriov, "PAUSE", 0.0)
    host.manager.watch()
    assert secondaries() == [(4, 2, True)] * 2


def test_a_plug_of_a_vf_without_resources_names_the_cause(make_bench):
    host = with_vfs(make_bench)
    host.restart()
    queue = survey.wait_for_queue(PciAddress.parse(PF))
    for number in (1, 2):
        queue.virtualize(VirtualizationAction.OFFLINE, number)
    with pytest.raises(exception.HostStepFailed) as raised:
        host.plug(1, FIRST)
    assert (
        "secondary controller 2 is offline, with 0 queue and 0 interrupt resources"
        in str(raised.value)
    )
    assert host.drivers(FIRST, SECOND) == [None, None]


def test_vfs_that_others_made_without_resources_are_reserved_before_a_plug(make_bench):
    host = with_vfs(make_bench)
    host.restart()
    queue = survey.wait_for_queue(PciAddress.parse(PF))
    for number, is_reserved in ((1, False), (2, True)):
        queue.virtualize(VirtualizationAction.OFFLINE, number)
        host.manager.health_steps.read()
        host.manager.health_steps.read()
        (provider,) = host.manager.providers()
        assert [bool(each.fault) for each in provider.device.handles] == [
            is_reserved,
            is_reserved,
        ]
    assert (
        f"depends on {PF}, which runs none of its VFs: secondary controller 1 is "
        "offline" in provider.device.handles[0].fault
    )


def test_the_nvme_driver_leaves_a_vf_without_resources(make_bench):
    """As on the real kernel: tests/functional/kernel/test_nvme.py."""
    host = with_vfs(make_bench)
    host.restart()
    queue = survey.wait_for_queue(PciAddress.parse(PF))
    queue.virtualize(VirtualizationAction.OFFLINE, 1)
    kernel: FakeKernel = host.kernel
    for vf, driver in ((FIRST, None), (SECOND, "nvme")):
        device = kernel.path(f"sys/bus/pci/devices/{vf}")
        kernel.write(f"{device}/driver_override", "nvme")
        kernel.write(kernel.path("sys/bus/pci/drivers_probe"), vf)
        assert host.drivers(vf) == [driver]


@pytest.mark.parametrize(
    ("total", "private", "most", "step", "count", "share"),
    [
        (8, 3, 2, 1, 4, 2),
        (9, 3, 4, 1, 2, 4),
        (9, 3, 4, 3, 2, 3),
        (9, 0, 9, 1, 2, 3),
        (9, 1, 9, 1, 2, 4),
        (2, 3, 2, 4, 1, 2),
    ],
)
def test_a_share_is_even_and_leaves_the_pf_what_it_needs(
    total, private, most, step, count, share
):
    found = FlexibleResources(total, 0, private, most, step)
    assert found.share(count, 2) == share


def test_resources_that_are_not_flexible_are_none():
    data = bytearray(4096)
    data[4] = 0b10
    struct.pack_into("<IIHHHH", data, 32, 8, 0, 8, 1, 8, 1)
    struct.pack_into("<IIHHHH", data, 64, 4, 1, 2, 3, 4, 0)
    queues, interrupts = parse_flexible(bytes(data))
    assert queues.total == 0
    assert interrupts == FlexibleResources(4, 2, 3, 4, 1)
