# SPDX-License-Identifier: Apache-2.0

"""HTTP connections that end when their user's time does.

The timeouts of requests hold for each read: a server that sends a byte now
and then is waited for without end. Here every read of a response, and every
connection that is opened for one, ends at a deadline.

Nor does it bound an answer. Here the answers of all services, Keystone among
them, are bounded: in the bytes of its body once they are decoded, in
the values of its JSON, in the length of each line of its framing, and in its
header fields (:mod:`http.client`: 100 of at most 64 KiB each). Only the data of an
image, which are streamed, have a limit of their own.
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
from os_acc.rest.errors import ResponseUnread

#: Bytes of an answer, decoded. Placement's list of a node with 1,000 providers has
#: one megabyte, Cyborg's of 10,000 device profiles six, a page of Glance's with
#: 200 images less than one.
MOST_BYTES: Final = 16 << 20
#: Values in an answer, strings with commas counted for more: those 10,000 profiles
#: have 150,000. Python needs up to a hundred bytes for each.
MOST_VALUES: Final = 1 << 20
#: Bytes of one line of a status, a header, or the framing of chunks.
MOST_OF_LINE: Final = 1 << 16
# Decoded in pieces of so many bytes: one of them becomes ten megabytes at most.
_PIECE: Final = 10 << 10
# One coding alone: each further one multiplies again.
_CODINGS: Final = ("", "identity", "gzip")


@dataclasses.dataclass(slots=True)
class ThreadRequest:
    """What one thread asks for.

    :ivar deadline: on the clock of :func:`time.monotonic`.
    :ivar status: of the last answer; None while there is none to the last
        request.
    """

    deadline: float
    status: int | None = None


class _Thread(threading.local):
    asking = ThreadRequest(math.inf)


_thread = _Thread()
#: The Accept header of a caller that reads the data of an image in pieces; such an
#: answer has no limit here. glanceclient streams each answer, and reads it whole.
DATA: Final = "application/octet-stream"
# The statuses of an answer with data.
_WITH_DATA: Final = (200, 206)


@contextlib.contextmanager
def until(deadline: float) -> Iterator[ThreadRequest]:
    """What this thread asks for in here is answered by then, or not at all.

    A response keeps its deadline, wherever it is read later.

    :param deadline: on the clock of :func:`time.monotonic`.
    """
    before = _thread.asking
    _thread.asking = asking = ThreadRequest(deadline)
    try:
        yield asking
    finally:
        _thread.asking = before


class Adapter(ksa_session.TCPKeepAliveAdapter):
    """keystoneauth1's own adapter for requests, with connections of ours."""

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
        # No answer is larger than what is sent, if servers do as they are asked.
        request.headers["Accept-Encoding"] = "identity"
        try:
            response = super().send(request, *args, **kwargs)
            asking.status = response.status_code
            streams = request.headers.get("Accept") == DATA
            if not (streams and response.status_code in _WITH_DATA):
                _take(response)
        except urllib3.exceptions.HTTPError as error:
            # requests passes on those that it has no class for.
            raise requests.ConnectionError(error, request=request) from error
        return response


def _take(response: requests.Response) -> None:
    """Read the body of an answer, as far as it may go.

    :raises Unread: it is too large, or in a coding that was not asked for.
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
    # As requests itself keeps it; there is no public way.
    response._content = bytes(body)
    # JSON is. Else requests guesses, or uses a codec that the server names.
    response.encoding = "utf-8"


class _Reading(io.RawIOBase):
    """The bytes of a socket, while there is time."""

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
    """A reader whose lines have an end: urllib3 before 2.6 reads any of chunks."""

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
    """Seconds to wait for what comes next.

    :raises TimeoutError: the deadline has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    if math.isinf(left):
        return usual
    return left if usual is None else min(usual, left)
