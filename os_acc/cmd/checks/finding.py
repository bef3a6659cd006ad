# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What a check has found."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Self, TypeAlias

if TYPE_CHECKING:
    from os_acc.cmd.checks.scene import Scene


class Result(enum.Enum):
    """FAILED: os_acc cannot serve, or cannot do what it is told to."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line: how it is, what was found, what to do about it."""

    result: Result
    what: str
    hint: str = ""
    check: str = ""

    def named(self, check: str) -> Self:
        """The same, with the name of its check."""
        return dataclasses.replace(self, check=check)


Check: TypeAlias = Callable[["Scene"], Iterable[Finding]]


def ok(what: str) -> Finding:
    """All is well."""
    return Finding(Result.OK, what)


def warning(what: str, hint: str) -> Finding:
    """It works, but not all of it, or not as meant."""
    return Finding(Result.WARNING, what, hint)


def failed(what: str, hint: str) -> Finding:
    """It does not work."""
    return Finding(Result.FAILED, what, hint)
