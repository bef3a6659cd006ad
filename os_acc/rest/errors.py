# SPDX-License-Identifier: Apache-2.0

"""Why a service has not answered, by the exceptions of those who asked it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import requests
from keystoneauth1 import exceptions as ksa

# Connections that were refused, dropped or silent.
_NETWORK: tuple[type[BaseException], ...] = (
    ksa.ConnectFailure,
    ksa.ConnectTimeout,
    ksa.UnknownConnectionError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
)


class ResponseUnread(Exception):
    """An answer that is not read: it is too large, or is encoded."""


class ResponseMalformed(ValueError):
    """A value in an answer has another type than the service's API says."""


#: What is raised on the way through an answer that is not the service's.
NOT_THEIRS = (
    ResponseUnread,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_CERTIFICATES = (ksa.SSLError, requests.exceptions.SSLError, ssl.SSLError)


def is_connection(
    error: BaseException, more: tuple[type[BaseException], ...] = ()
) -> bool:
    """Whether nobody answered, rather than somebody something wrong.

    :param more: exceptions of the service's own client that say so.
    """
    network = (*_NETWORK, *more)
    return not is_certificate(error) and any(
        isinstance(cause, network) for cause in chain(error)
    )


def is_certificate(error: BaseException) -> bool:
    """Whether one side does not trust the other's certificate."""
    return any(isinstance(cause, _CERTIFICATES) for cause in chain(error))


def told(error: BaseException) -> str:
    """The first line of what an exception says."""
    first = str(error).strip().partition("\n")[0]
    return first or type(error).__name__


def where_to_look(error: BaseException, group: str) -> str:
    """Which options may be to blame, where nothing was answered; '' if none.

    :param group: of the service's options.
    """
    if is_certificate(error):
        return f"see cafile, certfile and keyfile in [{group}]"
    if isinstance(error, ksa.CatalogException):
        return (
            f"see region_name, valid_interfaces and service_type in "
            f"[{group}], or set endpoint_override"
        )
    if isinstance(error, ksa.ClientException):
        return f"see auth_type, auth_url and what else it needs in [{group}]"
    # requests' error for what is no JSON is both: somebody has answered.
    if isinstance(error, OSError) and not isinstance(error, ValueError):
        return f"see cafile, certfile and keyfile in [{group}]"
    return ""


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, and what it came of."""
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__
