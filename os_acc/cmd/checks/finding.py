# SPDX-License-Identifier: Apache-2.0

"""What a check has found."""

from __future__ import annotations

import dataclasses
import enum
from typing import Self


class Severity(enum.Enum):
    """FAILED: os_acc cannot serve, or cannot do what it is told to."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line: how it is, what was found, what to do about it."""

    result: Severity
    what: str
    hint: str = ""
    check: str = ""

    def named(self, check: str) -> Self:
        """The same, with the name of its check."""
        return dataclasses.replace(self, check=check)


def ok(what: str) -> Finding:
    """All is well."""
    return Finding(Severity.OK, what)


def warning(what: str, hint: str) -> Finding:
    """It works, but not all of it, or not as meant."""
    return Finding(Severity.WARNING, what, hint)


def failed(what: str, hint: str) -> Finding:
    """It does not work."""
    return Finding(Severity.FAILED, what, hint)
