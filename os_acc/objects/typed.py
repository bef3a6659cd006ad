# SPDX-License-Identifier: Apache-2.0

"""Checks of the types of values that a vendor's code makes.

The types are exact: the library uses a value for long, and a method of a derived
type's own could fail at any time.
"""

from __future__ import annotations

from os_acc import exception


def expect(what: str, value: object, *kinds: type) -> None:
    """Check that a value has one of these types.

    :param what: the attribute that has the value.
    :raises ValueError: it has another type; so do the functions below.
    """
    if type(value) not in kinds:
        raise ValueError(f"{what} is {exception.show(value)}, not {_a(kinds[0])}")


def expect_all(what: str, parts: object, kind: type, of: type) -> None:
    """Check the type of a container and of all its parts."""
    expect(what, parts, kind)
    for each in parts:  # type: ignore[attr-defined]
        if type(each) is not of:
            expect(f"a part of {what}", each, of)


def expect_number(what: str, value: object) -> None:
    """Check that a value is an integer, and not negative."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{what} is {exception.show(value)}, not a number from 0 on")


def expect_text(what: str, value: object) -> None:
    """Check that a value is text that can be printed and stored."""
    if type(value) is not str or not exception.is_encodable(value):
        raise ValueError(f"{what} is {exception.show(value)}, not plain Unicode text")


def plain_text(what: str, value: object) -> str:
    """Return text as a plain str, also that of a derived type (a translation)."""
    if not isinstance(value, str):
        expect(what, value, str)
    text = str.__str__(value)
    expect_text(what, text)
    return text


def _a(kind: type) -> str:
    article = "an" if kind.__name__[0] in "AEIOUaeiou" else "a"
    return f"{article} {kind.__name__}"
