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

"""HTTP connections that end when their user's time does.

The timeouts of requests hold for each read: a server that sends a byte now
and then is waited for without end. Here every read of a response, and every
connection that is opened for one, ends at a deadline.
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
from typing import Any, cast

import requests
import urllib3.connection
import urllib3.connectionpool
from keystoneauth1 import session as ksa_session


@dataclasses.dataclass(slots=True)
class Asking:
    """What one thread asks for.

    :ivar deadline: on the clock of :func:`time.monotonic`.
    :ivar status: of the last answer; None while there is none to the last
        request. glanceclient forgets those that it has no class for, and ends
        in an error of its own where it cannot read what came with them.
    """

    deadline: float
    status: int | None = None


class _Thread(threading.local):
    asking = Asking(math.inf)


_thread = _Thread()


@contextlib.contextmanager
def until(deadline: float) -> Iterator[Asking]:
    """What this thread asks for in here is answered by then, or not at all.

    A response keeps its deadline, wherever it is read later.

    :param deadline: on the clock of :func:`time.monotonic`.
    """
    before = _thread.asking
    _thread.asking = asking = Asking(deadline)
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

    def send(self, *args: Any, **kwargs: Any) -> requests.Response:
        asking = _thread.asking
        asking.status = None
        response = super().send(*args, **kwargs)
        asking.status = response.status_code
        return response


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


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Reading(self.fp.detach(), sock))


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
