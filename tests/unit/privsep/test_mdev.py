# SPDX-License-Identifier: Apache-2.0

"""The privileged steps that create and remove mediated devices."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.helper import errors
from os_acc.objects.lease import HelperRecord
from os_acc.objects.mdev import MdevSlot, MdevType
from os_acc.privsep import claims, holders, locks, mdev, record
from os_acc.privsep.kernel import COPIES, LOCKS
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.step import StepPurpose
from os_acc.testing import FakeKernel, HostSpec, hosts
from os_acc.testing.helper import privileged_here
from os_acc.testing.mdevs import mtty
from tests.unit import vendor_steps as vendor
from tests.unit.privsep.root_config import limit_to

GPU = "0000:17:00.0"
LEASE = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
OK = CallResult(Outcome.OK)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[FakeKernel]:
    """Return a kernel with mtty, and with a GPU that is a parent of the same kind."""
    display, audio = hosts.gpu("0000:17")
    parent = dataclasses.replace(mtty(), name=GPU)
    display = dataclasses.replace(display, mdevs=parent)
    spec = HostSpec((display, audio), mdev_parents=(mtty(),))
    with privileged_here(), FakeKernel.build(tmp_path, spec).installed() as kernel:
        yield kernel


def create(
    kind: str = "mtty-1", uuid: str = LEASE, parent: str = "mtty", epoch: int = 1
) -> CallResult:
    return CallResult(*mdev.create((parent, kind, 0), uuid, epoch, 30_000))


def remove(uuid: str = LEASE, parent: str = "mtty") -> CallResult:
    return CallResult(*mdev.remove((parent, "mtty-1", 0), uuid, 1, 30_000))


def existing(kernel: FakeKernel) -> list[str]:
    return sorted(os.listdir(f"{kernel.root}/sys/bus/mdev/devices"))


@pytest.mark.parametrize("parent", ["mtty", GPU])
def test_both_steps_may_be_repeated(kernel, parent):
    assert [create(parent=parent), create(parent=parent)] == [OK, OK]
    assert existing(kernel) == [LEASE]
    assert [remove(parent=parent), remove(parent=parent)] == [OK, OK]
    assert existing(kernel) == []


def test_one_of_another_type_is_not_taken_for_it(kernel):
    create("mtty-2")
    assert create().outcome == Outcome.CHANGED
    assert create(parent=GPU).outcome == Outcome.CHANGED


def test_a_parent_without_capacity_refuses(kernel):
    kernel.fail(attribute="create", error=errno.EUSERS)
    refused = create()
    assert (refused.outcome, refused.errno) == (Outcome.REFUSED, errno.EUSERS)


@pytest.mark.parametrize("has_lock", [False, True])
def test_a_type_that_its_parent_no_longer_offers_is_named(kernel, has_lock):
    """Its driver was reloaded with others."""
    if has_lock:
        assert [create(), remove()] == [OK, OK]
    shutil.rmtree(f"{kernel.root}/sys/class/mdev_bus/mtty/{locks.TYPES}/mtty-1")
    error = errors.of_answer(str(SLOT), create())
    assert isinstance(error, exception.DeviceGone)
    assert error.message == (
        "mtty/mtty-1/0: its parent offers this type no more, but mtty-2"
    )
    assert remove() == OK


def test_a_create_without_effect_is_reported(kernel):
    kernel.ignore(attribute="create")
    assert create().outcome == Outcome.NO_EFFECT


def test_a_remove_without_effect_is_reported(kernel):
    create()
    kernel.ignore(attribute="remove")
    assert remove().outcome == Outcome.NO_EFFECT


def test_an_open_one_is_not_removed(kernel):
    create()
    kernel.hold(LEASE, pid=4711, command="qemu")
    assert remove().outcome == Outcome.IN_USE
    assert holders.mdev_holders(LEASE) == (
        Outcome.IN_USE,
        errno.EBUSY,
        ((4711, "qemu"),),
    )
    kernel.let_go(LEASE)
    assert holders.mdev_holders(LEASE) == (Outcome.OK, 0, ())
    assert remove() == OK


#: A call for a slot.
CALL = (("mtty", "mtty-1", 0), LEASE, 1, 30_000)
ON_GPU = (GPU, "mtty-1", 0)
#: The calls for one that the plugin acme has to release.
MAKE, OWED = (*CALL, "acme"), (*CALL, True)
SLOT = MdevSlot(MdevType("mtty", "mtty-1"), 0)


def test_a_slot_stays_on_record_until_its_plugin_has_released_it(kernel):
    assert CallResult(*mdev.create(*MAKE)) == OK
    limit_to(kernel.root)
    owe = functools.partial(mdev.remove, *OWED)
    assert [CallResult(*owe()), CallResult(*owe())] == [OK, OK]
    assert existing(kernel) == []
    assert mdev.holder_of(SLOT) == LEASE
    # A late call of another lease ends nothing.
    assert remove(OTHER) == OK
    assert mdev.holder_of(SLOT) == LEASE
    assert [remove(), remove()] == [OK, OK]
    assert mdev.holder_of(SLOT) is None


def test_a_removal_records_no_slot(kernel):
    """The record would permit the steps of a plugin on a parent that no file names.

    The mediated device may be Nova's, and open.
    """
    create()
    limit_to(kernel.root)
    kernel.hold(LEASE, pid=4711, command="qemu")
    assert CallResult(*mdev.remove(*OWED)).outcome == Outcome.IN_USE
    assert mdev.holder_of(SLOT) is None


def test_the_record_of_a_slot_ends_without_its_parent_as_well(kernel):
    slot = MdevSlot(MdevType(GPU, "mtty-1"), 0)
    assert CallResult(*mdev.create(ON_GPU, *MAKE[1:])) == OK
    kernel.hot_unplug(GPU)
    assert CallResult(*mdev.remove(ON_GPU, *OWED[1:])) == OK
    assert record.exists(slot)
    assert remove(parent=GPU) == OK
    assert not record.exists(slot)


@pytest.mark.parametrize("parent", ["mtty", GPU])
def test_a_recorded_slot_is_listed(kernel, parent):
    assert CallResult(*mdev.create((parent, "mtty-1", 0), *MAKE[1:])) == OK
    (found,) = (HelperRecord.of(*each) for each in claims.claimed())
    slot = MdevSlot(MdevType(parent, "mtty-1"), 0)
    assert found == HelperRecord(slot, LEASE, releaser="acme")
    assert remove(parent=parent) == OK
    assert claims.claimed() == ()


def test_a_recorded_slot_is_created_for_no_other_lease(kernel):
    assert CallResult(*mdev.create(*MAKE)) == OK
    refused = create(uuid=OTHER)
    assert (refused.outcome, refused.observed) == (Outcome.CLAIMED, LEASE)
    assert existing(kernel) == [LEASE]
    assert create() == OK
    assert remove() == OK
    assert create(uuid=OTHER) == OK


@pytest.mark.parametrize("purpose", StepPurpose)
def test_a_step_leaves_the_slot_of_another_lease_alone(kernel, purpose):
    def step(lease: str) -> CallResult:
        call = (CALL[0], (), (), 1, 30_000, lease, (), str(purpose), "acme")
        return CallResult(*vendor.describe(*call))

    assert CallResult(*mdev.create(*MAKE)) == OK
    refused = step(OTHER)
    assert (refused.outcome, refused.observed) == (Outcome.CLAIMED, LEASE)
    assert mdev.holder_of(SLOT) == LEASE
    assert step(LEASE).outcome == Outcome.OK


def test_a_slot_without_a_mediated_device_is_claimed_as_well(kernel):
    """Its plugin has prepared it, or has not released it yet."""
    assert CallResult(*mdev.create(*MAKE)) == OK
    assert CallResult(*mdev.remove(*OWED)) == OK
    assert create(uuid=OTHER).outcome == Outcome.CLAIMED
    assert existing(kernel) == []


def damage(kernel: FakeKernel, slot: MdevSlot) -> None:
    name = f"{record.name_of(slot)}.lease"
    path = Path(kernel.root, LOCKS, name)
    path.write_text(path.read_text().replace("acme", "acmf"))


def test_a_damaged_record_is_of_no_lease_until_it_is_replaced(kernel):
    assert CallResult(*mdev.create(*MAKE)) == OK
    damage(kernel, SLOT)
    assert mdev.holder_of(SLOT) == record.UNREADABLE
    assert {create().outcome, create(uuid=OTHER).outcome} == {Outcome.CLAIMED}
    # It may be another lease's: only an operator's call replaces it.
    assert remove() == OK
    assert mdev.holder_of(SLOT) == record.UNREADABLE
    call = (CALL[0], OTHER, 1, 30_000)
    assert CallResult(*mdev.repair_record(*call, "acme")) == OK
    assert mdev.holder_of(SLOT) == OTHER
    assert CallResult(*mdev.repair_record(*CALL, "acme")) == OK
    assert mdev.holder_of(SLOT) == OTHER


@pytest.mark.parametrize("pulled", [False, True])
def test_a_damaged_record_of_no_plugin_or_no_parent_is_removed(kernel, pulled):
    slot = MdevSlot(MdevType(GPU, "mtty-1"), 0)
    assert CallResult(*mdev.create(ON_GPU, *MAKE[1:])) == OK
    damage(kernel, slot)
    if pulled:
        kernel.hot_unplug(GPU)
    releaser = "acme" if pulled else ""
    assert CallResult(*mdev.repair_record(ON_GPU, *CALL[1:], releaser)) == OK
    assert not record.exists(slot)


def test_a_slot_without_a_record_gets_none(kernel):
    assert CallResult(*mdev.repair_record(*MAKE)) == OK
    assert not os.path.exists(f"{kernel.root}/run/os_acc")


def test_the_record_of_a_replaced_parent_claims_nothing(kernel):
    assert CallResult(*mdev.create(ON_GPU, *MAKE[1:])) == OK
    card = kernel.hot_unplug(GPU)
    kernel.hot_plug(dataclasses.replace(card, subsystem_product=0x1234))
    assert claims.claimed() == ()
    assert create(uuid=OTHER, parent=GPU) == OK


def test_a_denied_slot_is_not_recorded(kernel):
    limit_to(kernel.root)
    assert CallResult(*mdev.create(*MAKE)).outcome == Outcome.DENIED
    assert mdev.holder_of(SLOT) is None


def test_an_earlier_call_comes_too_late(kernel):
    create(epoch=5)
    assert create(uuid=OTHER, epoch=4).outcome == Outcome.STALE
    assert existing(kernel) == [LEASE]


def test_calls_for_other_slots_have_epochs_of_their_own(kernel):
    create(epoch=5)
    answer = mdev.create(("mtty", "mtty-1", 1), OTHER, 4, 30_000)
    assert CallResult(*answer) == OK
    assert existing(kernel) == [LEASE, OTHER]


def test_a_missing_parent_leaves_no_lock(kernel):
    assert create(parent="nonesuch").outcome == Outcome.GONE
    assert remove(parent="nonesuch") == OK
    assert not os.path.exists(f"{kernel.root}/run/os_acc")


@pytest.mark.parametrize(
    ("spec", "parent", "kind", "outcome"),
    [
        ('{"mdev_parent": "mtty", "mdev_types": "mtty-1"}', "mtty", "mtty-1", "ok"),
        ('{"mdev_parent": "mtty", "mdev_types": "mtty-1"}', "mtty", "mtty-2", "denied"),
        ('{"mdev_parent": "mtty", "mdev_types": "mtty-1"}', GPU, "mtty-1", "denied"),
        ('{"address": "*"}', "mtty", "mtty-1", "denied"),
    ],
)
def test_roots_configuration_names_parent_and_type(kernel, spec, parent, kind, outcome):
    limit_to(kernel.root, spec)
    assert create(kind, parent=parent).outcome == outcome
    assert bool(existing(kernel)) == (outcome == OK.outcome)


def test_one_that_left_roots_configuration_is_still_removed(kernel):
    create()
    limit_to(kernel.root)
    assert remove() == OK


def test_one_of_another_type_or_parent_is_not_removed(kernel):
    """The UUID may be that of another service's."""
    create("mtty-2", parent=GPU)
    answer = remove()
    assert answer.outcome == Outcome.CHANGED
    assert existing(kernel) == [LEASE]


