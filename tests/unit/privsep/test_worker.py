# SPDX-License-Identifier: Apache-2.0

"""A round trip of writes runs in one child, under the locks of its devices."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import select
import signal
from pathlib import Path

import pytest

from os_acc.objects.epoch import DAY, LIMIT
from os_acc.objects.pci import PciAddress
from os_acc.privsep import worker
from os_acc.privsep.outcome import CallResult, Outcome

FIRST, SECOND, THIRD = map(
    PciAddress.parse, ("0000:17:00.0", "0000:17:00.1", "0000:3b:00.0")
)
OK = CallResult(Outcome.OK)


def lock_path(fake, address: PciAddress) -> str:
    return f"{fake.root}/run/os_acc/{address}"


def test_the_answers_come_in_the_order_of_the_devices(fake):
    answers = worker.run(
        [SECOND, FIRST], 1, 30, lambda index: CallResult(Outcome.OK, 0, str(index))
    )
    assert [each.step for each in answers] == ["0", "1"]


def test_the_first_failure_ends_the_round(fake):
    answers = worker.run(
        [FIRST, SECOND, THIRD],
        1,
        30,
        lambda index: CallResult(Outcome.REFUSED, errno.EIO) if index else OK,
    )
    assert [each.outcome for each in answers] == [
        Outcome.OK,
        Outcome.REFUSED,
        Outcome.UNREACHED,
    ]


def test_the_work_is_done_in_a_child_that_has_nothing_but_its_pipe_and_locks(fake):
    def look(_index):
        kept = [fd for fd in range(256) if is_open(fd)]
        return CallResult(Outcome.OK, 0, "look", json.dumps([os.getpid(), kept]))

    def is_open(fd: int) -> bool:
        try:
            os.fstat(fd)
        except OSError:
            return False
        return True

    (answer,) = worker.run([FIRST], 1, 30, look)
    pid, kept = json.loads(answer.observed)
    assert pid != os.getpid()
    assert len(kept) == 2


def test_a_job_has_the_files_that_it_needs(fake, tmp_path):
    (tmp_path / "file").write_text("what it says")
    with open(tmp_path / "file") as file:
        (answer,) = worker.run(
            [FIRST],
            1,
            30,
            lambda _index: CallResult(
                Outcome.OK, 0, os.read(file.fileno(), 99).decode()
            ),
            [file.fileno()],
        )
        assert answer.step == "what it says"
        # The file is still open here after the child has ended.
        os.fstat(file.fileno())


def test_a_child_knows_when_its_caller_waits_no_more(fake):
    def look(_index):
        before = worker.is_late()
        worker._deadline -= 60
        return CallResult(Outcome.OK, 0, f"{before} {worker.is_late()}")

    (answer,) = worker.run([FIRST], 1, 30, look)
    assert answer.step == "False True"
    assert not worker.is_late()


def test_a_child_that_dies_has_given_no_answer(fake):
    answers = worker.run(
        [FIRST, SECOND], 1, 30, lambda index: os.kill(os.getpid(), signal.SIGKILL)
    )
    assert [(each.outcome, each.step) for each in answers] == [
        (Outcome.NO_EFFECT, "child"),
        (Outcome.UNREACHED, ""),
    ]


def test_a_child_that_the_kernel_reaps_has_answered(fake):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert worker.run([FIRST], 1, 30, lambda index: OK) == (OK,)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_what_is_sent_to_all_processes_ends_no_write_half_way(fake):
    """Ctrl-C in a terminal reaches the helper and its children as well."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def work(_index):
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), ending)
        return OK

    assert worker.run([FIRST], 1, 30, work) == (OK,)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_process_left_behind_may_have_the_first_descriptor_of_all(fake, tmp_path):
    """A child without standard streams gets it for the first file that it opens."""

    def wait() -> None:
        (tmp_path / "found").write_text(os.readlink("/proc/self/fd/0"))

    def work(_index):
        assert os.open(tmp_path, os.O_RDONLY) == 0
        readable, writable = os.pipe()
        worker.leave_behind([0, writable], wait)
        os.close(writable)
        # Its end closes the pipe.
        os.read(readable, 1)
        return OK

    assert worker.run([FIRST], 1, 30, work) == (OK,)
    assert (tmp_path / "found").read_text() == str(tmp_path)


