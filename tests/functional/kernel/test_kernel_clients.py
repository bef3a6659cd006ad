# SPDX-License-Identifier: Apache-2.0

"""A drive that only a client inside the kernel uses stays on its driver."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable

import pytest

from os_acc.host import pci, usage
from os_acc.objects.pci import PciAddress
from os_acc.privsep import binding, pci_functions, worker
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing.helper import privileged_here

from . import kernel_clients, lane, machine, sysfs
from .nvme_media import node_of

Client = Callable[[str], contextlib.AbstractContextManager[None]]


def call(entry: Callable[..., object], *more: object, lease: str) -> CallResult:
    """Call ``take`` or ``give_back`` for the drive."""
    drive = PciAddress.parse(machine.behind(lane.PORT_DRIVE))
    names = ("nvme", "") if entry is binding.give_back else ()
    target = (drive.parts, pci_functions.identity(drive), *names)
    with privileged_here():
        (found,) = entry(
            pci_functions.group(drive),
            (target,),
            worker.clock.now(),
            60_000,
            *more,
            lease,
        )
    return CallResult(*found)


@pytest.mark.parametrize(
    "client",
    [
        kernel_clients.loop_device,
        kernel_clients.nvme_target,
        kernel_clients.file_target,
    ],
)
def test_a_disk_that_a_kernel_client_has_not_claimed_is_used(client: Client) -> None:
    drive = PciAddress.parse(machine.behind(lane.PORT_DRIVE))
    node = node_of(str(drive), 2)
    functions = {drive: pci.scan("/").functions[drive]}
    with client(node):
        used = usage.read_usage("/", functions, {})[drive]
        assert used.startswith(f"{os.path.basename(node)} is open in a")
    assert usage.read_usage("/", functions, {}) == {}


@pytest.mark.parametrize(
    "client",
    [
        kernel_clients.journal,
        kernel_clients.log,
        kernel_clients.target,
        kernel_clients.target_on_partition,
    ],
)
def test_the_disk_of_a_kernel_client_is_not_taken(client: Client) -> None:
    drive, lease = machine.behind(lane.PORT_DRIVE), str(uuid.uuid4())
    node = node_of(drive, 2)
    before = sysfs.driver(drive), sysfs.override(drive)
    with client(node):
        # The kernel shows no user of it.
        name = os.path.basename(node)
        assert os.listdir(f"/sys/class/block/{name}/holders") == []
        refused = CallResult(Outcome.IN_USE, errno.EBUSY, pci_functions.DISK, name)
        assert call(binding.take, lease=lease) == refused
        assert (sysfs.driver(drive), sysfs.override(drive)) == before
    # The drive leaves its driver while the helper has its disks open.
    assert call(binding.take, lease=lease).outcome == Outcome.OK
    assert sysfs.driver(drive) == "vfio-pci"
    assert call(binding.give_back, False, lease=lease).outcome == Outcome.OK
    assert (sysfs.driver(drive), sysfs.override(drive)) == before
    node_of(drive, 1)
    node_of(drive, 2)
