# SPDX-License-Identifier: Apache-2.0

"""No damage to the store's file lets a device in use be given away.

Either the library serves and plugs free devices; or its error names the file that
it cannot use, and the remedy.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from oslo_privsep import capabilities

from os_acc import exception
from os_acc.attach.manager import Manager
from os_acc.objects.lease import Lease
from os_acc.store import StoreDamaged, snapshot
from os_acc.testing import TestHost
from tests.stress import fault_store, processes
from tests.stress.fault_flows import NEXT
from tests.stress.fault_store import (
    DAMAGES,
    NIC,
    PAGE,
    check_serves,
    file_of,
)
from tests.stress.result_tables import Count, Counting
from tests.stress.simulated_host import plug
from tests.unit.store.store_files import execute


@pytest.fixture(scope="module")
def sound() -> Iterator[TestHost]:
    """Build a host with its store, to be copied."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="os-acc-", dir=memory) as directory:
        bench = fault_store.build(os.path.join(directory, "sound"))
        processes.result(lambda: fault_store.fill(bench))
        yield bench


@pytest.fixture
def leases(sound: TestHost) -> tuple[Lease, ...]:
    return fault_store.originals(sound)


@pytest.fixture
def bench(sound: TestHost, place: str) -> TestHost:
    return sound.copy(os.path.join(place, "bench"))


def survive(
    sound: TestHost,
    place: str,
    counting: Counting,
    what: str,
    attempt: Callable[[TestHost, Any], None],
    cases: Mapping[str, object],
) -> None:
    """Attempt each case on a copy, in a process of its own."""
    troubles = []
    for number, (name, case) in enumerate(cases.items()):
        bench = sound.copy(os.path.join(place, str(number)))
        if why := processes.call(functools.partial(attempt, bench, case)).why:
            troubles.append(f"{name}:\n{why}")
        bench.remove()
    tried = len(cases)
    counting(Count("a damaged store", what, tried, 1, tried, tried - len(troubles)))
    assert not troubles, f"{len(troubles)} not survived:\n" + "\n".join(troubles)


def read(bench: TestHost) -> None:
    """Check that a reader gets an error, and changes nothing."""
    state = os.path.dirname(file_of(bench))
    with fault_store.changing_nothing(bench):
        try:
            snapshot.read(state)
        except exception.StateUnavailable as error:
            check_named(error)


def check_named(error: exception.StateUnavailable) -> None:
    assert "os_acc.sqlite" in error.message, repr(error)
    assert error.hint, repr(error)


def refusal_of(manager: Manager) -> StoreDamaged | None:
    """Plug; return the error if it was refused."""
    try:
        plug(manager, NEXT, NIC)
    except StoreDamaged as error:
        return error
    return None


def pages_of(file: pathlib.Path) -> range:
    return range(file.stat().st_size // PAGE)


def is_aside(bench: TestHost, content: bytes) -> bool:
    aside = fault_store.files(bench)
    return any(kept == content for name, kept in aside.items() if ".damaged-" in name)


# -- the file -----------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_every_page_may_be_damaged_before_a_start(
    sound, leases, place, counting, damage
):
    def attempt(bench: TestHost, number: int) -> None:
        fault_store.damage_page(file_of(bench), number, damage)
        read(bench)
        check_serves(bench, leases)

    pages = pages_of(file_of(sound))
    cases = {f"page {number}": number for number in pages}
    survive(
        sound, place, counting, f"a page {damage.__name__}, at start", attempt, cases
    )


def _unplugged(manager: Manager) -> int:
    """Unplug, which may be the first to read the damaged page."""
    try:
        return manager.unplug({"uuid": NEXT})
    except StoreDamaged as error:
        check_named(error)
        return manager.unplug({"uuid": NEXT})


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_every_page_may_be_damaged_in_use(sound, leases, place, counting, damage):
    """The operation that detects it may fail; the next one is served."""

    def attempt(bench: TestHost, number: int) -> None:
        with bench.installed():
            manager = bench.start()
            fault_store.damage_page(file_of(bench), number, damage)
            before = bench.kernel.snapshot()
            if (error := refusal_of(manager)) is not None:
                check_named(error)
                assert os.path.exists(error.path)
                assert bench.kernel.snapshot() == before
                plug(manager, NEXT, NIC)
                assert manager.unplug({"uuid": NEXT}) == 1
            else:
                assert _unplugged(manager) == 1
        check_serves(bench, leases)

    pages = pages_of(file_of(sound))
    cases = {f"page {number}": number for number in pages}
    survive(sound, place, counting, f"a page {damage.__name__}, in use", attempt, cases)


