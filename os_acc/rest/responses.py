# SPDX-License-Identifier: Apache-2.0

"""Typed reading of JSON responses.

Each value knows its path in the response: ``inventories.CUSTOM_X.total``. A value
of another type than the reader asks for raises :class:`.ResponseMalformed`, so that
no unchecked value leaves this module. A parser puts :class:`UnusableValue` in place
of a value that cannot be used: the reader of that field rejects it, and reads the
rest of the document.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from os_acc import exception
from os_acc.objects.instance import canonical_uuid

if TYPE_CHECKING:
    from requests import Response


# Characters of a number. Python refuses to read or write an integer of more than
# 4300 decimal digits.
_LONGEST_NUMBER: Final = 1_000


class ResponseUnreadable(Exception):
    """A response that is too large, or has an unexpected content coding."""


class ResponseMalformed(ValueError):
    """A value in a response has another type than the service's API defines."""


#: Exceptions of parsing a response that the service did not send.
NOT_THEIRS = (
    ResponseUnreadable,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class UnusableValue:
    """A value that cannot be used.

    :ivar why: a short reason.
    """

    why: str

    def __repr__(self) -> str:
        return f"<{self.why}>"


def integer(number: str) -> int | UnusableValue:
    """Return an integer of JSON; see ``parse_int`` of :func:`json.loads`."""
    if len(number) <= _LONGEST_NUMBER:
        return int(number)
    return UnusableValue(f"a number of {len(number)} characters")


#: The largest integer that is accepted: a signed 64-bit integer, as in databases.
LARGEST: Final = 2**63 - 1
# Characters of a path, and of the text of a rejection, in a message.
_LONGEST_PATH: Final = 200
_LONGEST_REFUSAL: Final = 600


@dataclasses.dataclass(frozen=True, slots=True)
class JsonValue:
    """A value in a response.

    :ivar path: its position in the response; empty for the entire document.
    """

    found: object
    path: str = ""

    def __getitem__(self, name: str) -> JsonValue:
        """Return a field of an object.

        :raises ResponseMalformed: it is no object, or lacks the field.
        """
        fields = self._fields()
        if name not in fields:
            raise self._wrong(f"has no field {name!r}")
        return JsonValue(fields[name], self._below(name))

    def __contains__(self, name: str) -> bool:
        return name in self._fields()

    def items(self) -> Iterator[tuple[str, JsonValue]]:
        """Return the fields of an object.

        :raises ResponseMalformed: it is no object.
        """
        for name, value in self._fields().items():
            if not exception.is_encodable(name):
                raise self._wrong(f"has a field {exception.show(name)}")
            yield name, JsonValue(value, self._below(name))

    def __iter__(self) -> Iterator[JsonValue]:
        """Return the elements of a list.

        :raises ResponseMalformed: it is no list.
        """
        if not isinstance(self.found, list):
            raise self._not("a list")
        for index, value in enumerate(self.found):
            yield JsonValue(value, f"{self.path}[{index}]")

    def text(self) -> str:
        """Return a string.

        :raises ResponseMalformed: it is no string, or cannot be encoded.
        """
        if not isinstance(self.found, str) or not exception.is_encodable(self.found):
            raise self._not("a text")
        return self.found

    def uuid(self) -> str:
        """Return a UUID, as it is written.

        :raises ResponseMalformed: it is no UUID.
        """
        text = self.text()
        if canonical_uuid(text) is None:
            raise self._not("a UUID")
        return text

    def optional(self) -> JsonValue | None:
        """Return the value itself; None for JSON's null."""
        return None if self.found is None else self

    def integer(self) -> int:
        """Return an integer of at most 64 bits.

        :raises ResponseMalformed: it is no integer, or negative.
        """
        # A bool is an int to Python.
        if type(self.found) is not int or not 0 <= self.found <= LARGEST:
            raise self._not("an integer from 0 to 2**63 - 1")
        return self.found

    def boolean(self) -> bool:
        """Return a boolean.

        :raises ResponseMalformed: it is no boolean.
        """
        if not isinstance(self.found, bool):
            raise self._not("a boolean")
        return self.found

    def number(self) -> float:
        """Return a number: an integer of at most 64 bits, or a finite fraction.

        :raises ResponseMalformed: it is no number.
        """
        if isinstance(self.found, float) and math.isfinite(self.found):
            return self.found
        if type(self.found) is not int or abs(self.found) > LARGEST:
            raise self._not("a finite number")
        return self.found

    def _fields(self) -> dict[str, object]:
        if not isinstance(self.found, dict):
            raise self._not("an object")
        return self.found

    def _below(self, name: str) -> str:
        path = f"{self.path}.{name}" if self.path else name
        # A field name may be as long as the response.
        return exception.shorten(path, _LONGEST_PATH)

    def _not(self, what: str) -> ResponseMalformed:
        return self._wrong(f"is {exception.show(self.found)}, not {what}")

    def _wrong(self, how: str) -> ResponseMalformed:
        return ResponseMalformed(
            f"{self.path!r} {how}" if self.path else f"the answer {how}"
        )


def document(answer: Response) -> JsonValue:
    """Parse a JSON response.

    :class:`UnusableValue` replaces an integer with too many digits.

    :raises ValueError: the response is not JSON.
    :raises RecursionError: it is nested too deeply.
    """
    return JsonValue(answer.json(parse_int=integer))


def refusal(answer: Response) -> str:
    """Return the message of a rejection, or the HTTP status if it has none.

    Nova and Keystone answer ``{kind: {"message": ...}}``, Placement
    ``{"errors": [{"detail": ...}]}``, Glance ``{"message": ...}`` with HTML.
    """
    try:
        detail = " ".join(_detail(document(answer)).split())
    except NOT_THEIRS:
        detail = ""
    status = f"HTTP {answer.status_code}"
    if not detail:
        return status
    return f"{exception.shorten(detail, _LONGEST_REFUSAL)} ({status})"


def _detail(body: JsonValue) -> str:
    if "message" in body:
        return body["message"].text().replace("<br />", " ")
    if "errors" in body:
        for each in body["errors"]:
            return each["detail"].text()
    ((_kind, about),) = body.items()
    return about["message"].text()
