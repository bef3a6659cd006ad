# SPDX-License-Identifier: Apache-2.0

"""A client of a real helper that violates the protocol."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
from oslo_privsep import comm

from os_acc.testing import helper

_PATIENCE = 120.0
#: The first field of a helper's answer.
RETURNED, REFUSED = comm.Message.RET.value, comm.Message.ERR.value


class HostileClient:
    """A connection to a helper of its own.

    :ivar pid: of the helper.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        connection.settimeout(_PATIENCE)
        self._socket = connection
        self._numbers = itertools.count()
        self._unpacker = msgpack.Unpacker(
            use_list=False, raw=False, unicode_errors="surrogateescape"
        )

    def call(self, name: object, *args: object, **kwargs: object) -> tuple[Any, ...]:
        """Request a call; return any answer."""
        return self.ask((comm.Message.CALL.value, name, args, kwargs))

    def ask(self, message: object) -> tuple[Any, ...]:
        """Send a message; return the answer to it.

        :raises EOFError: the helper has hung up.
        """
        number = f"message {next(self._numbers)}"
        self.send(pack((number, message)))
        for sender, answer in self.answers():
            if sender == number:
                return tuple(answer)
        raise EOFError

    def send(self, data: bytes) -> None:
        """Send any data, a message or not; the helper may have hung up."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def answers(self) -> Iterator[tuple[Any, Any]]:
        """Yield the helper's messages until it hangs up."""
        while True:
            yield from self._unpacker
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return
            self._unpacker.feed(data)

    def end(self) -> None:
        """Hang up, once, and wait for the end of the helper."""
        if self._socket.fileno() < 0:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        for _ in self.answers():
            pass
        self._socket.close()


def _process_of(socket_path: str) -> int:
    """Return the process that has this path as its last argument."""
    last = os.fsencode(socket_path)
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if command.read_bytes().rstrip(b"\0").split(b"\0")[-1] == last:
                return int(command.parent.name)
    raise ProcessLookupError(socket_path)


def pack(message: object) -> bytes:
    """Pack a message as a client does.

    :raises ValueError, TypeError, OverflowError: it cannot be sent.
    """
    return bytes(
        msgpack.packb(message, use_bin_type=True, unicode_errors="surrogateescape")
    )


def delivered(arguments: object) -> Any:
    """Return arguments as the helper gets them; errors as of :func:`pack`."""
    return msgpack.unpackb(
        pack(arguments),
        use_list=False,
        raw=False,
        strict_map_key=False,
        unicode_errors="surrogateescape",
    )


@contextlib.contextmanager
def connected(
    context: str, root: str, environment: Mapping[str, str] | None = None
) -> Iterator[HostileClient]:
    """Start a helper; yield its only client.

    :param context: ``base``, ``inspect``, ``image``, or the dotted path of another.
    :param root: the tree of the fake kernel that the helper talks to.
    :param environment: of the helper; None: of this process.
    """
    with serving(context, shlex.split(helper.command(root)), environment) as client:
        yield client


@contextlib.contextmanager
def serving(
    context: str, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[HostileClient]:
    """Start a helper by a command, as :func:`connected`; yield its only client."""
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        path = os.path.join(directory, "socket")
        listening.bind(path)
        listening.listen(1)
        listening.settimeout(_PATIENCE)
        name = context if "." in context else f"os_acc.privsep.{context}"
        options = ["--privsep_context", name, "--privsep_sock_path", path]
        subprocess.run(
            [*command, *options],
            check=True,
            stderr=subprocess.DEVNULL,
            env=None if environment is None else dict(environment),
        )
        client = HostileClient(listening.accept()[0], _process_of(path))
        try:
            # Before it serves, a helper has all privileges.
            client.ask((comm.Message.PING.value,))
            yield client
        finally:
            client.end()
