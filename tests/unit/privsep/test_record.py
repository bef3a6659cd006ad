# SPDX-License-Identifier: Apache-2.0

"""The helper keeps its own record of the functions that it has taken."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from os_acc.objects.lease import HelperRecord
from os_acc.objects.pci import PciAddress
from os_acc.privsep import binding, claims, kernel, pci_functions, record, worker
from os_acc.privsep.kernel import COPIES, LOCKS
from os_acc.privsep.outcome import FILES, CallResult, Outcome
from os_acc.privsep.record import DeviceRecord, FunctionUse
from os_acc.testing import FakeKernel
from os_acc.testing.helper import privileged_here
from tests.unit.privsep.nvme_drives import PF, VF

MINE = "11111111-1111-4111-8111-111111111111"
OTHERS = "22222222-2222-4222-8222-222222222222"
GPU, AUDIO = PciAddress(0, 0x17, 0, 0), PciAddress(0, 0x17, 0, 1)
OK = CallResult(Outcome.OK)


def targets(*places: PciAddress):
    return tuple((place.parts, pci_functions.identity(place)) for place in places)


def take(lease: str = MINE, *places: PciAddress):
    places = places or (GPU, AUDIO)
    group = pci_functions.group(places[0])
    return binding.take(group, targets(*places), 1, 30_000, lease)


def give_back(lease: str = MINE, driver: str = "nouveau", *, place=GPU, eraser=""):
    given = ((*targets(place)[0], driver, ""),)
    group = pci_functions.group(place)
    (answer,) = binding.give_back(group, given, 1, 30_000, True, lease, eraser)
    return answer


def reserve(lease: str = MINE, instead_of: str = "", use: str = "host", *, place=GPU):
    group = pci_functions.group(place)
    (answer,) = claims.reserve(group, targets(place), 1, 30_000, lease, use, instead_of)
    return answer


def forget(lease: str = MINE, place: PciAddress = GPU) -> CallResult:
    (answer,) = claims.forget((place.parts,), 1, 30_000, lease)
    return answer


def claimed_for(lease: str, place: PciAddress = GPU) -> CallResult:
    return CallResult(Outcome.CLAIMED, 16, str(place), lease)


def path(fake, place: PciAddress = GPU) -> str:
    return f"{fake.root}/{LOCKS}/{place}.lease"


@pytest.fixture
def damaged(fake) -> str:
    """Damage one bit of a record, and return the record's path."""
    reserve()
    with open(path(fake), "r+b") as file:
        content = bytearray(file.read())
        content[len(content) // 2] ^= 4
        file.seek(0)
        file.write(content)
    return path(fake)


# -- recorded bindings ---------------------------------------------------------


def test_what_is_taken_is_recorded_as_the_helper_found_it(fake):
    fake.write(fake.path("sys/bus/pci/devices", str(AUDIO), "driver_override"), "x-1")
    assert take() == (OK, OK)
    identity = pci_functions.identity(GPU)
    assert record.read(GPU) == DeviceRecord(
        MINE, GPU, identity, "nouveau", "", FunctionUse.GUEST
    )
    assert record.read(AUDIO).override == "x-1"
    assert claims.claimed() == (
        (GPU.parts, MINE, "guest", "nouveau", "", "", "", "", ""),
        (AUDIO.parts, MINE, "guest", "snd_hda_intel", "x-1", "", "", "", ""),
    )


def test_it_is_recorded_before_anything_is_changed(fake):
    fake.kill(str(GPU), "driver_override")
    killed, _ = take()
    assert killed.outcome == Outcome.NO_EFFECT
    assert record.read(GPU).driver == "nouveau"
    assert fake.state(str(GPU)).driver == "nouveau"


def test_a_record_is_roots_alone(fake):
    take()
    assert os.stat(path(fake)).st_mode & 0o777 == 0o600


def test_nothing_is_taken_where_it_cannot_be_recorded(fake):
    os.makedirs(f"{path(fake)}.new")
    refused, unreached = take()
    assert (refused.outcome, refused.step) == (Outcome.REFUSED, f"{GPU}.lease.new")
    assert unreached.outcome == Outcome.UNREACHED
    assert fake.writes() == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_file_system_is_no_refusal_of_the_device(fake, monkeypatch, number):
    def write(fd: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    shown = SimpleNamespace(**{**vars(os), "write": write})
    monkeypatch.setattr(kernel, "os", shown)
    assert reserve() == CallResult(Outcome.REFUSED, number, FILES)
    monkeypatch.undo()
    assert reserve(OTHERS) == OK


def test_a_power_cut_brings_no_copy_back(fake, monkeypatch):
    synced = []

    def fsync(fd: int) -> None:
        if os.path.samefile(f"/proc/self/fd/{fd}", fake.path(COPIES)):
            synced.append(os.listdir(fd))

    monkeypatch.setattr(os, "fsync", fsync)
    identity = pci_functions.identity(GPU)
    found = record.present(GPU, identity, MINE, FunctionUse.GUEST)
    record.write(dataclasses.replace(found, eraser="acme"))
    record.remove(GPU)
    assert synced == [[record.copy_name(identity, str(GPU))], []]


def test_what_is_taken_again_goes_back_to_where_it_was_at_first(fake):
    take()
    fake.hot_plug(fake.hot_unplug(str(GPU)))
    fake.write(fake.path("sys/bus/pci/devices", str(GPU), "driver_override"), "x-1")
    assert take() == (OK, OK)
    assert record.read(GPU).override == ""
    assert give_back(driver="") == OK
    assert fake.state(str(GPU)).driver == "nouveau"


def test_what_is_bound_for_guests_already_is_recorded_as_well(fake):
    take(OTHERS)
    for place in (GPU, AUDIO):
        record.remove(place)
    assert take() == (OK, OK)
    assert record.read(GPU).driver == "vfio-pci"
    # Only the caller knows the original driver.
    assert give_back() == OK
    assert fake.state(str(GPU)).driver == "nouveau"


def test_a_reservation_changes_no_binding(fake):
    before = fake.snapshot()
    assert reserve() == OK
    assert record.read(GPU).use is FunctionUse.HOST
    assert (fake.snapshot(), fake.writes()) == (before, [])
    assert forget() == OK
    assert record.read(GPU) is None


def test_a_record_is_of_the_function_with_its_identity(fake):
    reserve()
    sound = record.read(GPU)
    record.write(
        DeviceRecord(OTHERS, GPU, (1, 2, 3, 4, 5), "nouveau", "", FunctionUse.GUEST)
    )
    assert claims.claimed() == ()
    assert take() == (OK, OK)
    assert record.read(GPU).identity == sound.identity


# -- functions of another lease --------------------------------------------------


@pytest.mark.parametrize("claim", [lambda: take(OTHERS), lambda: reserve(OTHERS)])
def test_what_is_anothers_is_neither_taken_nor_reserved(fake, claim):
    claim()
    before, writes = fake.snapshot(), fake.writes()
    assert take()[0] == claimed_for(OTHERS)
    assert reserve() == claimed_for(OTHERS)
    assert (fake.snapshot(), fake.writes()) == (before, writes)
    assert record.read(GPU).lease == OTHERS


def test_none_of_a_group_is_touched_where_one_is_anothers(fake):
    reserve(OTHERS, place=AUDIO)
    refused, unreached = take()
    assert refused == claimed_for(OTHERS, AUDIO)
    assert unreached.outcome == Outcome.UNREACHED
    assert fake.writes() == []
    assert record.read(GPU) is None


def test_what_is_anothers_is_not_given_back(fake):
    take(OTHERS)
    before, writes = fake.snapshot(), fake.writes()
    assert give_back() == CallResult(Outcome.OK, 0, "record", OTHERS)
    assert forget() == OK
    assert (fake.snapshot(), fake.writes()) == (before, writes)
    assert record.read(GPU).lease == OTHERS


def test_a_claim_goes_over_to_the_lease_that_names_the_one_before(fake):
    take(OTHERS)
    assert reserve(instead_of=MINE) == claimed_for(OTHERS)
    assert reserve(instead_of=OTHERS, use="guest") == OK
    now = record.read(GPU)
    assert (now.lease, now.driver, now.use) == (MINE, "nouveau", FunctionUse.GUEST)
    assert give_back(driver="") == OK
    assert fake.state(str(GPU)).driver == "nouveau"


# -- restoring and forgetting -------------------------------------------------------


def test_what_is_given_back_goes_to_the_driver_on_record(fake):
    take()
    assert give_back(driver="vfio-pci") == OK
    assert fake.state(str(GPU)).driver == "nouveau"
    assert record.read(GPU) is None


def test_without_a_record_the_caller_knows_where_it_goes(fake):
    take()
    record.remove(GPU)
    assert give_back(driver="") == OK
    assert fake.state(str(GPU)).driver is None


def test_what_cannot_be_given_back_stays_on_record(fake):
    take()
    fake.fail(str(GPU), "driver_override")
    assert give_back().outcome == Outcome.REFUSED
    assert record.read(GPU).lease == MINE


def test_what_a_guest_may_have_is_not_forgotten(fake):
    take()
    assert forget().outcome == Outcome.REFUSED
    assert record.read(GPU).lease == MINE


def test_what_has_vanished_is_forgotten(fake):
    take()
    spec = fake.hot_unplug(str(GPU))
    assert forget() == OK
    fake.hot_plug(spec)
    assert reserve(OTHERS) == OK


def test_to_forget_what_is_not_there_leaves_no_file(fake):
    assert forget(place=PciAddress(0, 0x99, 0, 0)) == OK
    assert not os.path.exists(f"{fake.root}/{LOCKS}")


def test_what_is_forgotten_first_is_not_recorded_later(fake):
    (answer,) = claims.forget((GPU.parts,), 2, 30_000, MINE)
    assert answer == OK
    assert reserve().outcome == Outcome.STALE
    assert record.read(GPU) is None


def test_a_call_that_comes_too_late_changes_no_record(fake):
    reserve()
    worker.run([GPU], 5, 30, lambda _index: OK)
    assert reserve(OTHERS, MINE).outcome == Outcome.STALE
    assert forget().outcome == Outcome.STALE
    assert record.read(GPU).lease == MINE


# -- damaged records ------------------------------------------------------------------


def test_a_damaged_record_claims_its_function(fake, damaged):
    with pytest.raises(record.RecordUnclear):
        record.read(GPU)
    assert take()[0] == claimed_for(record.UNREADABLE)
    assert reserve() == claimed_for(record.UNREADABLE)
    assert forget() == OK
    assert claims.claimed() == (
        (GPU.parts, record.UNREADABLE, "", "", "", "", "", "", ""),
    )
    assert fake.writes() == []


def test_any_other_content_is_damage(fake, damaged):
    with_a_sound_check = (
        f"{record._check(payload)} {payload}\n".encode()
        for payload in ("null", "[]", '["x", [1], "", "", "guest"]', "{")
    )
    for content in (b"", b"\0" * 64, b"rubbish", b"\xff" * 8192, *with_a_sound_check):
        with open(damaged, "wb") as file:
            file.write(content)
        assert take()[0] == claimed_for(record.UNREADABLE), content


def test_a_damaged_record_is_replaced_by_name_only(fake, damaged):
    assert reserve(instead_of=OTHERS) == claimed_for(record.UNREADABLE)
    assert reserve(instead_of=record.UNREADABLE) == OK
    assert record.read(GPU).lease == MINE


def test_with_a_damaged_record_the_caller_knows_where_it_goes(fake, damaged):
    assert give_back(driver="") == OK
    assert fake.state(str(GPU)).driver is None
    assert claims.claimed() == ()


def test_other_files_are_no_records(fake):
    take()
    open(f"{fake.root}/{LOCKS}/rubbish.lease", "w").close()
    assert len(claims.claimed()) == 2


def rewrite(fake, change) -> None:
    """Change the values of a record as another version of os_acc writes them."""
    with open(path(fake)) as file:
        values = json.loads(file.read().partition(" ")[2])
    payload = json.dumps(change(values))
    with open(path(fake), "w") as file:
        file.write(f"{record._check(payload)} {payload}\n")


def test_values_that_a_newer_version_appended_are_ignored(fake):
    take()
    rewrite(fake, lambda values: [*values, "acme", {"erasure": 1}])
    assert claims.claimed()[0][1] == MINE
    assert take(OTHERS)[0] == claimed_for(MINE)
    assert give_back() == OK


def test_a_use_of_a_newer_version_keeps_the_function_claimed(fake):
    take()
    rewrite(fake, lambda values: [*values[:4], "erasing", *values[5:]])
    assert claims.claimed()[0][1] == record.UNREADABLE
    assert take(OTHERS)[0].outcome == Outcome.CLAIMED


# -- functions that have to be erased ------------------------------------------


def test_a_function_that_has_to_be_erased_stays_on_record_until_it_is_forgotten(fake):
    group = pci_functions.group(GPU)
    assert binding.take(group, targets(GPU), 1, 30_000, MINE, "nvme") == (OK,)
    assert claims.claimed() == (
        (GPU.parts, MINE, "guest", "nouveau", "", "nvme", "", "", ""),
    )
    # Neither a repeated call nor another holder of the record loses the debt.
    assert take(MINE, GPU) == (OK,)
    assert give_back(eraser="nvme") == OK
    assert give_back(eraser="nvme") == OK
    assert fake.state(str(GPU)).driver == "nouveau"
    assert claims.claimed() == (
        (GPU.parts, MINE, "host", "nouveau", "", "nvme", "", "", ""),
    )
    assert take(OTHERS, GPU) == (claimed_for(MINE),)
    assert reserve(OTHERS, MINE) == OK
    assert record.read(GPU).eraser == "nvme"
    assert forget(OTHERS) == OK
    assert claims.claimed() == ()


def test_a_function_that_stays_with_the_host_is_recorded_with_its_eraser(fake):
    group = pci_functions.group(GPU)
    given = (group, targets(GPU), 1, 30_000, MINE, "host", "", "nvme")
    assert claims.reserve(*given) == (OK,)
    assert record.read(GPU).eraser == "nvme"


def test_a_lease_that_lacks_its_erasure_does_not_end_it(fake):
    group = pci_functions.group(GPU)
    assert binding.take(group, targets(GPU), 1, 30_000, MINE, "nvme") == (OK,)
    assert give_back() == OK
    assert record.read(GPU).eraser == "nvme"
    assert take(OTHERS, GPU) == (claimed_for(MINE),)
    assert forget(MINE) == OK
    assert claims.claimed() == ()


def test_a_function_is_recorded_when_it_is_given_back_if_it_was_not(fake):
    assert give_back(eraser="nvme") == OK
    assert claims.claimed() == (
        (GPU.parts, MINE, "host", "nouveau", "", "nvme", "", "", ""),
    )


# -- owed releases -------------------------------------------------------------


def owe(call, *arguments: object, releaser: str = "acme") -> CallResult:
    """Make a call for a lease whose plugin has to release its device."""
    (answer,) = call(pci_functions.group(GPU), *arguments, "", releaser)
    return CallResult(*answer)


def test_a_record_stays_until_the_plugin_has_released_the_function(fake):
    assert owe(binding.take, targets(GPU), 1, 30_000, MINE) == OK
    given = ((*targets(GPU)[0], "nouveau", ""),)
    for _ in range(2):
        assert owe(binding.give_back, given, 1, 30_000, True, MINE) == OK
        assert fake.state(str(GPU)).driver == "nouveau"
        found = record.read(GPU)
        assert (found.lease, found.releaser, found.eraser) == (MINE, "acme", "")
        assert found.use == FunctionUse.HOST
    assert claims.claimed() == (
        (GPU.parts, MINE, "host", "nouveau", "", "", "acme", "", ""),
    )
    assert forget() == OK
    assert claims.claimed() == ()


def test_a_lease_that_takes_a_record_over_keeps_its_debt_and_its_origin(fake):
    assert owe(binding.take, targets(GPU), 1, 30_000, MINE) == OK
    third = "33333333-3333-4333-8333-333333333333"
    for lease, before in ((OTHERS, MINE), (OTHERS, OTHERS), (third, OTHERS)):
        assert reserve(lease, before) == OK
        found = record.read(GPU)
        assert (found.lease, found.releaser, found.first) == (lease, "acme", MINE)
    given = ((*targets(GPU)[0], "nouveau", ""),)
    assert owe(binding.give_back, given, 1, 30_000, True, third) == OK
    assert record.read(GPU).first == MINE


def test_a_listed_record_has_the_plugins_that_have_work_to_do(fake):
    assert owe(binding.take, targets(GPU), 1, 30_000, MINE) == OK
    (found,) = (HelperRecord.of(*each) for each in claims.claimed())
    assert (found.eraser, found.releaser) == ("", "acme")


def test_a_record_that_root_could_not_read_is_not_written(fake):
    longest = "\N{GRINNING FACE}" * 200
    (target,) = targets(GPU)
    more = (1, 30_000, MINE, "host", "", "acme", "", longest)
    group = pci_functions.group(GPU)
    (answer,) = claims.reserve(group, ((*target, "", "", longest),), *more)
    assert (answer.outcome, answer.step) == (Outcome.REFUSED, "record")
    assert claims.claimed() == ()


# -- a PF and its VFs ----------------------------------------------------------


@pytest.fixture
def pf_of_unerased_vf(with_vfs) -> Iterator[FakeKernel]:
    """Yield a host whose VF has unerased data of another lease."""
    group = pci_functions.group(VF)
    given = (group, targets(VF), 1, 30_000, OTHERS, "host", "", "nvme")
    with privileged_here():
        assert claims.reserve(*given) == (OK,)
        yield with_vfs


def set_vfs(fake: FakeKernel, count: int) -> None:
    fake.write(f"{pci_functions.directory(PF)}/sriov_numvfs", str(count))


def test_a_pf_is_anothers_once_its_unerased_vf_is_gone(pf_of_unerased_vf):
    # As for the health of a PF with leased VFs.
    assert claims.lease_of(PF, pci_functions.identity(PF), "") is None
    set_vfs(pf_of_unerased_vf, 0)
    assert take(MINE, PF) == (claimed_for(OTHERS, PF),)
    assert reserve(place=PF) == claimed_for(OTHERS, PF)
    listed = {each[0]: each[1:6] for each in claims.claimed()}
    assert listed[PF.parts] == (OTHERS, "host", "nvme", "", "")
    assert forget(OTHERS, VF) == OK
    assert take(MINE, PF) == (OK,)


@pytest.mark.parametrize("eraser", ["", "nvme"])
def test_no_reservation_of_the_pf_ends_the_record_of_its_vf(pf_of_unerased_vf, eraser):
    set_vfs(pf_of_unerased_vf, 0)
    group = pci_functions.group(PF)
    given = (group, targets(PF), 1, 30_000, MINE, "host", OTHERS, eraser)
    assert claims.reserve(*given) == (OK,)
    leases = {each.record.lease for each in record.copies()}
    assert leases == ({MINE, OTHERS} if eraser else {OTHERS})