def test_a_process_left_behind_has_its_files_and_neither_the_call_nor_its_lock(fake):
    readable, writable = os.pipe()

    def wait() -> None:
        os.write(writable, b"%d" % os.getpid())
        signal.pause()

    def work(_index):
        worker.leave_behind([writable], wait)
        return OK

    assert worker.run([FIRST], 1, 30, work, [writable]) == (OK,)
    os.close(writable)
    pid = int(os.read(readable, 99))
    assert worker.run([FIRST], 2, 30, lambda _index: OK) == (OK,)
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.findall(r"^Cap(?:Inh|Prm|Eff):\s*(\w+)", status, re.M)
    assert [int(each, 16) for each in found] == [0, 0, 0]
    assert os.getsid(pid) == pid
    # A service manager ends it, and with it the last file that it had.
    os.kill(pid, signal.SIGTERM)
    assert select.select([readable], [], [], 60)[0] == [readable]
    assert os.read(readable, 1) == b""
    os.close(readable)


def test_a_host_that_can_have_no_more_processes_costs_no_descriptors(fake, monkeypatch):
    def refuse():
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fork", refuse)
    refused = CallResult(Outcome.REFUSED, errno.EAGAIN, "worker")
    assert worker.run([FIRST, SECOND], 1, 30, lambda index: OK) == (refused,) * 2
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("step", ["signal.pthread_sigmask", "os.fork", "select.poll"])
def test_an_error_beside_the_child_leaves_no_descriptor_open(fake, monkeypatch, step):
    def fail(*_arguments):
        raise MemoryError

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(step, fail)
    with pytest.raises(MemoryError):
        worker.run([FIRST], 1, 30, lambda index: OK)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("raised", "reported"),
    [
        (LookupError("nothing there"), "LookupError: nothing there"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError("x" * 100_000), "ValueError: " + "x" * 488),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_job_that_raises_says_what_and_ends_the_round(fake, raised, reported):
    def fail(_index):
        raise raised

    answer, unreached = worker.run([FIRST, SECOND], 1, 30, fail)
    assert answer == CallResult(Outcome.FAILED, 0, "worker", reported)
    assert unreached.outcome == Outcome.UNREACHED


def test_a_child_that_outlives_its_deadline_keeps_its_device(bench):
    def wait(_index):
        signal.pause()
        return OK

    stuck, unreached = worker.run([FIRST, SECOND], 1, 0.2, wait)
    assert (stuck.outcome, stuck.errno) == (Outcome.STUCK, errno.ETIMEDOUT)
    assert unreached.outcome == Outcome.UNREACHED
    (pid,) = worker._stuck
    try:
        for held in (FIRST, SECOND):
            (busy,) = worker.run([held], 2, 0.1, lambda index: OK)
            assert (busy.outcome, busy.errno) == (Outcome.BUSY, errno.EBUSY)
        (other,) = worker.run([THIRD], 2, 30, lambda index: OK)
        assert other.outcome == Outcome.OK
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    (after,) = worker.run([FIRST], 3, 30, lambda index: OK)
    assert after.outcome == Outcome.OK
    assert worker._stuck == set()


def test_somebody_elses_lock_is_waited_for_and_then_told(fake):
    worker.run([FIRST], 1, 30, lambda index: OK)
    with open(lock_path(fake, FIRST), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (busy,) = worker.run([FIRST], 2, 0.1, lambda index: OK)
    assert busy.outcome == Outcome.BUSY


def test_a_lower_epoch_than_one_that_was_seen_is_refused(fake):
    worker.run([FIRST], 5, 30, lambda index: OK)
    answers = worker.run([FIRST, SECOND], 4, 30, lambda index: OK)
    assert {each.outcome for each in answers} == {Outcome.STALE}
    assert answers[0].observed.split()[0] == "5"
    for epoch in (5, 6):
        (again,) = worker.run([FIRST], epoch, 30, lambda index: OK)
        assert again.outcome == Outcome.OK


def test_a_lock_file_that_says_no_epoch_has_seen_none(fake):
    worker.run([FIRST], 1, 30, lambda index: OK)
    texts = (b"", b"nonsense", b"-7", b"\xff\xfe", b"5" * 19, b"9" * 400)
    for text in (*texts, b"9" * 20 + b" 0"):
        with open(lock_path(fake, FIRST), "wb") as file:
            file.write(text)
        (answer,) = worker.run([FIRST], 1, 30, lambda index: OK)
        assert answer.outcome == Outcome.OK, text


def test_a_lock_file_that_is_a_link_is_not_followed(fake, tmp_path):
    os.makedirs(f"{fake.root}/run/os_acc")
    target = tmp_path / "target"
    target.write_text("untouched")
    os.symlink(target, lock_path(fake, FIRST))
    (answer,) = worker.run([FIRST], 1, 30, lambda index: OK)
    assert (answer.outcome, answer.errno) == (Outcome.REFUSED, errno.ELOOP)
    assert target.read_text() == "untouched"


def test_locks_are_for_root_alone(fake):
    worker.run([FIRST], 1, 30, lambda index: OK)
    assert os.stat(f"{fake.root}/run/os_acc").st_mode & 0o777 == 0o700
    assert os.stat(lock_path(fake, FIRST)).st_mode & 0o777 == 0o600


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> int:
    """Fix the helper's time of day, and return it in microseconds."""
    microseconds = 1_800_000_000_000_000
    clock = worker.Clock(lambda: microseconds * 1000)
    monkeypatch.setattr(worker, "clock", clock)
    return microseconds


def run(epoch: int, *addresses: PciAddress) -> CallResult:
    return worker.run(addresses or [FIRST], epoch, 30, lambda index: OK)[0]


def test_an_epoch_may_lie_a_day_ahead_of_the_clock_and_no_more(fake, noon):
    for ahead in (DAY + 1, 2**40, 2**62 - noon, LIMIT - noon):
        refused = run(noon + ahead)
        assert (refused.outcome, refused.step) == (Outcome.AHEAD, "lock")
        assert refused.observed == f"0 {noon + DAY}"
    # None of the refused epochs was recorded.
    assert run(1).outcome == Outcome.OK
    assert run(noon + DAY).outcome == Outcome.OK


def test_an_epoch_may_lie_a_day_ahead_of_one_that_was_seen(fake, noon, monkeypatch):
    run(noon + DAY)
    monkeypatch.setattr(worker, "clock", worker.Clock(lambda: 0))
    refused = run(noon + 2 * DAY + 1)
    assert (refused.outcome, refused.observed) == (
        Outcome.AHEAD,
        f"{noon + DAY} {noon + 2 * DAY}",
    )
    assert run(noon + 2 * DAY).outcome == Outcome.OK


def test_devices_of_one_call_accept_what_each_of_them_has_seen(fake, noon, monkeypatch):
    run(noon, FIRST)
    monkeypatch.setattr(worker, "clock", worker.Clock(lambda: 0))
    assert run(noon + 1, FIRST, SECOND).outcome == Outcome.OK


def test_what_is_refused_is_recorded_for_no_device_of_the_call(fake, noon):
    run(noon, SECOND)
    assert run(7, FIRST, SECOND).outcome == Outcome.STALE
    assert run(1, FIRST).outcome == Outcome.OK


def test_the_clock_of_a_helper_does_not_go_back():
    times = iter((5_000, 9_000, 1_000))
    clock = worker.Clock(lambda: next(times))
    assert [clock.now() for _ in range(3)] == [5, 9, 9]
