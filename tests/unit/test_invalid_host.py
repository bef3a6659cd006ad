# SPDX-License-Identifier: Apache-2.0

"""Faults of host, state or options are reported before anything is changed."""

import builtins
import errno
import math
import os
from pathlib import Path

import pytest

import os_acc
from os_acc import exception
from os_acc.attach import verification
from os_acc.inventory import discovery
from os_acc.testing import hosts, instance, request
from tests.unit.invalid_values import is_told

GPU = "0000:17:00.0"


# -- the host ----------------------------------------------------------------


def test_a_device_that_vanished_before_it_was_plugged(api):
    provider = api.provider(GPU)
    selected, specs = request(provider)
    api.kernel.hot_unplug("0000:17:00.1")
    api.kernel.hot_unplug(GPU)
    leases, writes = api.manager.store.leases(), api.kernel.writes()
    # No guest starts without its device, not even after a restart or where
    # only the allocation shows that it has requested one.
    api.restart()
    assert os_acc.requests_accelerators(specs)
    for chosen, flavor in (
        ({"uuid": provider.uuid}, specs),
        (selected, specs),
        (selected, {}),
        ({"allocations": selected["allocations"]}, specs),
    ):
        is_told(
            lambda chosen=chosen, flavor=flavor: os_acc.plug(
                instance(2), chosen, flavor
            ),
            exception.DeviceGone,
            provider.uuid,
        )
    assert (api.manager.store.leases(), api.kernel.writes()) == (leases, writes)


def test_a_device_that_vanishes_while_it_is_plugged(api, monkeypatch):
    provider = api.provider(GPU)
    selected, specs = request(provider)
    discover = discovery.discover

    def and_pull_out(*arguments):
        inventory = discover(*arguments)
        api.kernel.hot_unplug(GPU)
        return inventory

    monkeypatch.setattr(discovery, "discover", and_pull_out)
    leases, writes = api.manager.store.leases(), api.kernel.writes()
    is_told(
        lambda: os_acc.plug(instance(2), selected, specs), exception.DeviceGone, GPU
    )
    assert (api.manager.store.leases(), api.kernel.writes()) == (leases, writes)


def test_a_host_without_vfio_pci_serves_nothing_and_says_why(make_bench):
    bench = make_bench(hosts.without_vfio())
    error = is_told(lambda: bench.plug(1, GPU), exception.StepReason.VFIO, "vfio-pci")
    assert "modprobe vfio-pci" in error.hint
    assert bench.kernel.writes() == []
    assert bench.manager.store.leases() == ()


def test_a_device_on_the_denylist_is_not_offered_and_says_why(make_bench):
    bench = make_bench(hosts.denylist_host())
    assert "disable_denylist" in str(bench.rejected("0000:3d:00.0"))
    assert bench.kernel.writes() == []


# -- the state ---------------------------------------------------------------


def test_no_space_is_told_before_anything_is_changed(api, monkeypatch):
    selected, specs = request(api.provider(GPU))
    leases, before = api.manager.store.leases(), api.kernel.snapshot()
    writes = api.kernel.writes()

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        error = is_told(
            lambda: os_acc.plug(instance(2), selected, specs),
            exception.StateReason.FULL,
            api.state_path,
        )
    assert "free space" in error.hint
    assert (api.kernel.writes(), api.kernel.snapshot()) == (writes, before)
    assert api.manager.store.leases() == leases
    assert len(os_acc.plug(instance(2), selected, specs)) == 1


def test_no_permission_on_the_state_is_told_before_anything_is_changed(
    api, monkeypatch
):
    selected, specs = request(api.provider(GPU))
    before = api.kernel.snapshot()
    opened = open

    def refuse(name, *arguments, **options):
        if str(name).startswith(api.state_path):
            raise PermissionError(13, "Permission denied", name)
        return opened(name, *arguments, **options)

    with monkeypatch.context() as user:
        user.setattr(builtins, "open", refuse)
        for call in (
            lambda: os_acc.plug(instance(2), selected, specs),
            lambda: os_acc.unplug(instance(1)),
            os_acc.attached,
            api.restart,
        ):
            error = is_told(call, exception.StateUnavailable, "Permission denied")
            assert "state_path" in error.hint
    assert api.kernel.snapshot() == before


# -- options -----------------------------------------------------------------


def test_an_option_that_cannot_be_meant_stops_the_start(
    make_bench, tmp_path, monkeypatch
):
    bench = make_bench()
    monkeypatch.chdir(tmp_path)
    before = sorted(each.name for each in tmp_path.iterdir())
    for options, shown in (
        ({"device_spec": ["{"]}, "'{'"),
        ({"enabled_plugins": ["pcii"]}, "pcii"),
        ({"state_path": ""}, "''"),
        ({"state_path": "state"}, "'state'"),
        ({"state_path": "/\0"}, "x00"),
        ({"state_path": "/\ud800"}, "ud800"),
        ({"node_name": "\ud800"}, "ud800"),
        ({"node_name": "$nothing"}, "nothing"),
        ({"plug_timeout": None}, "None"),
        ({"write_timeout": math.nan}, "nan"),
        (
            {"device_spec": ['{"address": {"bus": "9-\ud800", "slot": "[9-\ud800"}}']},
            "ud800",
        ),
    ):
        error = is_told(
            lambda options=options: bench.restart(**options),
            exception.InvalidConfiguration,
            shown,
        )
        assert str(error).encode()
        assert bench.kernel.writes() == []
        assert sorted(each.name for each in tmp_path.iterdir()) == before


def test_no_deadline_is_further_than_the_clock_can_count(bench):
    for name in (
        "initialize_timeout",
        "plug_timeout",
        "unplug_timeout",
        "write_timeout",
        "helper_start_timeout",
        "release_retry_interval",
    ):
        for value in (math.inf, 86_401.0):
            with pytest.raises(ValueError, match="less than or equal"):
                bench.config(**{name: value})


def test_a_kernel_that_does_not_answer_a_read_keeps_no_caller(api, monkeypatch):
    monkeypatch.setattr(verification, "_READ_SECONDS", 0.2)
    provider = api.provider(GPU)
    override = f"{api.root}/sys/bus/pci/devices/{GPU}/driver_override"
    os.unlink(override)
    # Opening a FIFO without a writer blocks, as does the device's lock.
    os.mkfifo(override)
    writes = api.kernel.writes()
    is_told(
        lambda: os_acc.plug(instance(2), *request(provider)),
        exception.DeviceStuck,
        GPU,
    )
    assert api.kernel.writes() == writes
    os.close(os.open(override, os.O_RDWR | os.O_NONBLOCK))
    os.unlink(override)
    Path(override).write_text("(null)\n")
