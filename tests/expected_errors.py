# SPDX-License-Identifier: Apache-2.0

"""Expectations of errors: a class, a reason, or the service that failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from os_acc.exception import ErrorReason, OsAccError, ServiceError, ServiceType

#: A reason also implies its class.
Expected = type[OsAccError] | ErrorReason | ServiceType


def has(**expected: object) -> Callable[[BaseException], bool]:
    """Return a check of attributes, for ``pytest.raises(check=...)``."""

    def check(error: BaseException) -> bool:
        return {name: getattr(error, name) for name in expected} == expected

    return check


def is_a(error: object, expected: Expected) -> bool:
    """Return whether the error is as expected."""
    match expected:
        case ErrorReason():
            return isinstance(error, OsAccError) and error.reason is expected
        case ServiceType():
            return isinstance(error, ServiceError) and error.service is expected
    return isinstance(error, expected)


def raises(
    expected: Expected, match: str | None = None
) -> pytest.RaisesExc[OsAccError]:
    """Return a ``pytest.raises`` for an expectation."""
    return pytest.raises(
        OsAccError, match=match, check=lambda error: is_a(error, expected)
    )


def kind_of(error: OsAccError) -> Expected:
    """Return the reason of an error, or its class if it has none."""
    return error.reason or type(error)


@contextlib.contextmanager
def suppress(expected: Expected) -> Iterator[None]:
    """Suppress an expected error, and no other."""
    try:
        yield
    except OsAccError as error:
        if not is_a(error, expected):
            raise
