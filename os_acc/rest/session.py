# SPDX-License-Identifier: Apache-2.0

"""The limits of responses, and the classes of keystoneauth1's exceptions.

requests does not limit the size of a response. Here the responses of all services,
Keystone included, are limited in the bytes of the body and the number of JSON values;
:mod:`http.client` allows 100 header fields, and 64 KiB in each line of the framing.
Streamed image data have a limit of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import ssl
import threading
import time
from typing import Any, Final

import requests
import urllib3.exceptions
from keystoneauth1 import exceptions as ksa
from keystoneauth1 import session as ksa_session
from oslo_config import cfg

from os_acc import exception
from os_acc.rest.responses import ResponseUnreadable

#: Bytes of a response. Placement's list for a node with 1,000 providers has one
#: megabyte, Cyborg's of 10,000 device profiles six, a Glance page with 200 images
#: less than one.
MOST_BYTES: Final = 16 << 20
#: JSON values in a response, where commas in strings count too: the 10,000 profiles
#: have 150,000 values. Python needs up to a hundred bytes for each.
MOST_VALUES: Final = 1 << 20
_PIECE: Final = 1 << 16
#: The Accept header of requests for streamed image data, which are not limited here.
DATA: Final = "application/octet-stream"
# Statuses of a response with image data.
_WITH_DATA: Final = (200, 206)


@dataclasses.dataclass(slots=True)
class Call:
    """The requests of one thread.

    :ivar deadline: on the clock of :func:`time.monotonic`.
    :ivar status: of the last response; None if the last request has none.
    """

    deadline: float
    status: int | None = None


class _Thread(threading.local):
    call = Call(math.inf)


#: ``call`` is the current call of the thread.
thread: Final = _Thread()


class LimitedAdapter(ksa_session.TCPKeepAliveAdapter):
    """keystoneauth1's HTTP adapter; it limits responses, and ends at a deadline."""

    def send(
        self, request: requests.PreparedRequest, *args: Any, **kwargs: Any
    ) -> requests.Response:
        """Send a request of the current call.

        :raises TimeoutError: the deadline has passed, such as during the pause of
            keystoneauth1 before a retry.
        :raises ResponseUnreadable: the response is too large, or encoded.
        """
        call = thread.call
        call.status = None
        usual = kwargs.get("timeout") or math.inf
        kwargs["timeout"] = min(usual, _left(call.deadline))
        # Without compression, the size is the transferred size.
        request.headers["Accept-Encoding"] = "identity"
        try:
            response = super().send(request, *args, **kwargs)
            call.status = response.status_code
            # keystoneauth1 would pause for as long as the server asks for.
            response.headers.pop("Retry-After", None)
            streams = request.headers.get("Accept") == DATA
            if not (streams and response.status_code in _WITH_DATA):
                _read(response, call.deadline)
        except urllib3.exceptions.HTTPError as error:
            # requests does not wrap every urllib3 error.
            raise requests.ConnectionError(error, request=request) from error
        return response


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


def _read(response: requests.Response, deadline: float) -> None:
    """Replace the body of a response by what was read from it, within the limits."""
    body = io.BytesIO()
    with contextlib.closing(response.raw) as raw:
        coding = response.headers.get("Content-Encoding", "identity")
        if coding.strip().lower() != "identity":
            raise ResponseUnreadable(f"it is encoded: {exception.show(coding)}")
        # read() of http.client limits the lines between chunks; stream() does not.
        while piece := raw.read(_PIECE, decode_content=False):
            _left(deadline)
            body.write(piece)
            if body.tell() > MOST_BYTES:
                raise ResponseUnreadable(f"it has more than {MOST_BYTES} bytes")
    if sum(map(body.getvalue().count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise ResponseUnreadable(f"it has more than {MOST_VALUES} values")
    body.seek(0)
    response.raw = body
    # JSON is UTF-8; else requests guesses, or uses the codec that the server names.
    response.encoding = "utf-8"


def http_session(group: cfg.ConfigOpts.GroupAttr) -> requests.Session:
    """Return a session with the TLS options of a group, whose responses are limited."""
    # The oldest supported keystoneauth1 lacks the TLS options.
    tls = {
        name: getattr(group, name)
        for name in ("tls_ciphers", "tls_min_version")
        if getattr(group, name, None)
    }
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, LimitedAdapter(**tls))
    return session


# -- exceptions ------------------------------------------------------------------

_NETWORK: Final = (ksa.ConnectFailure, ksa.ConnectTimeout, ksa.UnknownConnectionError)
_CERTIFICATES: Final = (ksa.SSLError, ssl.SSLError)


def is_caused_by(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Return whether an exception, or one of its causes, is of one of the classes."""
    at: BaseException | None = error
    while at is not None and not isinstance(at, kinds):
        at = at.__cause__ or at.__context__
    return at is not None


def is_connection(error: BaseException) -> bool:
    """Return whether no server answered, rather than an invalid answer."""
    return is_caused_by(error, *_NETWORK) and not is_caused_by(error, *_CERTIFICATES)


def where_to_look(error: BaseException, group: str) -> str:
    """Return a hint at the options to check, or '' if the endpoint is wrong.

    :param group: the name of the service's option group.
    """
    if isinstance(error, ksa.CatalogException):
        return (
            "check region_name, valid_interfaces and service_type in "
            f"[{group}], or set endpoint_override"
        )
    # requests.JSONDecodeError is both: a server answered, but not with JSON.
    is_file = isinstance(error, OSError) and not isinstance(error, ValueError)
    if is_file or is_caused_by(error, *_CERTIFICATES):
        return f"check cafile, certfile and keyfile in [{group}]"
    if isinstance(error, ksa.ClientException):
        return f"check auth_type, auth_url and the credentials in [{group}]"
    return ""
