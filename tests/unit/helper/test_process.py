# SPDX-License-Identifier: Apache-2.0

"""The privileged helper as a process: it serves, gets stuck, is killed."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures

import pytest
from oslo_config import cfg

from os_acc import exception, privsep, service
from os_acc.attach.manager import Manager
from os_acc.objects.lease import LeaseState, Owner
from os_acc.testing import FakeKernel, WriteOutcome, helper, hosts
from os_acc.testing.demo import compute

INSTANCE = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
GPU = "0000:17:00.0"
OTHER_GPU = "0000:b1:00.0"
CLASS = "CUSTOM_ACCELERATOR_GPU"

_CONFIG = """\
[os_acc]
state_path = {state}
device_spec = [{{"address": "{gpu}"}}, {{"address": "{gpu_audio}"}}]
device_spec = [{{"address": "{other}"}}, {{"address": "{other_audio}"}}]
write_timeout = {write_timeout}
[os_acc_base]
helper_command = {command}
[os_acc_inspect]
helper_command = {command}
"""


@pytest.fixture
def kernel(tmp_path: pathlib.Path) -> Iterator[FakeKernel]:
    kernel = FakeKernel.build(tmp_path / "host", hosts.two_socket_host())
    yield kernel
    # A write that still hangs would keep its process for ever.
    kernel.lift()


@pytest.fixture
def configure(kernel: FakeKernel, tmp_path: pathlib.Path) -> Callable[..., str]:
    """Write a configuration file for services on the fake host."""

    def write(write_timeout: float = 60, root: str = kernel.root) -> str:
        text = _CONFIG.format(
            state=tmp_path / "state",
            gpu=GPU,
            gpu_audio=GPU[:-1] + "1",
            other=OTHER_GPU,
            other_audio=OTHER_GPU[:-1] + "1",
            write_timeout=write_timeout,
            command=helper.command(root),
        )
        path = tmp_path / "os-acc.conf"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def start(kernel: FakeKernel, configure) -> Iterator[Callable[..., Manager]]:
    """Make a manager whose privileged code runs in helpers of its own."""
    contexts = (privsep.base, privsep.inspect)
    modes = [context.client_mode for context in contexts]
    for context in contexts:
        context.set_client_mode(True)

    def build(**options) -> Manager:
        compute.configure(configure(**options))
        return service.build(cfg.CONF, kernel.root, Owner.NOVA)

    yield build
    for context, mode in zip(contexts, modes, strict=True):
        context.stop()
        context.set_client_mode(mode)
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
    """The process of the write that waits in the kernel."""
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
        start(root=str(tmp_path / "nowhere"))


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


def test_a_client_killed_with_a_call_running_loses_nothing(kernel, start, configure):
    provider = _provider(start(), GPU)
    before = kernel.snapshot()
    kernel.hang(GPU, "unbind")
    program = [sys.executable, "-m", compute.__name__]
    arguments = [configure(), kernel.root, INSTANCE, "guest", provider]
    client = subprocess.Popen([*program, *arguments])
    try:
        kernel.wait_until_blocked()
    finally:
        client.kill()
        client.wait()
    # Its helper still writes: whoever comes next has to leave the device.
    manager = start()
    assert states(manager) == [LeaseState.RELEASING]
    with pytest.raises(exception.NoDeviceAvailable):
        plug(manager, OTHER)
    kernel.lift()
    manager = start()
    assert states(manager) == []
    assert kernel.snapshot() == before
    assert plug(manager, OTHER) == [GPU]
