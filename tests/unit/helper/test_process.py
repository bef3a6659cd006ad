# SPDX-License-Identifier: Apache-2.0

"""The helper serves calls as a process, which may get stuck or be killed."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures

import pytest
from oslo_config import cfg

from os_acc import exception
from os_acc.attach.manager import Manager
from os_acc.objects.lease import LeaseState
from os_acc.testing import FakeKernel, TestHost, WriteOutcome, helper, hosts, privileged
from os_acc.testing.demo import compute

INSTANCE = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
GPU = "0000:17:00.0"
OTHER_GPU = "0000:b1:00.0"
CLASS = "CUSTOM_ACCELERATOR_GPU"

CARDS = [
    {"address": f"{card}{number}"}
    for card in (GPU[:-1], OTHER_GPU[:-1])
    for number in (0, 1)
]


@pytest.fixture
def host(tmp_path: pathlib.Path) -> Iterator[TestHost]:
    spec = hosts.two_socket_host()
    host = TestHost(tmp_path, spec, device_spec=[json.dumps(CARDS)], write_timeout=60)
    with host.installed():
        yield host
    # A write that still hangs would keep its process for ever.
    host.kernel.lift()


@pytest.fixture
def kernel(host: TestHost) -> FakeKernel:
    return host.kernel


@pytest.fixture
def start(host: TestHost) -> Iterator[Callable[..., Manager]]:
    """Return a function that starts a service with helpers of its own."""
    with privileged.privileged_here():
        yield lambda **options: host.start_with_helpers(host.write_config(**options))
        for context in privileged.CONTEXTS:
            context.stop()
    cfg.CONF.clear()


def plug(manager: Manager, consumer: str = INSTANCE, address: str = GPU) -> list[str]:
    entries = manager.plug(
        {"uuid": consumer},
        {"uuid": _provider(manager, address)},
        {f"resources:{CLASS}": "1"},
    )
    return [entry["pci_id"] for entry in entries]


def _provider(manager: Manager, address: str) -> str:
    (uuid,) = (
        provider.uuid
        for provider in manager.providers()
        if str(provider.device.address) == address
    )
    return uuid


def blocked_writer(kernel: FakeKernel) -> int:
    """Return the process of the write that is blocked in the kernel."""
    return next(
        write.pid
        for write in reversed(kernel.writes())
        if write.outcome == WriteOutcome.BLOCKED
    )


def parent(pid: int) -> int:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("PPid:"))
    return int(line.split()[1])


def states(manager: Manager) -> list[LeaseState]:
    return [lease.state for lease in manager.store.leases()]


def test_the_helper_writes_and_the_caller_does_not(kernel, start):
    manager = start()
    before = kernel.snapshot()
    assert plug(manager) == [GPU]
    assert kernel.state(GPU).driver == "vfio-pci"
    assert manager.unplug({"uuid": INSTANCE}) == 1
    assert kernel.snapshot() == before
    writers = {write.pid for write in kernel.writes()}
    assert writers
    assert os.getpid() not in writers


def test_a_helper_that_cannot_start_is_told_at_once(start, tmp_path):
    with pytest.raises(exception.HelperUnavailable):
        start(helper_command=helper.command(tmp_path / "nowhere"))


def test_a_stuck_write_costs_one_caller_its_deadline_and_nobody_else(kernel, start):
    manager = start(write_timeout=1)
    before = kernel.snapshot()
    kernel.hang(GPU, "unbind")
    with pytest.raises(exception.DeviceStuck):
        plug(manager)
    assert states(manager) == [LeaseState.RELEASING]
    assert plug(manager, OTHER, OTHER_GPU) == [OTHER_GPU]
    kernel.lift()
    assert manager.unplug({"uuid": INSTANCE}) == 1
    assert manager.unplug({"uuid": OTHER}) == 1
    assert kernel.snapshot() == before


def test_a_helper_killed_in_mid_call_is_replaced_for_the_next_one(kernel, start):
    manager = start()
    before = kernel.snapshot()
    kernel.hang(GPU, "unbind")
    with futures.ThreadPoolExecutor(1) as pool:
        plugging = pool.submit(plug, manager)
        kernel.wait_until_blocked()
        first = parent(blocked_writer(kernel))
        os.kill(first, signal.SIGKILL)
        with pytest.raises(exception.HelperLost):
            plugging.result()
    # Its write is still in the kernel, so the device is not free.
    assert states(manager) == [LeaseState.RELEASING]
    kernel.hang(OTHER_GPU, "unbind")
    with futures.ThreadPoolExecutor(1) as pool:
        plugging = pool.submit(plug, manager, OTHER, OTHER_GPU)
        kernel.wait_until_blocked(2)
        assert parent(blocked_writer(kernel)) not in (first, os.getpid())
        kernel.lift()
        assert plugging.result() == [OTHER_GPU]
    assert manager.unplug({"uuid": INSTANCE}) == 1
    assert manager.unplug({"uuid": OTHER}) == 1
    assert kernel.snapshot() == before


def test_a_client_killed_with_a_call_running_loses_nothing(host, kernel, start):
    provider = _provider(start(), GPU)
    before = kernel.snapshot()
    kernel.hang(GPU, "unbind")
    program = [sys.executable, "-m", compute.__name__]
    arguments = [host.write_config(), kernel.root, INSTANCE, "guest", provider]
    client = subprocess.Popen([*program, *arguments])
    try:
        kernel.wait_until_blocked()
    finally:
        client.kill()
        client.wait()
    # Its helper still writes, so the next service has to leave the device alone.
    manager = start()
    assert states(manager) == [LeaseState.RELEASING]
    with pytest.raises(exception.NoDeviceAvailable):
        plug(manager, OTHER)
    kernel.lift()
    manager = start()
    assert states(manager) == []
    assert kernel.snapshot() == before
    assert plug(manager, OTHER) == [GPU]
