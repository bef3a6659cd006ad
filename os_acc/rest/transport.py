# SPDX-License-Identifier: Apache-2.0

"""HTTP connections with a deadline and a limit on the size of responses.

The timeouts of requests apply to each read: a server that sends a byte now
and then holds a request for ever. Here, connecting and every read of a
response end at a deadline.

requests does not limit the size of a response either. Here the responses of
all services, Keystone included, are limited in the decoded bytes of the body,
the number of JSON values, the length of each line of the framing, and the
header fields (:mod:`http.client`: 100 of at most 64 KiB each). Streamed image
data have a limit of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import io
import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, cast

import requests
import urllib3.connection
import urllib3.connectionpool
import urllib3.exceptions
from keystoneauth1 import session as ksa_session

from os_acc import exception
from os_acc.rest.responses import ResponseUnread

#: Decoded bytes of a response. Placement's list for a node with 1,000 providers has
#: one megabyte, Cyborg's of 10,000 device profiles six, a Glance page with
#: 200 images less than one.
MOST_BYTES: Final = 16 << 20
#: JSON values in a response, where commas in strings count too: the 10,000 profiles
#: have 150,000 values. Python needs up to a hundred bytes for each.
MOST_VALUES: Final = 1 << 20
#: Bytes of one line: status, header, or framing of chunks.
MOST_OF_LINE: Final = 1 << 16
# Bytes decoded at a time: gzip expands one piece to ten megabytes at most.
_PIECE: Final = 10 << 10
# A single coding: each further one multiplies the expansion.
_CODINGS: Final = ("", "identity", "gzip")


@dataclasses.dataclass(slots=True)
class ThreadRequest:
    """The current request of a thread.

    :ivar deadline: on the clock of :func:`time.monotonic`.
    :ivar status: of the last response; None if the last request has none.
    """

    deadline: float
    status: int | None = None


class _Thread(threading.local):
    asking = ThreadRequest(math.inf)


_thread = _Thread()
#: The Accept header of requests for streamed image data; their responses are
#: not limited here. glanceclient streams every response, and reads it whole.
DATA: Final = "application/octet-stream"
# Statuses of a response with image data.
_WITH_DATA: Final = (200, 206)


@contextlib.contextmanager
def until(deadline: float) -> Iterator[ThreadRequest]:
    """Apply a deadline to the requests of this thread.

    A response keeps its deadline when it is read later.

    :param deadline: on the clock of :func:`time.monotonic`.
    """
    before = _thread.asking
    _thread.asking = asking = ThreadRequest(deadline)
    try:
        yield asking
    finally:
        _thread.asking = before


class Adapter(ksa_session.TCPKeepAliveAdapter):
    """keystoneauth1's HTTP adapter, with the connections of this module."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def send(
        self, request: requests.PreparedRequest, *args: Any, **kwargs: Any
    ) -> requests.Response:
        asking = _thread.asking
        asking.status = None
        # Without compression, the decoded size is the transferred size.
        request.headers["Accept-Encoding"] = "identity"
        try:
            response = super().send(request, *args, **kwargs)
            asking.status = response.status_code
            streams = request.headers.get("Accept") == DATA
            if not (streams and response.status_code in _WITH_DATA):
                _take(response)
        except urllib3.exceptions.HTTPError as error:
            # requests does not wrap every urllib3 error.
            raise requests.ConnectionError(error, request=request) from error
        return response


def _take(response: requests.Response) -> None:
    """Read the body of a response, up to the limits.

    :raises ResponseUnread: it is too large, or in an unexpected coding.
    """
    with contextlib.ExitStack() as unused:
        unused.callback(response.close)
        coding = response.headers.get("Content-Encoding", "").strip().lower()
        if coding not in _CODINGS:
            raise ResponseUnread(f"it is encoded: {exception.show(coding)}")
        body = bytearray()
        for piece in response.iter_content(_PIECE):
            body += piece
            if len(body) > MOST_BYTES:
                raise ResponseUnread(f"it has more than {MOST_BYTES} bytes")
        if sum(body.count(each) for each in (b",", b"[", b"{")) > MOST_VALUES:
            raise ResponseUnread(f"it has more than {MOST_VALUES} values")
        unused.pop_all()
        # The attribute that requests itself uses; it has no public setter.
    response._content = bytes(body)
    # JSON is UTF-8; else requests guesses, or uses the codec that the server names.
    response.encoding = "utf-8"


class _Reading(io.RawIOBase):
    """The raw reader of a socket, limited by a deadline."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        super().__init__()
        self._raw = raw
        self._sock = sock
        self._patience = sock.gettimeout()
        self._deadline = _thread.asking.deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_patience(self._patience, self._deadline))
        return cast("int | None", self._raw.readinto(buffer))

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Lines(io.BufferedReader):
    """A reader with bounded lines: urllib3 before 2.6 does not limit chunk headers."""

    def readline(self, size: int | None = -1, /) -> bytes:
        most = MOST_OF_LINE + 1
        line = super().readline(most if size is None or size < 0 else min(size, most))
        if len(line) == most:
            raise http.client.LineTooLong("header or chunk")
        return line


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = _Lines(_Reading(self.fp.detach(), sock))


class _Connection(urllib3.connection.HTTPConnection):
    response_class = _Response

    def connect(self) -> None:
        _limit(self)
        super().connect()


class _SecureConnection(urllib3.connection.HTTPSConnection):
    response_class = _Response

    def connect(self) -> None:
        _limit(self)
        super().connect()


class _Pool(urllib3.connectionpool.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.connectionpool.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_POOLS = {"http": _Pool, "https": _SecurePool}


def _limit(connection: urllib3.connection.HTTPConnection) -> None:
    patience = connection.timeout
    connection.timeout = _patience(
        float(patience) if isinstance(patience, int | float) else None,
        _thread.asking.deadline,
    )


def _patience(usual: float | None, deadline: float) -> float | None:
    """Return the seconds to wait for the next read.

    :raises TimeoutError: the deadline has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    if math.isinf(left):
        return usual
    return left if usual is None else min(usual, left)
