# SPDX-License-Identifier: Apache-2.0

"""Errors of the store, translated from SQLite and the file system."""

from __future__ import annotations

import errno
import os
import sqlite3

from os_acc import exception

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_ACCESS = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_AUTH,
    }
)
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PASSING = _BUSY | _NO_ACCESS | {sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM}
_OWNER_HINT = (
    "the user that runs os_acc has to own [os_acc] state_path and be able to"
    " write there"
)
_DISK_HINT = "look at the disk of [os_acc] state_path; the kernel's log says more"


class AlreadyLeased(exception.NoDeviceAvailable):
    """The lease of another consumer claims a function that this one needs."""

    default_hint = "another plug was faster: choose among the free devices again"


class StaleLease(exception.OsAccError):
    """The lease was changed after the caller had read it."""

    retryable = True
    default_hint = "read the lease again before changing it"


class StoreDamaged(exception.StateUnavailable):
    """The store was damaged and has been replaced; readable records were kept.

    Raised once in each process, by the operation that detects the damage; that
    operation changed nothing.

    :ivar path: path of the damaged file, which was set aside.
    """

    default_hint = (
        "leases may be missing: look at 'os-acc device list' for devices in an"
        " unknown state"
    )
    reason = exception.StateReason.FAILED

    def __init__(self, message: str, *, path: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path


class StoreReplaced(exception.StateUnavailable):
    """The store was replaced after the caller had read it."""

    default_hint = "read the leases again before adding one"
    reason = exception.StateReason.FAILED


def from_os_error(error: OSError, path: str) -> exception.StateUnavailable:
    """Return the error for a failed system call on ``path``."""
    if error.errno in _NO_SPACE:
        return exception.StateUnavailable(
            f"no space is left for {path}", reason=exception.StateReason.FULL
        )
    refusal = exception.StateUnavailable(
        f"{path} cannot be used: {error.strerror or error}", hint=_OWNER_HINT
    )
    if exception.is_exhaustion(error):
        refusal.set_exhausted()
    return refusal


def from_memory(path: str) -> exception.StateUnavailable:
    """Return the error for an operation that ran out of memory."""
    refusal = exception.StateUnavailable(f"{path} cannot be used: no memory is left")
    refusal.set_exhausted()
    return refusal


def from_sqlite(error: sqlite3.Error, path: str) -> exception.StateUnavailable:
    """Return the error for a failed operation on the store at ``path``.

    See https://www.sqlite.org/rescode.html for the codes.
    """
    code = _primary_code(error)
    if code in _BUSY:
        return exception.StateUnavailable(
            f"another process is using {path}", reason=exception.StateReason.BUSY
        )
    if code == sqlite3.SQLITE_FULL or _is_full(path):
        return exception.StateUnavailable(
            f"no space is left for {path}", reason=exception.StateReason.FULL
        )
    if code in _NO_ACCESS:
        refusal = exception.StateUnavailable(
            f"{path} cannot be used: {error}", hint=_OWNER_HINT
        )
        # SQLite does not report why it could not open an accessible file.
        if code == sqlite3.SQLITE_CANTOPEN and _can_be_opened(path):
            refusal.set_exhausted()
        return refusal
    return exception.StateUnavailable(
        f"{path}: {error}", hint=_DISK_HINT, reason=exception.StateReason.FAILED
    )


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether SQLite reports that the file is not a valid database."""
    return _primary_code(error) in _DAMAGED


def is_passing(error: sqlite3.Error) -> bool:
    """Return whether the error is transient, unrelated to the file's contents."""
    return _primary_code(error) in _PASSING


def _primary_code(error: sqlite3.Error) -> int:
    # Errors of the sqlite3 module itself carry no code. The lowest byte of an
    # extended code is the primary code.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _can_be_opened(path: str) -> bool:
    # Uses no descriptor: the process may have run out of them.
    return (
        os.path.isfile(path)
        and os.access(path, os.R_OK | os.W_OK)
        and os.access(os.path.dirname(path), os.W_OK | os.X_OK)
    )


def _is_full(path: str) -> bool:
    # If the journal does not fit, SQLite reports a full disk as an input/output
    # error or as a file that cannot be opened.
    try:
        state = os.statvfs(os.path.dirname(path))
    except OSError:
        return False
    return state.f_blocks > 0 and state.f_bavail == 0
