# SPDX-License-Identifier: Apache-2.0

"""The disks of a drive stay claimed while a sanitize operation runs in it.

Their samples prove that they are erased, or that they are not.
"""

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.objects.nvme import NvmeNamespace, ReadValue, SanitizeAction
from os_acc.objects.nvme_erasure import EraseMethod
from os_acc.objects.pci import PciAddress
from os_acc.privsep import pci_functions, record, worker
from os_acc.privsep.kernel import LOCKS
from os_acc.privsep.nvme import disks, erasing, survey
from os_acc.privsep.outcome import CallRefused, Outcome
from os_acc.testing import FakeKernel
from os_acc.testing.device_specs import BLOCK, NvmeSpec
from tests.unit.privsep.nvme_drives import (
    DATA,
    DRIVE,
    FORMAT,
    LEASE,
    NEXT,
    SANITIZE,
    ZEROES,
    is_marked,
    kernel_with,
    put_on_record,
)

NAMESPACES = (1, 2)
SIZE = 1 << 16
_FLUSH_BUFFERS = 0x1261
NAMESPACE = NvmeNamespace(1, SIZE // 512, 512, 0, False, None, ReadValue.ZEROES)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKernel]:
    """Yield a host whose drive is on record for the lease of its erasure."""
    monkeypatch.setattr(disks, "_CHECK_MS", 20)
    spec = NvmeSpec(NAMESPACES, sanicap=BLOCK)
    with kernel_with(tmp_path, spec).installed() as fake:
        put_on_record(DRIVE, LEASE)
        yield fake
        record.remove(DRIVE)
        wait_until_free()


def open_all(fake: FakeKernel) -> list[int]:
    """Open all disks of the drive exclusively, as mount(8) or LVM would.

    :raises OSError: EBUSY: one of them is claimed.
    """
    found = disks.wait_for_disks(DRIVE, NAMESPACES)
    return [fake.open_disk(each.node, each.device) for each in found.values()]


def claimed(fake: FakeKernel) -> list[int]:
    """Return the namespaces whose disks cannot be opened exclusively."""
    found = []
    for number, each in disks.wait_for_disks(DRIVE, NAMESPACES).items():
        try:
            os.close(fake.open_disk(each.node, each.device))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            found.append(number)
    return found


def wait_until_free() -> None:
    """Wait until the drive has no keeper."""
    deadline = time.monotonic() + 60
    while disks.has_keeper(DRIVE):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_disks_are_claimed_from_the_first_call_to_the_last(fake):
    assert claimed(fake) == []
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    assert claimed(fake) == [1, 2]
    fake.advance_sanitize(DRIVE, 0.5)
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.5
    assert claimed(fake) == [1, 2]
    fake.advance_sanitize(DRIVE, 1.0)
    # The operation has ended, and no call has seen that yet.
    assert claimed(fake) == [1, 2]
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 1.0
    assert claimed(fake) == []


def test_the_next_call_claims_the_disks_of_a_keeper_that_was_killed(fake):
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    disks.end_keeper(DRIVE)
    assert claimed(fake) == []
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    assert claimed(fake) == [1, 2]


def test_a_process_that_cannot_be_started_costs_no_erasure(fake, monkeypatch):
    def refuse(*_arguments: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as patch:
        patch.setattr(worker, "leave_behind", refuse)
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    assert claimed(fake) == []
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    assert claimed(fake) == [1, 2]


def test_a_host_that_writes_before_the_last_claim_is_noticed(fake, monkeypatch):
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    fake.advance_sanitize(DRIVE, 1.0)
    end = disks.end_keeper

    def end_and_write(function: PciAddress) -> None:
        end(function)
        fake.write_medium(function, 1, DATA)

    monkeypatch.setattr(disks, "end_keeper", end_and_write)
    with pytest.raises(OSError, match="the drive has data"):
        erasing.erase(DRIVE, LEASE, SANITIZE)


@pytest.mark.parametrize("methods", [FORMAT, (EraseMethod.DEALLOCATE,), SANITIZE])
def test_what_the_host_has_in_its_cache_is_erased_too(fake, monkeypatch, methods):
    do, dirty = fake.ioctl, [DATA]

    def written_back(fd: int, request: int, argument: bytes) -> None:
        if request == _FLUSH_BUFFERS and dirty:
            fake.write_medium(DRIVE, 1, dirty.pop())
        do(fd, request, argument)

    monkeypatch.setattr(fake, "ioctl", written_back)
    if erasing.erase(DRIVE, LEASE, methods) < 1.0:
        fake.advance_sanitize(DRIVE, 1.0)
        assert erasing.erase(DRIVE, LEASE, methods) == 1.0
    assert fake.read_medium(DRIVE, 1) == ZEROES


def test_a_keeper_that_ends_by_itself_is_not_missed(fake, monkeypatch):
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    write = os.write

    def broken(fd: int, data: bytes) -> int:
        write(fd, data)
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken)
        disks.end_keeper(DRIVE)
    assert claimed(fake) == []


def test_an_operation_and_the_claims_go_on_after_a_reboot(fake):
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    # A reboot ends all processes, and clears /run.
    disks.end_keeper(DRIVE)
    shutil.rmtree(fake.path(LOCKS))
    put_on_record(DRIVE, LEASE)
    fake.advance_sanitize(DRIVE, 0.5)
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.5
    assert claimed(fake) == [1, 2]
    fake.advance_sanitize(DRIVE, 1.0)
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 1.0
    assert fake.read_medium(DRIVE, 1) == ZEROES


def test_a_disk_that_the_host_took_meanwhile_is_reported_as_in_use(fake):
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    disks.end_keeper(DRIVE)
    taken = open_all(fake)
    for part in (0.5, 1.0):
        fake.advance_sanitize(DRIVE, part)
        with pytest.raises(CallRefused) as refused:
            erasing.erase(DRIVE, LEASE, SANITIZE)
        assert refused.value.result.outcome == Outcome.IN_USE
    for fd in taken:
        os.close(fd)
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 1.0


def test_a_keeper_of_other_disks_does_not_count(fake):
    # It has those of before a hot unplug.
    disks.start_keeper(DRIVE, LEASE, ())
    erasing.read_note(DRIVE, LEASE).update(kept="259:98 259:99")
    survey.wait_for_queue(DRIVE).sanitize(SanitizeAction.BLOCK_ERASE)
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    assert claimed(fake) == [1, 2]
    found = disks.wait_for_disks(DRIVE, NAMESPACES).values()
    kept = " ".join(each.device for each in found)
    assert erasing.read_note(DRIVE, LEASE).kept == kept


def test_the_disks_are_free_once_the_record_has_ended(fake):
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    record.remove(DRIVE)
    wait_until_free()
    assert claimed(fake) == []


def test_the_keeper_ends_with_the_record_of_its_own_lease(fake):
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    put_on_record(DRIVE, NEXT)
    wait_until_free()


def test_a_sanitize_operation_that_failed_leaves_the_disks_free(fake):
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    fake.fail_sanitize(DRIVE)
    with pytest.raises(OSError, match="sanitize operation ended"):
        erasing.erase(DRIVE, LEASE, SANITIZE)
    assert claimed(fake) == []


def test_another_method_gets_the_disks_of_the_keeper(fake):
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    fake.advance_sanitize(DRIVE, 1.0)
    assert erasing.erase(DRIVE, LEASE, FORMAT) == 1.0
    assert fake.read_medium(DRIVE, 1) == ZEROES


def test_a_drive_that_leaves_its_driver_after_each_call_has_no_keeper(fake):
    pci_functions.rebind(DRIVE, "vfio-pci")
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
    assert not disks.has_keeper(DRIVE)
    fake.advance_sanitize(DRIVE, 1.0)
    assert erasing.erase(DRIVE, LEASE, SANITIZE) == 1.0
    assert pci_functions.driver(DRIVE) == "vfio-pci"


def verify(
    path: Path, method: EraseMethod, before: bytes, after: bytes, size: int = SIZE
) -> None:
    """Verify the erasure of a disk with these contents."""
    path.write_bytes(before)
    fd = os.open(path, os.O_RDONLY)
    try:
        disk = disks.HeldDisk.of(fd, NAMESPACE)
        path.write_bytes(after[:size])
        disk.verify(method)
    finally:
        os.close(fd)


@pytest.mark.parametrize("method", [EraseMethod.FORMAT, EraseMethod.DEALLOCATE])
def test_data_in_the_last_block_is_found(tmp_path, method):
    data = bytes(SIZE - 4096) + b"data of a guest." * 256
    with pytest.raises(OSError, match="still shows data"):
        verify(tmp_path / "disk", method, data, data)


def test_a_deallocated_block_reads_as_the_namespace_states(tmp_path):
    data, ones = os.urandom(SIZE), b"\xff" * SIZE
    verify(tmp_path / "disk", EraseMethod.DEALLOCATE, data, bytes(SIZE))
    # Format NVM may fill with ones as well.
    verify(tmp_path / "disk", EraseMethod.FORMAT, data, ones)
    with pytest.raises(OSError, match="still shows data"):
        verify(tmp_path / "disk", EraseMethod.DEALLOCATE, data, ones)


def test_a_block_that_cannot_be_read_proves_only_a_cryptographic_erase(tmp_path):
    data, half = os.urandom(SIZE), SIZE // 2
    verify(tmp_path / "disk", EraseMethod.FORMAT_CRYPTO, data, os.urandom(SIZE), half)
    with pytest.raises(OSError, match="cannot be read"):
        verify(tmp_path / "disk", EraseMethod.FORMAT, data, bytes(SIZE), half)


def test_a_disk_of_the_host_has_no_mark_after_it_was_refused(tmp_path):
    """The rules of udev would take away the links of a mounted disk."""
    mounts = ("/dev/nvme1n1 /srv ext4 rw 0 0",)
    with kernel_with(tmp_path, NvmeSpec(), mounts=mounts).installed() as fake:
        with pytest.raises(CallRefused):
            erasing.check(DRIVE, LEASE, FORMAT)
        assert not is_marked(fake, DRIVE)
