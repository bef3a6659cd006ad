# SPDX-License-Identifier: Apache-2.0

"""Steps that name the parent of their device run one after the other."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from os_acc.helper import errors
from os_acc.objects.pci import PciAddress
from os_acc.privsep import Step, pci_functions, vendor_steps
from os_acc.privsep.kernel import LOCKS
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import (
    AttributeSpec,
    FakeKernel,
    FunctionSpec,
    HostSpec,
    MdevParentSpec,
    MdevTypeSpec,
    SriovSpec,
)
from os_acc.testing.helper import privileged_here
from os_acc.testing.mdevs import mtty
from tests.unit import vendor_steps as vendor

BRIEFLY = vendor.BRIEFLY
LEASES = [f"{number:08x}-1111-4111-8111-111111111111" for number in range(8)]
FIRST, SECOND = PciAddress(0, 0x3B, 0, 0), PciAddress(0, 0x5E, 0, 0)
NOWHERE = PciAddress(0, 0x77, 0, 0)


def vf(pf: PciAddress, index: int) -> PciAddress:
    return PciAddress(pf.domain, pf.bus, 2, index)


def card(pf: PciAddress) -> FunctionSpec:
    return FunctionSpec(
        str(pf),
        0xACE0,
        0x0E10,
        0x120000,
        "acme",
        driver_attributes=(
            AttributeSpec(vendor.USERS, "0", vendor.set_users, stays=True),
        ),
        sriov=SriovSpec(4, 0x0E11, boot_vfs=4),
        mdevs=MdevParentSpec(str(pf), 4, (MdevTypeSpec("acme-1"),)),
    )


@pytest.fixture(autouse=True)
def kernel(tmp_path: Path) -> Iterator[FakeKernel]:
    spec = HostSpec((card(FIRST), card(SECOND)), mdev_parents=(mtty(),))
    kernel = FakeKernel.build(tmp_path, spec)
    with privileged_here(), kernel.installed():
        yield kernel


def call(
    step: Step[Any, *tuple[Any, ...]],
    device: PciAddress | tuple[str, str, int],
    *arguments: object,
    members: tuple[PciAddress, ...] = (),
    number: int = 0,
    milliseconds: int = 60_000,
) -> CallResult:
    """Call a step for the lease of this number, whose epoch is lower than others."""
    if isinstance(device, PciAddress):
        members, parts = members or (device,), device.parts
    else:
        parts = device
    named = tuple((each.parts, pci_functions.identity(each)) for each in members)
    epoch, lease = 100 - number, LEASES[number]
    return CallResult(*step(parts, named, (), epoch, milliseconds, lease, arguments))


def at_once(
    step: Step[Any, int, int], count: int = 4, looks: int = vendor.BRIEFLY
) -> list[CallResult]:
    """Call a step for each VF of a card at once."""
    with futures.ThreadPoolExecutor(count) as threads:
        calls = [
            threads.submit(call, step, vf(FIRST, index), 1, looks, number=index)
            for index in range(count)
        ]
        return [each.result() for each in calls]


def users(pf: PciAddress = FIRST) -> int:
    return int(pci_functions.read(pf, vendor.USERS))


def locks(kernel: FakeKernel) -> set[str]:
    return set(os.listdir(kernel.path(LOCKS)))


@contextlib.contextmanager
def held(kernel: FakeKernel, name: str) -> Iterator[None]:
    """Hold a lock as the step of another process does."""
    os.makedirs(kernel.path(LOCKS), exist_ok=True)
    with open(kernel.path(LOCKS, name), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_no_step_misses_the_change_of_a_siblings_step():
    """Their epochs are unrelated: that of the last call may be the lowest."""
    assert [each.outcome for each in at_once(vendor.add_users)] == [Outcome.OK] * 4
    assert users() == 4


def test_steps_that_do_not_name_the_parent_overlap():
    at_once(vendor.add_users_alone, 2, vendor.LONG)
    assert users() == 1


def test_steps_for_other_parents_go_on(kernel):
    with held(kernel, f"parent@{FIRST}"):
        assert call(vendor.add_users, vf(SECOND, 0), 1, BRIEFLY).outcome == Outcome.OK
    assert (users(FIRST), users(SECOND)) == (0, 1)


def test_a_step_waits_until_its_deadline_alone(kernel):
    with held(kernel, f"parent@{FIRST}"):
        answer = call(vendor.add_users, vf(FIRST, 0), 1, BRIEFLY, milliseconds=50)
    assert answer == CallResult(Outcome.BUSY, errno.EBUSY, "lock", str(FIRST))
    error = errors.of_answer(str(vf(FIRST, 0)), answer)
    assert error.message.endswith(f"an earlier step for {FIRST} has not ended")
    assert call(vendor.add_users, vf(FIRST, 0), 1, BRIEFLY).outcome == Outcome.OK


@pytest.mark.parametrize("place", ["the VF", "the card"])
def test_other_steps_do_not_wait_for_that_of_a_sibling(kernel, place):
    waiting = held(kernel, f"parent@{FIRST}")
    with waiting:
        if place == "the VF":
            answer = call(vendor.set_node, vf(FIRST, 0), 1)
        else:
            target = FIRST.parts, pci_functions.identity(FIRST)
            answer = CallResult(*vendor.users(target, 5_000, ()))
    assert answer.outcome == Outcome.OK


def has_opened(path: str) -> bool:
    """Return whether this process has a file open more than once."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found.count(path) > 1


