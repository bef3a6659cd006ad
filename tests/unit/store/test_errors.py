# SPDX-License-Identifier: Apache-2.0

"""Errors of the host are reported, and leave the state unchanged."""

import errno
import os
import pathlib
import sqlite3
import stat
from typing import Any

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from os_acc.store import Store, errors, owner_of, schema, state_files
from tests.expected_errors import has, raises
from tests.unit.store.store_files import execute, opened_halfway

NOBODY = 65534


@pytest.fixture(params=["write", "fsync"])
def full_disk(request, monkeypatch):
    """Return a function after which no file can grow."""

    def refuse(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    module, name, call = {
        "write": (state_files, "open", opened_halfway(refuse)),
        "fsync": (os, "fsync", refuse),
    }[request.param]
    return lambda: monkeypatch.setattr(module, name, call, raising=False)


def test_a_full_disk_changes_nothing(store, make_lease, full_disk, monkeypatch):
    added = store.add([make_lease(slot) for slot in range(5)])
    full_disk()
    with raises(exception.StateReason.FULL):
        store.add([make_lease(slot) for slot in range(5, 32)])
    # Existing records can still be read, so that an operator sees them.
    assert store.leases() == added
    monkeypatch.undo()
    assert store.leases() == added


def test_a_store_that_does_not_fit_is_not_half_made(state_path, full_disk, monkeypatch):
    full_disk()
    with raises(exception.StateReason.FULL):
        Store.open(state_path, busy_timeout=30)
    monkeypatch.undo()
    assert Store.open(state_path, busy_timeout=30).damaged == ()


def test_a_damaged_store_stays_until_there_is_space_for_another(
    store, state_path, make_lease, full_disk, monkeypatch
):
    added = store.add([make_lease(1, state=LeaseState.HELD)])
    file = pathlib.Path(state_path, "os_acc.sqlite")
    content = file.read_bytes()
    # A wrong application id.
    file.write_bytes(content[:68] + b"oops" + content[72:])
    full_disk()
    with raises(exception.StateReason.FULL):
        Store.open(state_path, busy_timeout=30)
    monkeypatch.undo()
    store = Store.open(state_path, busy_timeout=30)
    assert store.leases() == added
    assert len(store.damaged) == 1


#: Errors of SQLite that the contents of the store do not cause, and places in which it
#: reads the store: in a transaction, and in the recovery of a damaged one.
PASSING = [
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_FULL),
    sqlite3.SQLITE_INTERRUPT,
]
READS = [
    *("PRAGMA application_id", "SELECT rowid, store"),
    "PRAGMA integrity_check(1)",
    "SELECT rowid, address, lease, digest FROM claims",
]
RESCUES = [
    *("SELECT rowid, uuid, consumer", "SELECT rowid, address, lease FROM claims"),
    "SELECT rowid, store, epoch, version, digest FROM meta NOT INDEXED",
    *("PRAGMA integrity_check(regions)", "SELECT rowid, key", "UPDATE meta SET epoch"),
]


def failures(statements: list[str]) -> list[tuple[int, str]]:
    """Return each code at the first statement, and each statement with one code."""
    first, *more = statements
    return [
        *((code, first) for code in PASSING),
        *((PASSING[0], each) for each in more),
    ]


def lacking(monkeypatch: pytest.MonkeyPatch, code: int, statement: str) -> None:
    """Let SQLite fail with a code at the statements that begin like this one."""

    class Lacking(sqlite3.Connection):
        def execute(self, sql: str, /, *arguments: Any) -> sqlite3.Cursor:
            if sql.startswith(statement):
                error = sqlite3.OperationalError("refused")
                error.sqlite_errorcode = code
                raise error
            return super().execute(sql, *arguments)

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None, factory=Lacking)
        connection.create_function("row_digest", -1, schema.row_digest)
        return connection

    monkeypatch.setattr(schema, "_in_memory", connect)


def check_kept(state_path, file, monkeypatch, code, statement):
    """Check that a store on which SQLite fails is unavailable, and stays as it is."""
    before = file.read_bytes()
    with monkeypatch.context() as patch:
        lacking(patch, code, statement)
        with pytest.raises(exception.StateUnavailable, check=has(retryable=True)):
            Store.open(state_path, busy_timeout=30)
    assert file.read_bytes() == before


@pytest.mark.parametrize(("code", "statement"), failures(READS))
def test_an_error_that_is_no_damage_condemns_no_store(
    store, state_path, file, make_lease, monkeypatch, code, statement
):
    added = store.add([make_lease(1, state=LeaseState.HELD)])
    check_kept(state_path, file, monkeypatch, code, statement)
    assert Store.open(state_path, busy_timeout=30).leases() == added
    assert store.damaged == ()