def test_invalid_arguments_reach_no_file(kernel):
    for arguments in (
        (("../mtty", "mtty-1", 0), LEASE, 1, 1000),
        (("mtty", "a/b", 0), LEASE, 1, 1000),
        (("mtty", "mtty-1", 0), LEASE.upper() + "x", 1, 1000),
        (("mtty", "mtty-1", 0), LEASE, -1, 1000),
        (("mtty", "mtty-1", 0), LEASE, 1, 0),
        ((b"mtty", "mtty-1", 0), LEASE, 1, 1000),
        ((".", "mtty-1", 0), LEASE, 1, 1000),
        (("mtty", "mtty-1", -1), LEASE, 1, 1000),
        (("mtty", "mtty-1", True), LEASE, 1, 1000),
        (("m" * 97, "mtty-1", 0), LEASE, 1, 1000),
    ):
        for step in (mdev.create, mdev.remove, mdev.repair_record):
            assert CallResult(*step(*arguments)).outcome == Outcome.INVALID, arguments
    assert kernel.writes() == []


def test_the_record_of_a_slot_claims_no_parent_after_a_reboot(kernel):
    """A reboot ends mediated devices."""
    os.makedirs(kernel.path("run/os_acc"))
    mdev.record_slot(MdevSlot(MdevType(GPU, "mtty-1"), 0), LEASE, "acme")
    shutil.rmtree(kernel.path("run"))
    assert claims.claimed() == ()
    assert not os.path.exists(kernel.path(COPIES))
