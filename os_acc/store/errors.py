# SPDX-License-Identifier: Apache-2.0

"""Errors of the store, and of the files in the state directory."""

from __future__ import annotations

import errno
import sqlite3

from os_acc import exception

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_DEFECT = (0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)
_OWNER_HINT = (
    "the user that runs os_acc has to own [os_acc] state_path and be able to"
    " write there"
)


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
    is_read_only = error.errno == errno.EROFS
    refusal = exception.StateUnavailable(
        f"{path} cannot be used: {error.strerror or error}",
        hint="mount its file system writable" if is_read_only else _OWNER_HINT,
    )
    if exception.is_exhaustion(error):
        refusal.set_exhausted()
    return refusal


def from_memory(path: str) -> exception.StateUnavailable:
    """Return the error for an operation that ran out of memory."""
    refusal = exception.StateUnavailable(f"{path} cannot be used: no memory is left")
    refusal.set_exhausted()
    return refusal


def is_damage(error: sqlite3.Error, *more: int) -> bool:
    """Return whether the contents of the store caused the error.

    Only these errors condemn a store. Any other one leaves the file as it is: SQLite
    lacks memory, for example, or a temporary file.

    :param more: other codes that only damage can cause here.
    """
    return _code(error) in (*_DAMAGE, *more)


def from_sqlite(error: sqlite3.Error, path: str) -> exception.StateUnavailable:
    """Return the error for a statement that failed although the store is intact.

    See https://www.sqlite.org/rescode.html for the codes.
    """
    refusal = exception.StateUnavailable(
        f"{path}: {error}",
        hint="this is a defect of os_acc: report it",
        reason=exception.StateReason.FAILED,
    )
    if _code(error) not in _DEFECT:
        refusal.set_exhausted()
    return refusal


def _code(error: sqlite3.Error) -> int:
    # Errors of the sqlite3 module itself have no code. The lowest byte of an extended
    # code is the primary code.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
