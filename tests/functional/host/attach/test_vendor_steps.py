# SPDX-License-Identifier: Apache-2.0

"""Plugins run privileged steps of their own in a plug, an unplug and a programming."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from os_acc import exception, service
from os_acc.helper import client
from os_acc.objects.lease import Lease, LeaseState, LeaseView
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.region import Programming, Region
from os_acc.testing import TestHost, helper, uuid_of
from tests.unit import vendor_steps as vendor

CARD, GPU = "0000:5e:00.0", "0000:17:00.0"
#: Far longer than a slow machine needs, in seconds.
LONG = 120.0
REGION = Region(PciAddress.parse(CARD), PciIdentity(1, 2, 3, 4, 5), 0, None, None)


@pytest.fixture
def host(make_bench, install_plugins, monkeypatch) -> TestHost:
    """Return a host with a card whose plugin sets its NUMA node by a step."""
    install_plugins(acme="tests.unit.vendor_steps:Stepping")
    for name in ("results", "leases"):
        monkeypatch.setattr(vendor.Stepping, name, [])
    return make_bench()


@pytest.fixture
def let_plugin_run(monkeypatch) -> Callable[..., None]:
    """Return a function that changes the step of ``prepare`` or ``release``."""

    def change(method: str, *step: object) -> None:
        monkeypatch.setattr(vendor.Stepping, f"to_{method}", step)

    return change


@pytest.fixture
def initialize(host, monkeypatch) -> Iterator[Callable[[], None]]:
    """Return a function that calls ``initialize()`` on the host."""
    monkeypatch.setattr(service, "nodes", service.Nodes())
    yield lambda: service.initialize(config=host.config(), root=host.root)
    for each in service.nodes._services.values():
        assert each.manager is not None
        assert each.manager.retrier.stop(LONG)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_initialize_starts_the_helper_of_a_plugin(host, initialize, let_plugin_run):
    let_plugin_run("prepare", vendor.process)
    command = helper.command(host.root, host.write_config())
    with helper.privileged_by(command, [vendor.context]):
        initialize()
        # No step has run: a first plug would otherwise wait for the start.
        wait_until(lambda: vendor.context.channel is not None)
        started = vendor.context.channel
        host.plug(1, CARD)
        assert vendor.context.channel is started
        let_plugin_run("release", vendor.process)
        host.unplug(1)
    (_, parent), (_, same) = vendor.Stepping.results
    assert parent == same != os.getpid()


def test_a_helper_of_a_plugin_that_does_not_start_fails_its_steps_alone(
    host, initialize, caplog
):
    with helper.privileged_by("false", [vendor.context]):
        initialize()
        wait_until(lambda: "steps of plugin acme will fail" in caplog.text)
        with pytest.raises(exception.HelperUnavailable, match=r"vendor_steps\.context"):
            host.plug(1, CARD)
        assert vendor.Stepping.results == []
        assert host.drivers(CARD) != ["vfio-pci"]
        host.plug(2, GPU)
        assert host.drivers(GPU) == ["vfio-pci"]
    # The plugin owed the release of its prepare, for which the helper runs now.
    host.unplug(1)
    assert host.plugged(1) == []
    assert vendor.Stepping.results == ["0"]


def test_a_test_host_runs_the_steps_in_the_process_of_the_test(host):
    host.plug(1, CARD)
    assert not vendor.context.client_mode
    host.close()
    assert vendor.context.client_mode


def test_a_plugin_gets_the_lease(host):
    host.plug(1, CARD)
    (seen,) = vendor.Stepping.leases
    (lease,) = host.manager.store.leases(uuid_of(1))
    assert (seen.uuid, seen.consumer, seen.address) == (
        lease.uuid,
        uuid_of(1),
        lease.address,
    )
    assert seen.functions == lease.functions
    assert [each.driver for each in seen.prior] == [lease.prior[0].driver]


#: The fields of a lease that no plugin gets, each with the reason. A new field of
#: Lease is in LeaseView, or here.
WITHHELD = {
    "owner": "a plug by Nova and one by command prepare a device alike",
    "state": "each method is called in one state only",
    "request": "a fingerprint, which only the same os_acc can compare",
    "request_size": "counts the leases of the fingerprint",
    "epoch": "orders the calls of the helper, which checks it for the plugin's steps",
    "reason": "the text of the last failed release, for operators",
    "plugin": "the name of the plugin itself",
    "is_spare": "whether allocations count the unit; the device is prepared alike",
    "outstanding": "includes each action whose method is called",
    "never_held": "recorded when the lease of a failed plug ends",
    "peers": "recorded once the device is prepared",
}
#: The fields that a plugin gets in part, under another name.
CONVERTED = {"arq": "request_uuid", "programming": "region"}


def test_a_plugin_gets_each_fact_of_the_lease_that_is_not_bookkeeping(host):
    own, seen = ({e.name for e in dataclasses.fields(k)} for k in (Lease, LeaseView))
    assert own - seen == WITHHELD.keys() | CONVERTED.keys()
    host.plug(1, CARD)
    (lease,) = host.manager.store.leases(uuid_of(1))
    lease = dataclasses.replace(
        lease, arq=uuid_of(7), programming=Programming(REGION, None)
    )
    assert (lease.request_uuid, lease.region) == (uuid_of(7), REGION)


def test_a_step_gets_the_target_of_the_lease(host, let_plugin_run):
    let_plugin_run("prepare", vendor.describe)
    host.plug(1, CARD)
    (lease,) = host.manager.store.leases(uuid_of(1))
    assert vendor.Stepping.results == [(lease.uuid, CARD, (CARD,), "")]


@pytest.mark.parametrize(
    ("step", "kind", "text", "hint"),
    [
        (
            (vendor.refuse, errno.EIO),
            exception.HostStepFailed,
            "the privileged step tests.unit.vendor_steps.refuse failed at mode: EIO",
            "",
        ),
        (
            (vendor.crash,),
            exception.HostStepFailed,
            "the privileged step tests.unit.vendor_steps.crash raised RuntimeError",
            "defect of the plugin",
        ),
        ((vendor.leave,), exception.HelperLost, "worker was killed", ""),
        (
            (vendor.set_node, "1"),
            exception.PluginFailed,
            "set_node is called with ('1',), which does not match its parameters",
            "",
        ),
    ],
)
def test_a_failed_step_fails_the_plug(host, let_plugin_run, step, kind, text, hint):
    let_plugin_run("prepare", *step)
    with pytest.raises(kind) as caught:
        host.plug(1, CARD)
    assert text in str(caught.value)
    assert hint in str(caught.value.hint)
    assert not host.plugged(1)
    assert host.drivers(CARD) != ["vfio-pci"]


def test_a_step_that_hangs_fails_the_plug(host, monkeypatch):
    host.manager  # noqa: B018 - starts the service
    host.kernel.hang(CARD, "numa_node")
    monkeypatch.setattr(client, "_LONGEST_STEP", 0.5)
    with pytest.raises(exception.DeviceStuck, match=CARD):
        host.plug(1, CARD)
    host.end_faults()


def test_a_step_has_the_time_that_the_plug_has_left(host, let_plugin_run):
    let_plugin_run("prepare", vendor.seconds_left)
    host.restart(write_timeout=60.0, plug_timeout=400.0)
    host.plug(1, CARD)
    (seconds,) = vendor.Stepping.results
    assert 60 < seconds <= 400


def test_a_release_whose_step_lacks_memory_is_repeated(host, let_plugin_run):
    host.plug(1, CARD)
    let_plugin_run("release", vendor.refuse, errno.ENOMEM)
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    assert host.lease_state() is LeaseState.RELEASING
    let_plugin_run("release", vendor.set_node, 0)
    assert host.unplug(1) == 1


def test_a_function_that_vanished_in_a_guest_has_nothing_to_release(host):
    host.plug(1, CARD)
    host.kernel.hot_unplug(CARD)
    assert host.unplug(1) == 1
    assert host.plugged(1) == []
    assert vendor.Stepping.results == ["1"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV])
def test_a_release_whose_step_fails_is_quarantined(host, let_plugin_run, number):
    """The function is there, also if the step does not find it."""
    host.plug(1, CARD)
    let_plugin_run("release", vendor.refuse, number)
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    assert host.lease_state() is LeaseState.QUARANTINED


def test_a_release_that_declares_its_function_gone_is_not_trusted(host, monkeypatch):
    gone = exception.DeviceGone("the tool sees no card")
    host.plug(1, CARD)
    monkeypatch.setattr(vendor.Stepping, "release", mock.Mock(side_effect=gone))
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    assert host.lease_state() is LeaseState.QUARANTINED


def test_a_step_continues_above_the_epochs_that_its_device_has_seen(
    host, let_a_device_see
):
    """As after the loss of the store."""
    (lease,) = (host.plug(1, CARD), host.manager.store.leases(uuid_of(1)))[1]
    host.unplug(1)
    let_a_device_see(CARD, lease.epoch + 10**9)
    host.plug(2, CARD)
    assert vendor.Stepping.results == ["1", "0", "1"]
