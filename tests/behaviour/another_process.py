# SPDX-License-Identifier: Apache-2.0

"""A service in a process of its own initializes os_acc, waits, plugs and reports.

``python -m tests.behaviour.another_process`` reads its options and a request from
the first line of its input, and continues after the second. The request has
``instance``, ``provider``, ``extra_specs``, ``steps`` (``plug``, ``unplug``, ``erase``:
it serves until it is killed), and ``dies_at``: the point at which the process sends
itself SIGKILL.

=========== ==============================================================
dies_at
=========== ==============================================================
intent      the intent is on disk, the host is not touched
bound       the device is bound, the lease is not committed
sent        the call that binds the device was sent to the helper
release     the release is on disk, the host is not touched
erasing     the call that erases the device was sent to the helper
a number    after so many commits of leases, and changes of mediated devices
=========== ==============================================================
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

import os_acc
from os_acc import exception, privsep, store
from os_acc.attach import verification
from os_acc.helper import client

from . import library

#: Seconds in which a helper starts.
_START = 240.0


def _die(*_args: object, **_options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_once_sent(hands: client.Helper, *args: Any) -> None:
    _die_at_next_call(privsep.base)
    _take(hands, *args)


def _die_at_next_call(context: privsep.Context) -> None:
    """Die once the next call of a running helper was sent."""
    channel = context.channel
    assert channel is not None
    writer: Any = channel.writer
    send = writer.send

    def send_and_die(message: object) -> None:
        send(message)
        _die()

    writer.send = send_and_die


def _die_erasing(
    hands: client.Helper, step: privsep.Step[Any, Any], *args: Any, **options: Any
) -> Any:
    if step.name.endswith(".erase"):
        _go.wait()
        hands.start(time.monotonic() + _START, [step.context])
        _die_at_next_call(step.context)
    return _run_step(hands, step, *args, **options)


def _die_after(number: int) -> None:
    """Die once this many steps have ended."""
    remaining = iter(range(number - 1, -1, -1))
    for owner, name in _STEPS:
        setattr(owner, name, _then_die(getattr(owner, name), remaining))


def _then_die(step: Callable[..., Any], remaining: Iterator[int]) -> Callable[..., Any]:
    @functools.wraps(step)
    def run(*args: Any, **options: Any) -> Any:
        value = step(*args, **options)
        if next(remaining) == 0:
            _die()
        return value

    return run


_STEPS: tuple[tuple[Any, str], ...] = (
    (store.Store, "add"),
    (store.Store, "replace"),
    (store.Store, "delete"),
    (client.Helper, "create_mdev"),
    (client.Helper, "remove_mdev"),
)
_take = client.Helper.take
_run_step = client.Helper.run_step
_go = threading.Event()
_POINTS: dict[str, tuple[Any, str, Any]] = {
    "intent": (client.Helper, "take", _die),
    "bound": (verification, "check_viable", _die),
    "sent": (client.Helper, "take", _die_once_sent),
    "release": (client.Helper, "give_back", _die),
    "erasing": (client.Helper, "run_step", _die_erasing),
}


def _replace(point: str) -> None:
    owner, name, replacement = _POINTS[point]
    setattr(owner, name, replacement)


def main(input_: IO[str], output: IO[str]) -> None:
    """Serve one request; print the outcome as the last line of the output."""
    line = input_.readline()
    if not line:
        return
    options, request = json.loads(line)
    dies_at = request.get("dies_at", "")
    if dies_at == "erasing":
        # The service erases by itself, maybe before it has reported.
        _replace(dies_at)
    library.make_ready(library.Options.load(options))
    if dies_at.isdecimal():
        _die_after(int(dies_at))
    elif dies_at:
        _replace(dies_at)
    print("ready", file=output, flush=True)
    input_.readline()
    print(json.dumps(_outcome(request)), file=output, flush=True)
    library.end()


def _outcome(request: dict[str, Any]) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    error = ""
    try:
        if "plug" in request["steps"]:
            entries = os_acc.plug(
                request["instance"],
                {"uuid": request["provider"]},
                request["extra_specs"],
            )
        if "unplug" in request["steps"]:
            os_acc.unplug(request["instance"])
        if "erase" in request["steps"]:
            _go.set()
            signal.pause()
    except exception.OsAccError as raised:
        error = type(raised).__name__
    return {"devices": [entry["pci_id"] for entry in entries], "error": error}


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
