# SPDX-License-Identifier: Apache-2.0

import contextlib
import errno
import os
import pathlib
import threading
import time
from collections.abc import Callable
from concurrent import futures

import pytest

from os_acc import exception
from os_acc.objects.pci import PciAddress
from os_acc.store import locks as locks_module
from os_acc.store.locks import Locks, consumer_lock, device_lock
from tests.expected_errors import raises

INSTANCE = consumer_lock("11111111-1111-4111-8111-111111111111")
CARD = device_lock(PciAddress(0, 7, 0, 0))
OTHER_CARD = device_lock(PciAddress(0, 8, 0, 0))


def soon() -> float:
    return time.monotonic() + 0.05


def patiently() -> float:
    return time.monotonic() + 60


@pytest.fixture
def locks(tmp_path: pathlib.Path) -> Locks:
    return Locks(str(tmp_path))


def holding(locks: Locks, *names: str) -> Callable[[Callable[[], object]], None]:
    """Return what a child does that pauses while it holds locks."""

    def hold(pause):
        with locks.hold(names, patiently()):
            pause()

    return hold


def is_free(locks: Locks, *names: str) -> bool:
    with locks.try_hold(names) as free:
        return free


def test_names_sort_in_the_order_in_which_locks_are_taken():
    names = [
        INSTANCE,
        device_lock(PciAddress(0, 0x3B, 0, 1)),
        device_lock(PciAddress(0x10000, 0, 0, 0)),
    ]
    assert sorted(names) == names


@pytest.mark.parametrize("uuid", ["", "../../etc/passwd", "a/b", "A", "a" * 200])
def test_a_name_that_is_no_file_name_is_refused(locks, uuid):
    with (
        pytest.raises(exception.InvalidInput),
        locks.hold([consumer_lock(uuid)], soon()),
    ):
        pytest.fail("a path was taken for a lock's name")


def test_a_held_lock_is_not_free_for_another_thread(locks):
    seen = []
    with locks.hold([INSTANCE, CARD], patiently()):
        thread = threading.Thread(target=lambda: seen.append(is_free(locks, CARD)))
        thread.start()
        thread.join()
    assert seen == [False]
    assert is_free(locks, INSTANCE, CARD)


def test_a_held_lock_is_not_free_for_another_process(locks, in_child):
    with locks.hold([CARD], patiently()):
        assert in_child(lambda: is_free(locks, CARD)) == "False"
    assert in_child(lambda: is_free(locks, CARD)) == "True"


def test_trying_for_a_lock_does_not_drop_it(locks, in_child):
    with locks.hold([CARD], patiently()):
        assert not is_free(locks, CARD)
        assert in_child(lambda: is_free(locks, CARD)) == "False"


@pytest.mark.parametrize("name", [INSTANCE, CARD])
def test_waiting_ends_at_the_deadline_and_names_the_lock(locks, paused_child, name):
    with paused_child(holding(locks, name)) as holder:
        with (
            pytest.raises(exception.LockTimeout, match=name),
            locks.hold([name], soon()),
        ):
            pytest.fail("two processes hold one lock")
        holder.goes_on()
    assert is_free(locks, name)


def test_waiting_among_threads_ends_at_the_deadline_too(locks):
    with (
        locks.hold([CARD], patiently()),
        pytest.raises(exception.LockTimeout, match=CARD),
        locks.hold([CARD], soon()),
    ):
        pytest.fail("one thread holds a lock twice")


def test_who_does_not_get_all_locks_keeps_none(locks, paused_child, in_child):
    with paused_child(holding(locks, OTHER_CARD)) as holder:
        with (
            pytest.raises(exception.LockTimeout),
            locks.hold([CARD, OTHER_CARD], soon()),
        ):
            pytest.fail("a lock was held that another process holds")
        with locks.try_hold([CARD, OTHER_CARD]) as free:
            assert not free
        assert in_child(lambda: is_free(locks, CARD)) == "True"
        holder.goes_on()


def test_the_lock_of_a_killed_process_is_free_again(locks, paused_child):
    with paused_child(holding(locks, INSTANCE, CARD)) as holder:
        holder.is_killed()
    with locks.hold([INSTANCE, CARD], patiently()):
        assert not is_free(locks, CARD)


def test_an_error_below_a_lock_lets_go_of_it(locks):
    with pytest.raises(ZeroDivisionError), locks.hold([CARD], patiently()):
        _ = 1 / 0
    assert is_free(locks, CARD)


def test_locks_of_consumers_leave_no_files_behind(locks, tmp_path):
    with locks.hold([INSTANCE, CARD], patiently()):
        pass
    assert os.listdir(tmp_path / "locks") == [CARD]


def test_threads_leave_no_queues_behind(locks):
    with locks.hold([INSTANCE, CARD], patiently()):
        assert len(locks_module._process.queues) == 2
    assert not locks_module._process.queues
    assert not locks_module._process.files


def test_a_removed_lock_file_is_acquired_once(locks, tmp_path, in_child):
    """Several threads in several processes increment a counter under the lock."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        for _ in range(10):
            with locks.hold([INSTANCE], patiently()):
                counter.write_text(str(int(counter.read_text()) + 1))

    def count_in_threads() -> None:
        with futures.ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda _: count(), range(3)))

    with futures.ThreadPoolExecutor(3) as watchers:
        children = [watchers.submit(in_child, count_in_threads) for _ in range(3)]
        count_in_threads()
    assert [child.exception() for child in children] == [None] * 3
    assert counter.read_text() == "120"


def test_a_child_does_not_believe_to_hold_its_parents_lock(locks, in_child):
    with contextlib.ExitStack() as held:
        held.enter_context(locks.hold([INSTANCE, CARD], patiently()))
        assert in_child(lambda: is_free(locks, INSTANCE)) == "False"
        # The child runs the parent's "finally" with the inherited locks.
        in_child(held.close)
        assert in_child(lambda: is_free(locks, INSTANCE)) == "False"
        assert in_child(lambda: is_free(locks, CARD)) == "False"


def test_a_childs_own_lock_outlives_what_it_inherited(locks, paused_child, in_child):
    inherited = contextlib.ExitStack()
    inherited.enter_context(locks.hold([INSTANCE, CARD], patiently()))

    def hold(pause):
        pause()
        with locks.hold([INSTANCE, CARD], patiently()):
            inherited.close()
            return [
                os.waitstatus_to_exitcode(os.waitpid(_prober(locks, name), 0)[1])
                for name in (INSTANCE, CARD)
            ]

    with paused_child(hold) as child:
        inherited.close()
        assert child.goes_on() == "[0, 0]"


def _prober(locks: Locks, name: str) -> int:
    """Fork a process that exits with 1 if the lock is free, else with 0."""
    pid = os.fork()
    if not pid:
        os._exit(is_free(locks, name))
    return pid


def test_a_directory_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(exception.StateUnavailable, match="file"),
        Locks(str(tmp_path / "file")).hold([CARD], soon()),
    ):
        pytest.fail("a lock was held without a file")


def test_no_space_for_a_lock_file_is_reported(locks, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(locks_module.os, "open", fail)
    with raises(exception.StateReason.FULL), locks.hold([CARD], soon()):
        pytest.fail("a lock was held without a file")


def test_a_lock_is_no_link(locks, tmp_path):
    """Root would create the file to which it leads."""
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / CARD).symlink_to(tmp_path / "made")
    with raises(exception.StateUnavailable), locks.hold([CARD], soon()):
        pass
    assert not (tmp_path / "made").exists()
