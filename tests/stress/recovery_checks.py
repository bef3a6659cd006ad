# SPDX-License-Identifier: Apache-2.0

"""Checks of host and state after a crash and a new start."""

from __future__ import annotations

from collections.abc import Iterable

from os_acc.attach.manager import Manager
from os_acc.host import mdev
from os_acc.objects.lease import Lease, LeaseState
from os_acc.testing import FakeKernel, Snapshot, TestHost, Write, WriteOutcome
from tests.stress.flows import BYSTANDER, BYSTANDERS, INSTANCE, MIGRATION, Flow
from tests.stress.simulated_host import by_consumer, unfinished

VFIO = "vfio-pci"


def check_recovered(
    flow: Flow, manager: Manager, kernel: FakeKernel, start: Snapshot
) -> None:
    """Check that each plug is undone or complete; no lease lost, doubled or hollow.

    :param start: the host before the flow's leases were made.
    """
    leases = manager.store.leases()
    members = [str(address) for lease in leases for address in lease.members]
    assert len(members) == len(set(members)), "a device with two leases"
    for lease in unfinished(leases):
        names = {str(address) for address in lease.members}
        assert names & flow.in_use(), f"{lease.address} is {lease.state}"

    held = by_consumer(leases)
    ours = [*held.get(INSTANCE, ()), *held.get(MIGRATION, ())]
    strange = set(held) - {INSTANCE, MIGRATION, BYSTANDER}
    assert not (held.get(INSTANCE) and held.get(MIGRATION)), "leases are split"
    assert len(ours) in flow.counts, f"{len(ours)} leases"
    assert not strange, f"leases of {strange}"
    ready = [lease for lease in leases if lease.consumer not in flow.unready]
    check_bound(ready, kernel)

    before = {each.address: each for each in start}
    for now in kernel.snapshot():
        if now.address in members or now.address in flow.strays:
            continue
        as_it_was = before.get(now.address, now)
        assert (now.driver, now.driver_override) == (
            as_it_was.driver,
            as_it_was.driver_override,
        ), f"not leased, not restored: {now}"


def check_bound(leases: Iterable[Lease], kernel: FakeKernel) -> None:
    """Check that a held device is bound with all its functions."""
    drivers = {each.address: each.driver for each in kernel.snapshot()}
    for lease in leases:
        if lease.state is not LeaseState.HELD:
            continue
        for address in lease.functions:
            driver = drivers[str(address)]
            expected = lease.driver_of(address)
            assert driver == expected, f"{lease.address} is held, {address} on {driver}"
        if lease.slot is not None:
            created = mdev.read_mdev(kernel.root, lease.uuid)
            assert created is not None, f"{lease.address} is held, but does not exist"
            assert created.type == lease.slot.type


def check_untouched(flow: Flow, writes: list[Write]) -> None:
    """Check that no write went to the device of a running guest, or had to wait.

    :param writes: those since the flow began.
    """
    held = {BYSTANDERS, *flow.in_use()}
    for write in writes:
        assert write.outcome != WriteOutcome.BLOCKED, f"unbound in use: {write}"
        named = {write.text.strip(), *write.path.split("/")}
        assert not named & held, f"a guest runs with it: {write}"


def check_left_alone(
    kernel: FakeKernel, leases: Iterable[Lease], device: str, writes: list[Write]
) -> None:
    """Check that a device with a worker still at work was not touched.

    :param device: the name of the worker's lock.
    :param writes: those of the recovery, which found the worker at work.
    """
    slots = {str(lease.slot): lease for lease in leases if lease.slot is not None}
    group = None if device in slots else kernel.group(device)
    for write in writes:
        about = {write.text.strip(), *write.path.split("/")}
        if device in slots:
            assert slots[device].uuid not in about, f"overtaken: {write}"
            continue
        for each in kernel.snapshot():
            if each.address in about:
                assert kernel.group(each.address) != group, f"overtaken: {write}"


def unplug_all(manager: Manager) -> None:
    """Unplug all consumers, as a caller when the instances end."""
    for consumer in by_consumer(manager.store.leases()):
        manager.unplug({"uuid": consumer})
    assert manager.store.leases() == ()


def check_restored(bench: TestHost, pristine: Snapshot) -> None:
    """Check that the host is as it was before any plug."""
    kernel = bench.kernel
    assert kernel.snapshot() == pristine
    assert not any(each.driver == VFIO for each in kernel.snapshot())
