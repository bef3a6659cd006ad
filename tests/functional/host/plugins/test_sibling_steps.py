# SPDX-License-Identifier: Apache-2.0

"""Plugs and unplugs of sibling VFs at once keep what they share on their card."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from os_acc.privsep.kernel import LOCKS
from os_acc.testing import (
    AttributeSpec,
    FunctionSpec,
    HostSpec,
    SriovSpec,
    TestHost,
    conformance,
    instance,
    request,
)
from tests.functional.host.plugins import sharing_vendor as sharing
from tests.unit import vendor_steps as vendor

CARD = "0000:3b:00.0"
VFS = ("0000:3b:02.0", "0000:3b:02.1")


def counting_host(directory: Path, *, separate_helper: bool) -> TestHost:
    """Return a host with a card whose VFs are devices of their own."""
    card = FunctionSpec(
        CARD,
        0x10EE,
        0x0E10,
        0x120000,
        "acme",
        driver_attributes=(AttributeSpec(vendor.USERS, "0", vendor.set_users),),
        sriov=SriovSpec(len(VFS), 0x0E11, boot_vfs=len(VFS)),
    )
    return TestHost(
        directory,
        HostSpec((card,)),
        enabled_plugins=["acme"],
        separate_helper=separate_helper,
        plug_timeout=300,
        unplug_timeout=300,
        write_timeout=120,
    )


def users(host: TestHost) -> int:
    return int(Path(host.root, "sys/bus/pci/devices", CARD, vendor.USERS).read_text())


def at_once(call: Callable[[int], object], count: int) -> list[BaseException | None]:
    with futures.ThreadPoolExecutor(count) as threads:
        calls = [threads.submit(call, number) for number in range(count)]
        return [each.exception() for each in calls]


@pytest.mark.parametrize("separate_helper", [False, True], ids=["here", "helper"])
def test_no_step_misses_that_of_a_sibling(tmp_path, install_plugins, separate_helper):
    install_plugins(acme="tests.unit.vendor_steps:Meeting")
    with counting_host(tmp_path, separate_helper=separate_helper) as host:
        assert len(host.manager.providers()) == len(VFS)
        plugs = at_once(lambda number: host.plug(number + 1, VFS[number]), len(VFS))
        assert (plugs, users(host)) == ([None, None], 2)
        unplugs = at_once(lambda number: host.unplug(number + 1), len(VFS))
        assert (unplugs, users(host)) == ([None, None], 0)


@pytest.fixture
def install_sharing(install_plugins: Callable[..., None]) -> None:
    install_plugins(sharing=f"{sharing.HERE}:SharingPlugin")


def sharing_host(directory: Path, queues: int) -> TestHost:
    return TestHost(
        directory, HostSpec((sharing.card(queues),)), enabled_plugins=["sharing"]
    )


@pytest.mark.usefixtures("install_sharing")
def test_a_guest_gets_no_more_than_the_card_has(tmp_path):
    with sharing_host(tmp_path, 5) as host:
        errors = at_once(lambda number: host.plug(number + 1, sharing.CARD), 3)
        (error,) = filter(None, errors)
        assert isinstance(error, exception.HostStepFailed)
        assert error.reason is exception.StepReason.NO_CAPACITY
        for number in range(3):
            host.unplug(number + 1)
        host.plug(4, sharing.CARD)


@pytest.mark.usefixtures("install_sharing")
def test_a_plug_beside_a_step_that_hangs_ends_and_can_be_repeated(tmp_path):
    with sharing_host(tmp_path, 8) as host:
        host.plug(1, sharing.CARD)
        lock = Path(host.root, LOCKS, f"parent@{sharing.CARD}")
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            another = host.start(plug_timeout=3, write_timeout=1)
            with pytest.raises(exception.DeviceStuck):
                another.plug(instance(2), *request(host.provider(sharing.CARD)))
            assert host.lease_state(1) is LeaseState.HELD
        host.unplug(2)
        host.plug(2, sharing.CARD)
        assert host.unplug(1) == host.unplug(2) == 1


@pytest.mark.usefixtures("install_sharing")
@pytest.mark.parametrize("check", conformance.QUICK, ids=conformance.name_of)
def test_the_example_of_the_manual_conforms(tmp_path, check):
    with sharing_host(tmp_path, 8) as host:
        check(host, "sharing")
