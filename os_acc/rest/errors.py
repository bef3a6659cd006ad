# SPDX-License-Identifier: Apache-2.0

"""Classification of the exceptions of a request."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import requests
from keystoneauth1 import exceptions as ksa

# Connections that were refused, dropped, or timed out.
_NETWORK: tuple[type[BaseException], ...] = (
    ksa.ConnectFailure,
    ksa.ConnectTimeout,
    ksa.UnknownConnectionError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
)
_CERTIFICATES = (ksa.SSLError, requests.exceptions.SSLError, ssl.SSLError)


def is_connection(
    error: BaseException, more: tuple[type[BaseException], ...] = ()
) -> bool:
    """Return whether no server answered, rather than an invalid answer.

    :param more: connection exceptions of the service's own client.
    """
    network = (*_NETWORK, *more)
    return not is_certificate(error) and any(
        isinstance(cause, network) for cause in chain(error)
    )


def is_certificate(error: BaseException) -> bool:
    """Return whether the verification of a TLS certificate failed."""
    return any(isinstance(cause, _CERTIFICATES) for cause in chain(error))


def summary(error: BaseException) -> str:
    """Return the first line of an exception's message, or its class name."""
    first = str(error).strip().partition("\n")[0]
    return first or type(error).__name__


def where_to_look(error: BaseException, group: str) -> str:
    """Return a hint at the options to check when no server answered, or ''.

    :param group: the name of the service's option group.
    """
    if is_certificate(error):
        return f"check cafile, certfile and keyfile in [{group}]"
    if isinstance(error, ksa.CatalogException):
        return (
            "check region_name, valid_interfaces and service_type in "
            f"[{group}], or set endpoint_override"
        )
    if isinstance(error, ksa.ClientException):
        return f"check auth_type, auth_url and the credentials in [{group}]"
    # requests.JSONDecodeError is both: a server answered, but not with JSON.
    if isinstance(error, OSError) and not isinstance(error, ValueError):
        return f"check cafile, certfile and keyfile in [{group}]"
    return ""


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes."""
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__
