# SPDX-License-Identifier: Apache-2.0

"""A rejected request changes nothing."""

from __future__ import annotations

import uuid

import pytest

import os_acc
from os_acc import exception, service
from tests.expected_errors import has

from ..host import HostUnderTest
from .common import (
    FOUR_VFS,
    card,
    devices,
    flavor,
    instance,
    offered,
    only_provider,
    pf,
    plug,
    recorded,
    refusals,
    scenario,
    single,
    unplug,
    vfs,
)


@scenario
def another_request_for_the_same_instance_is_refused(host: HostUnderTest) -> None:
    host.start(vfs(host))
    guest = instance()
    plug(guest)
    before, leases = host.snapshot(), recorded()
    with pytest.raises(
        exception.Conflict, check=has(reason=exception.ConflictReason.CONSUMER)
    ):
        plug(guest, 2)
    assert (host.snapshot(), recorded()) == (before, leases)
    assert os_acc.unplug(guest) == 1


@scenario
def more_devices_than_are_free_are_refused(host: HostUnderTest) -> None:
    host.start(vfs(host))
    guest, other = instance(), instance()
    plug(guest, 2)
    before, leases = host.snapshot(), recorded()
    with pytest.raises(exception.NoDeviceAvailable):
        plug(other, FOUR_VFS - 1)
    assert (host.snapshot(), recorded()) == (before, leases)
    assert os_acc.unplug(other) == 0
    assert os_acc.unplug(guest) == 2


@scenario
def a_disk_that_only_the_kernel_uses_is_refused(host: HostUnderTest) -> None:
    """The first function of the card has no disk, and is not touched either."""
    host.start({**card(host), "allow_no_reset": True})
    host.use_disk_in_kernel(True)
    guest = instance()
    before, leases = host.snapshot(), recorded()
    with pytest.raises(exception.DeviceInUse, match="the host uses nvme"):
        plug(guest)
    assert (host.snapshot(), recorded()) == (before, leases)
    host.use_disk_in_kernel(False)
    plug(guest)
    assert os_acc.unplug(guest) == 1


@scenario
def an_unknown_provider_is_refused(host: HostUnderTest) -> None:
    host.start(vfs(host))
    before = host.snapshot()
    unknown = str(uuid.uuid4())
    with pytest.raises(exception.ProviderNotFound, match=unknown):
        os_acc.plug(instance(), {"uuid": unknown}, flavor(only_provider()))
    assert host.snapshot() == before


@scenario
def an_instance_without_a_record_cannot_be_made_ready_again(
    host: HostUnderTest,
) -> None:
    host.start(vfs(host))
    before = host.snapshot()
    with pytest.raises(exception.NotFound, check=has(kind=exception.ObjectKind.LEASE)):
        os_acc.plug(instance())
    assert host.snapshot() == before


@scenario
def malformed_arguments_are_refused_before_anything_happens(
    host: HostUnderTest,
) -> None:
    host.start(single(host))
    before, provider = host.snapshot(), only_provider()
    good = (instance(), {"uuid": provider.uuid}, flavor(provider))
    wrong: list[tuple[int, object]] = [
        (0, {"uuid": "guest"}),
        (0, None),
        (1, {"uuid": 7}),
        (1, {"allocations": []}),
        (2, {f"resources1:{provider.device.resource_class}": "-1"}),
        (2, {"resources1:": "1"}),
    ]
    for position, bad in wrong:
        arguments = [*good[:position], bad, *good[position + 1 :]]
        with pytest.raises(exception.InvalidInput):
            os_acc.plug(*arguments)  # type: ignore[arg-type]
    assert (host.snapshot(), os_acc.attached()) == (before, {})


@scenario
def a_card_that_gets_vfs_at_the_last_moment_stays_with_the_host(
    host: HostUnderTest,
) -> None:
    """Another tool makes the VFs. vfio-pci would refuse the card, once unbound."""
    address = host.places.pf
    host.start(pf(host))
    before, guest = host.snapshot(), instance()
    with (
        pytest.raises(exception.DeviceInUse, match="has 1 VF") as refused,
        host.once_found_free(lambda: host.make_vfs(1)),
    ):
        plug(guest)
    assert refused.value.address == address
    assert len(host.vfs()) == 1
    host.make_vfs(0)
    assert host.snapshot() == before
    assert os_acc.attached() == {}
    assert os_acc.unplug(guest) == 0


@scenario
def one_refused_device_undoes_the_whole_plug(host: HostUnderTest) -> None:
    host.start(pf(host), single(host))
    before, guest = host.snapshot(), instance()
    refusing, other = sorted(
        service.get().providers(),
        key=lambda each: each.device.resource_class,
        reverse=True,
    )
    selected = {
        "allocations": {
            each.uuid: {"resources": {each.device.resource_class: 1}}
            for each in (refusing, other)
        },
        "mappings": {"1": [refusing.uuid], "2": [other.uuid]},
    }
    request = {
        "group_policy": "none",
        f"resources1:{refusing.device.resource_class}": "1",
        f"resources2:{other.device.resource_class}": "1",
    }
    # Both devices are taken at once: the VFs may come after the last check, and
    # vfio-pci then refuses a function with VFs.
    refused = (exception.DeviceInUse, exception.HostStepFailed)
    with (
        pytest.raises(refused, match=r"has 1 VF|the driver rejected the device"),
        host.once_found_free(lambda: host.make_vfs(1)),
    ):
        os_acc.plug(guest, selected, request)
    host.make_vfs(0)
    assert host.snapshot() == before
    assert os_acc.attached() == {}


@scenario
def vfs_of_a_pf_that_somebody_has_are_not_offered(host: HostUnderTest) -> None:
    host.start(pf(host))
    guest, provider = instance(), only_provider()
    requested = {**flavor(provider), "accel1:attach_target": "host"}
    os_acc.plug(guest, {"uuid": provider.uuid}, requested)
    host.make_vfs(2)
    assert offered() == set()
    for address in host.vfs():
        assert "leased as a whole" in refusals()[address]
    host.make_vfs(0)
    host.start(vfs(host))
    assert host.vfs() == ()
    assert unplug(guest) == 1
    host.again()
    assert offered() == set(host.vfs())
    assert len(host.vfs()) == FOUR_VFS


@scenario
def a_pf_of_which_somebody_has_a_vf_is_not_offered(host: HostUnderTest) -> None:
    """A leased VF that has disappeared still blocks the offer of its PF."""
    host.make_vfs(2)
    host.start(pf(host))
    guest = instance()
    (address,) = devices(plug(guest))
    host.make_vfs(0)
    host.again()
    assert offered() == set()
    assert address in refusals()[host.places.pf]
    assert unplug(guest) == 1
    assert offered() == {host.places.pf}