def test_every_record_may_be_wrong_in_one_bit(sound, leases, place, counting):
    """SQLite finds no damage; each lease is reported, and blocks its devices."""

    def attempt(bench: TestHost, seed: int) -> None:
        fault_store.damage_records(file_of(bench), leases, random.Random(seed))
        read(bench)
        check_serves(bench, leases)
        store = fault_store.open_store(bench)
        assert store.leases() == ()
        regions = store.recorded_state().unverified_regions
        assert regions.verified_since_loss is not None
        members = {each for lease in leases for each in lease.members}
        assert set(store.damaged_claims()) == members

    cases = {f"seed {seed}": seed for seed in range(8)}
    survive(sound, place, counting, "a bit of each record", attempt, cases)


def test_the_tail_may_be_cut_off_anywhere(sound, leases, place, counting):
    size = file_of(sound).stat().st_size

    def attempt(bench: TestHost, length: int) -> None:
        os.truncate(file_of(bench), length)
        content = file_of(bench).read_bytes()
        read(bench)
        check_serves(bench, leases)
        # To SQLite, bytes that are missing in the last page are zeros.
        if length <= size - PAGE:
            assert is_aside(bench, content), "not set aside"

    lengths = {0, 1, 15, 16, 99, 100, 512, PAGE - 1, PAGE, PAGE + 1, size - 1}
    lengths |= {
        page * PAGE - cut for page in range(2, size // PAGE, 5) for cut in (0, 7)
    }
    cases = {f"{each} bytes": each for each in sorted(lengths)}
    survive(sound, place, counting, "a tail cut off", attempt, cases)


# -- the schema ---------------------------------------------------------------


def columns(bench: TestHost) -> dict[str, list[str]]:
    """Return the columns of each table."""
    with contextlib.closing(sqlite3.connect(file_of(bench))) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master"
            " WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        return {
            table: [
                name
                for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")
            ]
            for (table,) in tables
        }


def without_a_column(bench: TestHost) -> Iterator[tuple[str, ...]]:
    """Yield statements that remove a column, whether a key needs it or not."""
    for table, names in columns(bench).items():
        for column in names:
            others = [each for each in names if each != column]
            if others:
                yield (
                    f"CREATE TABLE less AS SELECT {', '.join(others)} FROM {table}",
                    f"DROP TABLE {table}",
                    f"ALTER TABLE less RENAME TO {table}",
                )


def test_a_table_or_a_column_may_be_missing_or_have_another_name(
    sound, leases, place, counting
):
    def attempt(bench: TestHost, statements: Sequence[str]) -> None:
        execute(file_of(bench), *statements)
        content = file_of(bench).read_bytes()
        read(bench)
        check_serves(bench, leases)
        assert is_aside(bench, content)

    tables = columns(sound)
    assert "leases" in tables
    changes: list[Sequence[str]] = [[f"DROP TABLE {table}"] for table in tables]
    changes += [
        [f"ALTER TABLE {table} RENAME COLUMN {column} TO other"]
        for table, names in tables.items()
        for column in names
    ]
    changes += without_a_column(sound)
    cases = {"; ".join(each): each for each in changes}
    survive(sound, place, counting, "a schema that is wrong", attempt, cases)


# -- no file, or an unreadable one --------------------------------------------


def test_a_directory_in_its_place_is_told(bench, leases):
    file = file_of(bench)
    elsewhere = file.with_name("elsewhere")
    file.rename(elsewhere)
    file.mkdir()
    with pytest.raises(exception.StateUnavailable) as caught:
        bench.start_here()
    check_named(caught.value)
    file.rmdir()
    elsewhere.rename(file)
    check_serves(bench, leases, whole=True)


@pytest.mark.parametrize("mode", [0o000, 0o200])
def test_a_file_that_may_not_be_read_is_reported(bench, leases, mode):
    file_of(bench).chmod(mode)

    def start() -> None:
        # Root may read its own files in any mode; without its capabilities it is
        # as any other user.
        capabilities.drop_all_caps_except([], [], [])
        with bench.installed(), pytest.raises(exception.StateUnavailable) as why:
            bench.start()
        check_named(why.value)

    processes.result(start)
    file_of(bench).chmod(0o640)
    check_serves(bench, leases, whole=True)


# -- files beside it ----------------------------------------------------------


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", ".new"])
@pytest.mark.parametrize("content", [b"", b"x", b"\xa5" * 8192, bytes(65536)])
def test_a_foreign_file_beside_it_changes_nothing(bench, leases, suffix, content):
    file_of(bench).with_name(f"os_acc.sqlite{suffix}").write_bytes(content)
    read(bench)
    check_serves(bench, leases, whole=True)
