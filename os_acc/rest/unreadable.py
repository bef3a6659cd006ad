# SPDX-License-Identifier: Apache-2.0

"""Values of a document that stand where they are, and cannot be used.

A parser puts :class:`UnusableValue` in the place of such a value. The reader of that
place refuses it as a value of another type, and reads the rest of the document.
"""

from __future__ import annotations

import dataclasses
from typing import Final

#: Characters of a number. Python refuses to read or write an integer of more than
#: 4300 decimal digits; in 1,000 characters, hexadecimal too, there are fewer.
LONGEST_NUMBER: Final = 1_000


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class UnusableValue:
    """A value that cannot be used.

    :ivar why: a short reason.
    """

    why: str

    def __repr__(self) -> str:
        return f"<{self.why}>"


def too_long(number: str) -> UnusableValue | None:
    """Return the stand-in for a number with too many characters; None for others."""
    if len(number) <= LONGEST_NUMBER:
        return None
    return UnusableValue(f"a number of {len(number)} characters")


def integer(number: str) -> int | UnusableValue:
    """Return an integer of JSON; see ``parse_int`` of :func:`json.loads`."""
    return too_long(number) or int(number)