@pytest.mark.parametrize(("code", "statement"), failures(RESCUES))
def test_a_damaged_store_is_not_replaced_by_a_part_of_what_can_be_read(
    store, state_path, file, make_lease, monkeypatch, code, statement
):
    added = store.add([make_lease(1, state=LeaseState.HELD)])
    execute(file, "DROP TABLE events")
    check_kept(state_path, file, monkeypatch, code, statement)
    assert store.damaged == ()
    store = Store.open(state_path, busy_timeout=30)
    assert store.leases() == added
    assert len(store.damaged) == 1


def test_a_directory_without_permission_is_reported(tmp_path, in_child):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)

    def open_as_another_user() -> None:
        if not os.geteuid():
            os.setuid(NOBODY)
        Store.open(str(locked / "state"), busy_timeout=30)

    assert in_child(open_as_another_user) == "StateUnavailable"


def test_a_path_below_a_file_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(exception.StateUnavailable, match="own"):
        Store.open(str(tmp_path / "file" / "state"), busy_timeout=30)
    with pytest.raises(exception.StateUnavailable):
        owner_of(str(tmp_path / "file" / "state"))


def test_a_file_that_is_a_directory_is_reported(state_path):
    os.makedirs(f"{state_path}/os_acc.sqlite")
    with pytest.raises(exception.StateUnavailable):
        Store.open(state_path, busy_timeout=30)


def test_a_path_with_odd_characters_works(tmp_path, make_lease):
    state_path = str(tmp_path / "a?b=c#d %41[x]*")
    added = Store.open(state_path, busy_timeout=30).add([make_lease(1)])
    assert Store.open(state_path, busy_timeout=30).leases() == added
    pathlib.Path(state_path, "os_acc.sqlite").write_bytes(b"no database")
    assert len(Store.open(state_path, busy_timeout=30).damaged) == 1


def test_the_owner_of_the_state_directory_is_returned(store, state_path):
    assert owner_of(state_path) == (os.geteuid(), os.getegid())


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, exception.StateReason.FULL),
        (errno.EDQUOT, exception.StateReason.FULL),
        (errno.EACCES, exception.StateReason.UNUSABLE),
        (errno.EROFS, exception.StateReason.UNUSABLE),
    ],
)
def test_system_calls_that_fail(number, error):
    refusal = errors.from_os_error(OSError(number, "refused"), "/state")
    assert type(refusal) is exception.StateUnavailable
    assert refusal.reason is error
    assert "/state" in refusal.message


def test_the_file_stays_that_of_its_owner(store, file, make_lease):
    """A commit replaces the file: its owner and its permissions are those of before."""
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    # Root can give a file away.
    owner = (os.geteuid() or NOBODY, os.getegid() or NOBODY)
    os.chown(file, *owner)
    file.chmod(0o600)
    store.add([make_lease(1)])
    state = file.stat()
    assert (state.st_uid, state.st_gid, stat.S_IMODE(state.st_mode)) == (*owner, 0o600)
    execute(file, "DROP TABLE events")
    assert Store.open(os.path.dirname(file), busy_timeout=30).damaged
    state = file.stat()
    assert (state.st_uid, state.st_gid, stat.S_IMODE(state.st_mode)) == (*owner, 0o600)


def test_a_store_whose_owner_cannot_be_kept_stays(store, file, make_lease, monkeypatch):
    """Another user who may write in the directory does not take the file over."""

    def refuse(*_arguments: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    before = file.read_bytes()
    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(exception.StateUnavailable, match="not permitted"):
        store.add([make_lease(1)])
    assert file.read_bytes() == before
    assert not os.path.lexists(f"{file}.new")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_in_the_place_of_the_new_file_is_not_followed(
    tmp_path, store, state_path, file, make_lease, is_there
):
    target = tmp_path / "target"
    if is_there:
        target.write_bytes(b"of another")
    os.symlink(target, f"{file}.new")
    added = store.add([make_lease(1)])
    assert not file.is_symlink()
    assert Store.open(state_path, busy_timeout=30).leases() == added
    assert target.exists() == is_there
    assert not is_there or target.read_bytes() == b"of another"


def test_the_rest_of_a_commit_costs_nothing(tmp_path, store, file, make_lease):
    """An interrupted commit may leave its file, which others may have linked."""
    rest, other = pathlib.Path(f"{file}.new"), tmp_path / "other"
    rest.write_bytes(b"half")
    os.link(rest, other)
    rest.chmod(0o644)
    store.add([make_lease(1)])
    assert other.read_bytes() == b"half"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_directory_in_the_place_of_the_new_file_is_reported(store, file, make_lease):
    os.mkdir(f"{file}.new")
    with pytest.raises(exception.StateUnavailable, match="cannot be used"):
        store.add([make_lease(1)])
    assert store.leases() == ()