def test_a_step_that_waits_holds_no_device(kernel):
    name = f"parent@{FIRST}"
    with futures.ThreadPoolExecutor(1) as threads, held(kernel, name):
        waiting = threads.submit(call, vendor.add_users, vf(FIRST, 0), 1, BRIEFLY)
        while not has_opened(kernel.path(LOCKS, name)):
            assert not waiting.done()
        # The call of a plug or an unplug of the same VF.
        other = call(vendor.set_node, vf(FIRST, 0), 1, number=2)
        assert not waiting.done()
    assert other.outcome == waiting.result().outcome == Outcome.OK


def test_steps_of_leases_with_functions_of_several_cards_end():
    """Each order of the functions leads to one order of the locks."""
    pairs = [
        (vf(FIRST, 0), vf(SECOND, 0)),
        (vf(SECOND, 1), vf(FIRST, 1)),
        (vf(SECOND, 2), vf(FIRST, 2)),
        (vf(FIRST, 3), vf(SECOND, 3)),
    ]
    with futures.ThreadPoolExecutor(len(pairs)) as threads:
        calls = [
            threads.submit(
                call, vendor.add_users, pair[0], 1, BRIEFLY, members=pair, number=number
            )
            for number, pair in enumerate(pairs)
            for _ in range(3)
        ]
        outcomes = {each.result().outcome for each in calls}
    assert outcomes == {Outcome.OK}
    assert users(FIRST) + users(SECOND) == 12


def test_a_mediated_device_shares_the_lock_of_its_parent(kernel):
    slot = (str(FIRST), "acme-1", 0)
    with held(kernel, f"parent@{FIRST}"):
        answer = call(
            vendor.add_users, slot, 1, BRIEFLY, members=(FIRST,), milliseconds=50
        )
    assert answer.outcome == Outcome.BUSY
    assert (
        call(vendor.add_users, slot, 1, BRIEFLY, members=(FIRST,)).outcome == Outcome.OK
    )
    assert users() == 1


def test_devices_of_a_virtual_parent_share_its_lock(kernel):
    slot = ("mtty", "mtty-2", 0)
    with held(kernel, "parent@mtty"):
        answer = call(vendor.describe_parent, slot, milliseconds=50)
    assert answer.outcome == Outcome.BUSY
    assert vendor_steps.decode(call(vendor.describe_parent, slot).observed) == ("", ())


def test_a_step_knows_its_parent_and_its_siblings():
    every = tuple(str(vf(FIRST, index)) for index in range(4))
    of_vf = call(vendor.describe_parent, vf(FIRST, 1))
    assert vendor_steps.decode(of_vf.observed) == (str(FIRST), every)


def test_only_a_step_that_names_the_parent_makes_its_lock(kernel):
    call(vendor.set_node, vf(FIRST, 0), 1)
    assert locks(kernel) == {str(vf(FIRST, 0))}
    call(vendor.add_users, vf(FIRST, 0), 1, BRIEFLY)
    assert locks(kernel) == {str(vf(FIRST, 0)), f"parent@{FIRST}"}


def test_a_call_for_a_missing_function_makes_no_lock(kernel):
    identity = pci_functions.identity(FIRST)
    target = (NOWHERE.parts, ((NOWHERE.parts, identity),), ())
    answer = vendor.add_users(*target, 1, 1_000, LEASES[0], (1, BRIEFLY))
    assert CallResult(*answer).outcome == Outcome.GONE
    assert not os.path.exists(kernel.path(LOCKS))
