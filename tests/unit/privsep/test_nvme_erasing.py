# SPDX-License-Identifier: Apache-2.0

"""Privileged steps that erase NVMe functions, on simulated controllers."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from os_acc.objects.nvme_erasure import EraseMethod
from os_acc.objects.pci import PciAddress
from os_acc.privsep import StepTarget, pci_functions, worker
from os_acc.privsep.nvme import disks, erasing, steps, survey
from os_acc.privsep.nvme.commands import AdminQueue
from os_acc.privsep.outcome import CallRefused, Outcome
from os_acc.testing import FakeKernel, HostSpec, hosts
from os_acc.testing.device_specs import (
    BLOCK,
    CRYPTO,
    MANAGES,
    SEVERAL,
    VIRTUALIZES,
    NvmeSpec,
)
from tests.unit.privsep.nvme_drives import (
    CRYPTO_FORMAT,
    DATA,
    DRIVE,
    FORMAT,
    LEASE,
    NEXT,
    OTHER_VF,
    PF,
    SANITIZE,
    VF,
    ZEROES,
    is_marked,
    kernel_with,
    put_on_record,
)


def test_a_format_erases_all_namespaces(tmp_path):
    with kernel_with(tmp_path, NvmeSpec((1, 2))).installed() as kernel:
        assert erasing.erase(DRIVE, LEASE, FORMAT) == 1.0
        assert kernel.read_medium(DRIVE, 1) == ZEROES
        assert kernel.read_medium(DRIVE, 2) == ZEROES
        assert not is_marked(kernel, DRIVE)


def test_an_erased_drive_is_not_erased_again_for_the_same_lease(tmp_path):
    with kernel_with(tmp_path, NvmeSpec()).installed() as kernel:
        assert erasing.erase(DRIVE, LEASE, FORMAT) == 1.0
        kernel.write_medium(DRIVE, 1, DATA)
        assert erasing.erase(DRIVE, LEASE, FORMAT) == 1.0
        assert kernel.read_medium(DRIVE, 1).startswith(DATA)
        assert erasing.erase(DRIVE, NEXT, FORMAT) == 1.0
        assert kernel.read_medium(DRIVE, 1) == ZEROES


def test_a_refused_format_leaves_the_mark_and_is_repeated(tmp_path):
    with kernel_with(tmp_path, NvmeSpec((1, 2))).installed() as kernel:
        kernel.fail(DRIVE, "format", errno.EIO, nth=2)
        with pytest.raises(OSError, match="Input/output"):
            erasing.erase(DRIVE, LEASE, FORMAT)
        assert is_marked(kernel, DRIVE)
        assert kernel.read_medium(DRIVE, 1) == ZEROES
        # The first namespace is not formatted again.
        kernel.fail(DRIVE, "format", errno.EIO, nth=2)
        assert erasing.erase(DRIVE, LEASE, FORMAT) == 1.0
        assert kernel.read_medium(DRIVE, 2) == ZEROES


@pytest.mark.parametrize(
    ("method", "command"),
    [(EraseMethod.FORMAT, "format"), (EraseMethod.DEALLOCATE, "discard")],
)
@pytest.mark.parametrize("dlfeat", [0, 1, 2])
def test_a_drive_that_only_pretends_is_found_out(tmp_path, method, command, dlfeat):
    with kernel_with(tmp_path, NvmeSpec(dlfeat=dlfeat)).installed() as kernel:
        kernel.ignore(DRIVE, command)
        # A deallocation that guarantees nothing is not even tried.
        is_tried = method is EraseMethod.FORMAT or dlfeat
        why = "still shows data" if is_tried else "may return old data"
        with pytest.raises(OSError, match=why):
            erasing.erase(DRIVE, LEASE, (method,))
        assert is_marked(kernel, DRIVE)


def test_a_mounted_drive_is_refused(tmp_path):
    mounts = ("/dev/nvme1n2 /srv ext4 rw 0 0",)
    with kernel_with(tmp_path, NvmeSpec((1, 2)), mounts=mounts).installed() as kernel:
        with pytest.raises(CallRefused) as refused:
            erasing.erase(DRIVE, LEASE, FORMAT)
        assert refused.value.result.outcome == Outcome.IN_USE
        assert kernel.read_medium(DRIVE, 1).startswith(DATA)


def test_a_sanitize_operation_goes_on_in_the_drive(tmp_path):
    with kernel_with(tmp_path, NvmeSpec((1, 2), sanicap=BLOCK)).installed() as kernel:
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
        kernel.advance_sanitize(DRIVE, 0.5)
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.5
        assert is_marked(kernel, DRIVE)
        kernel.advance_sanitize(DRIVE, 1.0)
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 1.0
        assert kernel.read_medium(DRIVE, 2) == ZEROES
        assert not is_marked(kernel, DRIVE)


def test_an_earlier_sanitize_operation_does_not_count(tmp_path):
    with kernel_with(tmp_path, NvmeSpec(sanicap=CRYPTO)).installed() as kernel:
        kernel.advance_sanitize(DRIVE, 1.0)
        kernel.write_medium(DRIVE, 1, DATA)
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
        kernel.advance_sanitize(DRIVE, 1.0)
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 1.0
        assert kernel.read_medium(DRIVE, 1) == ZEROES


def test_a_shared_subsystem_is_never_sanitized(tmp_path):
    spec = NvmeSpec(
        sanicap=CRYPTO | BLOCK, cmic=SEVERAL, oacs=1 << 1 | MANAGES, others=(7,)
    )
    with kernel_with(tmp_path, spec).installed() as kernel:
        with pytest.raises(OSError, match="which has controller 7"):
            erasing.erase(DRIVE, LEASE, SANITIZE)
        assert erasing.erase(DRIVE, LEASE, (*SANITIZE, *FORMAT)) == 1.0
        assert kernel.read_medium(DRIVE, 1) == ZEROES


def test_a_drive_with_another_controller_beside_its_vfs_is_never_sanitized(tmp_path):
    oacs = 1 << 1 | MANAGES | VIRTUALIZES
    spec = NvmeSpec(sanicap=BLOCK, cmic=SEVERAL, oacs=oacs, others=(7,))
    with (
        kernel_with(tmp_path, spec).installed(),
        pytest.raises(OSError, match="which has controller 7"),
    ):
        erasing.erase(DRIVE, LEASE, SANITIZE)


def test_a_vf_is_erased_and_its_neighbours_are_not(with_vfs):
    assert erasing.erase(VF, LEASE, FORMAT) == 1.0
    assert with_vfs.read_medium(VF, 2) == ZEROES
    assert with_vfs.read_medium(PF, 1).startswith(DATA)
    assert with_vfs.read_medium(OTHER_VF, 3).startswith(DATA)
    state = with_vfs.state(VF)
    assert (state.driver, state.driver_override) == (None, None)


# The second write of the override clears it, after the driver has left.
@pytest.mark.parametrize(
    ("attribute", "nth"), [("drivers_probe", 1), ("driver_override", 2)]
)
def test_a_vf_left_between_two_drivers_gets_its_own_binding_back(
    with_vfs, attribute, nth
):
    with_vfs.fail(VF, attribute, errno.EIO, nth=nth)
    with pytest.raises(OSError, match="Input/output"):
        erasing.erase(VF, LEASE, FORMAT)
    assert with_vfs.state(VF).driver_override == "nvme"
    assert erasing.erase(VF, LEASE, FORMAT) == 1.0
    state = with_vfs.state(VF)
    assert (state.driver, state.driver_override) == (None, None)
    assert with_vfs.read_medium(VF, 2) == ZEROES


def test_a_vf_without_namespaces_stays_without_driver(with_vfs):
    third = PciAddress(0, 0x41, 0, 3)
    before = len(with_vfs.writes())
    assert erasing.erase(third, LEASE, FORMAT) == 1.0
    assert with_vfs.writes(before) == []


def test_a_drive_with_vfs_is_refused(with_vfs):
    with pytest.raises(OSError, match="has VFs"):
        erasing.erase(PF, LEASE, FORMAT)
    assert with_vfs.read_medium(PF, 1).startswith(DATA)


def test_fna_keeps_a_format_away_from_a_vf(tmp_path):
    drive = hosts.nvme_sriov("0000:41", 0, private=((2,),))
    spec = NvmeSpec(
        private=((2,),),
        oacs=1 << 1 | MANAGES | VIRTUALIZES,
        cmic=SEVERAL,
        fna=0b110,
    )
    drive = dataclasses.replace(drive, nvme=spec)
    kernel = FakeKernel.build(tmp_path, HostSpec((drive,)))
    with kernel.installed():
        pf = kernel.path("sys/bus/pci/devices", str(PF))
        kernel.write(f"{pf}/sriov_drivers_autoprobe", "0")
        kernel.write(f"{pf}/sriov_numvfs", "1")
        kernel.write_medium(PF, 1, DATA)
        with pytest.raises(OSError, match=r"erases all namespaces .* \(FNA\)"):
            erasing.erase(VF, LEASE, FORMAT)
        assert kernel.read_medium(PF, 1).startswith(DATA)
        assert kernel.state(VF).driver is None


@pytest.mark.parametrize("methods", [FORMAT, CRYPTO_FORMAT], ids=["format", "crypto"])
def test_a_format_that_reaches_all_namespaces_erases_a_drive_that_is_alone(
    tmp_path, methods
):
    spec = NvmeSpec((1, 2), fna=0b111)
    with kernel_with(tmp_path, spec).installed() as kernel:
        assert erasing.erase(DRIVE, LEASE, methods) == 1.0
        for number in spec.namespaces:
            assert DATA not in kernel.read_medium(DRIVE, number)


def test_a_worn_out_drive_is_reported(tmp_path):
    with kernel_with(tmp_path, NvmeSpec()).installed() as kernel:
        queue = survey.live_queue(DRIVE)
        assert queue is not None
        assert queue.health().fault == ""
        kernel.wear_out(DRIVE, 0b1000, media_errors=9)
        worn = queue.health()
        assert (worn.fault, worn.media_errors) == ("its media are read-only", 9)


# -- calls after an error ------------------------------------------------------


def test_a_format_that_failed_the_verification_is_repeated(tmp_path):
    with kernel_with(tmp_path, NvmeSpec()).installed() as kernel:
        kernel.ignore(DRIVE, "format")
        with pytest.raises(OSError, match="still shows data"):
            erasing.erase(DRIVE, LEASE, FORMAT)
        kernel.lift()
        assert erasing.erase(DRIVE, LEASE, FORMAT) == 1.0
        assert kernel.read_medium(DRIVE, 1) == ZEROES


def test_a_cryptographic_erase_is_verified_once(tmp_path):
    spec = NvmeSpec((1, 2), fna=0b100, dlfeat=0)
    with kernel_with(tmp_path, spec).installed() as kernel:
        kernel.fail(DRIVE, "format", errno.EIO, nth=2)
        with pytest.raises(OSError, match="Input/output"):
            erasing.erase(DRIVE, LEASE, CRYPTO_FORMAT)
        kernel.lift()
        noise = kernel.read_medium(DRIVE, 1)
        # The noise of the first namespace is not compared with itself.
        assert erasing.erase(DRIVE, LEASE, CRYPTO_FORMAT) == 1.0
        assert kernel.read_medium(DRIVE, 1) == noise
        assert DATA not in kernel.read_medium(DRIVE, 2)


def test_a_disk_that_was_shown_to_the_host_is_erased_no_more(tmp_path, monkeypatch):
    """The worker is killed after it has removed the mark."""
    unmark = disks.unmark

    def killed(function: PciAddress) -> None:
        unmark(function)
        raise KeyboardInterrupt

    with kernel_with(tmp_path, NvmeSpec()).installed() as kernel:
        monkeypatch.setattr(disks, "unmark", killed)
        with pytest.raises(KeyboardInterrupt):
            erasing.erase(DRIVE, LEASE, FORMAT)
        monkeypatch.undo()
        kernel.write_medium(DRIVE, 1, DATA)
        assert erasing.erase(DRIVE, LEASE, FORMAT) == 1.0
        assert kernel.read_medium(DRIVE, 1).startswith(DATA)


def test_a_failed_sanitize_operation_is_started_again(tmp_path):
    with kernel_with(tmp_path, NvmeSpec(sanicap=CRYPTO)).installed() as kernel:
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
        kernel.fail_sanitize(DRIVE)
        with pytest.raises(OSError, match="ended as FAILED, and the drive has data"):
            erasing.erase(DRIVE, LEASE, SANITIZE)
        assert is_marked(kernel, DRIVE)
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
        kernel.advance_sanitize(DRIVE, 1.0)
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 1.0


def test_an_error_that_reached_no_caller_is_reported_by_the_next_call(
    tmp_path, monkeypatch
):
    with kernel_with(tmp_path, NvmeSpec()).installed() as kernel:
        for is_late in (False, True):
            monkeypatch.setattr(worker, "is_late", lambda is_late=is_late: is_late)
            kernel.fail(DRIVE, "format", errno.EIO)
            with pytest.raises(OSError, match="Input/output"):
                erasing.erase(DRIVE, LEASE, FORMAT)
            # An error that reached its caller is not reported twice.
            assert bool(erasing.read_note(DRIVE, LEASE).failure) == is_late
        kernel.lift()
        with pytest.raises(OSError, match="Input/output") as caught:
            erasing.erase(DRIVE, LEASE, FORMAT)
        assert caught.value.errno == errno.EIO
        assert kernel.read_medium(DRIVE, 1).startswith(DATA)
        assert erasing.erase(DRIVE, LEASE, FORMAT) == 1.0


# -- what an erasure may reach -------------------------------------------------


def test_a_vf_that_its_pf_does_not_list_is_not_taken_for_blank(with_vfs, monkeypatch):
    monkeypatch.setattr(AdminQueue, "secondaries", lambda _queue: ())
    assert erasing.erase(VF, LEASE, FORMAT) == 1.0
    assert with_vfs.read_medium(VF, 2) == ZEROES


def test_a_controller_that_was_replaced_gets_no_command(tmp_path, monkeypatch):
    with kernel_with(tmp_path, NvmeSpec()).installed() as kernel:
        found = survey.wait_for_queue(DRIVE)
        looks = iter((found, dataclasses.replace(found, device="240:99")))
        monkeypatch.setattr(survey, "wait_for_queue", lambda _function: next(looks))
        with pytest.raises(OSError, match="controller was replaced"):
            erasing.erase(DRIVE, LEASE, FORMAT)
        assert kernel.read_medium(DRIVE, 1).startswith(DATA)


def test_a_controller_that_is_not_ready_is_waited_for_before_a_plug(
    tmp_path, monkeypatch
):
    spec = NvmeSpec(sanicap=BLOCK, cmic=SEVERAL, oacs=0)
    with kernel_with(tmp_path, spec).installed():
        answers = iter((None, survey.live_queue(DRIVE)))
        monkeypatch.setattr(survey, "live_queue", lambda _function: next(answers))
        with pytest.raises(OSError, match="may have other controllers"):
            erasing.check(DRIVE, LEASE, SANITIZE)
        monkeypatch.setattr(survey, "read", lambda *_path: "dead")
        with pytest.raises(OSError, match="the controller is dead"):
            erasing.check(DRIVE, LEASE, SANITIZE)


def test_only_what_is_on_record_for_the_lease_is_erased(tmp_path):
    target = StepTarget(LEASE, DRIVE, (DRIVE,))
    with kernel_with(tmp_path, NvmeSpec()).installed() as kernel:
        # The record of another lease, or of a drive that was only prepared.
        for lease, eraser in (("", ""), (NEXT, "nvme"), (LEASE, "")):
            if lease:
                put_on_record(DRIVE, lease, eraser)
            with pytest.raises(OSError, match="record") as caught:
                steps.erase.function(target, ("format",))
            assert caught.value.errno == errno.EPERM
            assert kernel.read_medium(DRIVE, 1).startswith(DATA)
        put_on_record(DRIVE, LEASE)
        assert steps.erase.function(target, ("format",)) == 1000
        assert kernel.read_medium(DRIVE, 1) == ZEROES


@pytest.mark.parametrize(
    ("change", "why"),
    [({"formatted": 0.5}, "a format still runs"), ({"blocks": 64}, "has 64 blocks")],
    ids=["running", "size"],
)
def test_a_namespace_keeps_its_size_and_its_format(tmp_path, monkeypatch, change, why):
    with kernel_with(tmp_path, NvmeSpec()).installed():
        before = survey.wait_for_queue(DRIVE).namespace(1)
        answers = iter((before, dataclasses.replace(before, **change)))
        monkeypatch.setattr(AdminQueue, "namespace", lambda *_args: next(answers))
        with pytest.raises(OSError, match=why):
            erasing.erase(DRIVE, LEASE, FORMAT)
        assert not erasing.read_note(DRIVE, LEASE).erased


def test_a_disk_that_the_drive_does_not_list_stops_the_erasure(tmp_path, monkeypatch):
    with kernel_with(tmp_path, NvmeSpec()).installed() as fake:
        found = disks.wait_for_disks(DRIVE, (1,))
        other = dataclasses.replace(found[1], device="259:99")
        monkeypatch.setattr(disks, "_disks", lambda *_args: {**found, 2: other})
        with pytest.raises(
            OSError, match="disk of namespace 2, which it does not list"
        ):
            erasing.erase(DRIVE, LEASE, FORMAT)
        assert fake.read_medium(DRIVE, 1).startswith(DATA)


def test_a_disk_that_was_replaced_is_left_alone(tmp_path, monkeypatch):
    with kernel_with(tmp_path, NvmeSpec()).installed() as fake:
        found = disks.wait_for_disks(DRIVE, (1,))
        looks = iter((found, {1: dataclasses.replace(found[1], device="259:99")}))
        monkeypatch.setattr(disks, "_disks", lambda *_args: next(looks))
        with pytest.raises(OSError, match="controller was replaced"):
            erasing.erase(DRIVE, LEASE, FORMAT)
        assert fake.read_medium(DRIVE, 1).startswith(DATA)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBUSY, errno.EIO])
def test_an_old_partition_table_is_forgotten_or_reported(tmp_path, monkeypatch, number):
    with kernel_with(tmp_path, NvmeSpec()).installed() as fake:
        pass_on = type(fake).ioctl

        def ioctl(self: FakeKernel, fd: int, request: int, argument: bytes) -> None:
            if request == 0x125F:
                raise OSError(number, os.strerror(number))
            pass_on(self, fd, request, argument)

        monkeypatch.setattr(type(fake), "ioctl", ioctl)
        if number == errno.EIO:
            with pytest.raises(OSError, match="Input/output"):
                erasing.erase(DRIVE, LEASE, FORMAT)
        else:
            assert erasing.erase(DRIVE, LEASE, FORMAT) == 1.0


def test_a_controller_that_is_being_reset_is_not_live(tmp_path):
    with kernel_with(tmp_path, NvmeSpec()).installed() as fake:
        directory = survey.controller_directory(DRIVE)
        assert directory is not None
        assert survey.live_queue(DRIVE) is not None
        Path(fake.path(directory, "state")).write_text("resetting\n")
        assert survey.live_queue(DRIVE) is None


def test_every_function_of_the_lease_is_erased(with_vfs):
    for function in (VF, OTHER_VF):
        put_on_record(function, LEASE)
    target = StepTarget(LEASE, VF, (VF, OTHER_VF))
    assert steps.erase.function(target, ("format",)) == 1000
    assert with_vfs.read_medium(VF, 2) == ZEROES
    assert with_vfs.read_medium(OTHER_VF, 3) == ZEROES


def test_a_mark_stays_once_the_driver_has_been_bound_again(tmp_path):
    with kernel_with(tmp_path, NvmeSpec()).installed() as fake:
        disks.mark(DRIVE)
        pci_functions.rebind(DRIVE, "vfio-pci")
        pci_functions.rebind(DRIVE, "nvme")
        disks.unmark_unused(DRIVE)
        assert is_marked(fake, DRIVE)
        disks.mark(DRIVE)
        disks.unmark_unused(DRIVE)
        assert not is_marked(fake, DRIVE)


def test_a_function_without_a_record_stays_on_its_driver(tmp_path):
    with kernel_with(tmp_path, NvmeSpec()).installed() as fake:
        pci_functions.rebind(DRIVE, "vfio-pci")
        before = fake.writes()
        with pytest.raises(OSError, match="record") as caught:
            erasing.check(DRIVE, LEASE, FORMAT)
        assert caught.value.errno == errno.EPERM
        assert fake.writes() == before
        put_on_record(DRIVE, LEASE)
        erasing.check(DRIVE, LEASE, FORMAT)
        assert pci_functions.driver(DRIVE) == "vfio-pci"


def test_a_drive_with_vfs_is_not_rebound_for_a_check(tmp_path):
    drive = hosts.nvme_sriov("0000:41", 0)
    assert drive.sriov is not None
    sriov = dataclasses.replace(drive.sriov, removed_with_driver=False)
    spec = HostSpec((dataclasses.replace(drive, sriov=sriov),))
    with FakeKernel.build(tmp_path, spec).installed() as fake:
        fake.write(fake.path("sys/bus/pci/devices", str(PF), "sriov_numvfs"), "2")
        pci_functions.unbind(PF)
        put_on_record(PF, LEASE)
        before = fake.writes()
        with pytest.raises(OSError, match="the drive has VFs"):
            erasing.check(PF, LEASE, FORMAT)
        assert fake.writes() == before
