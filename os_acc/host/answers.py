# SPDX-License-Identifier: Apache-2.0

"""Reads that the driver of a device answers, and that may hang with the device.

The core of the kernel answers most attributes from its memory. A vendor's driver
answers those of the types of mediated devices, of NVIDIA's vGPUs, and of
``/proc/driver/nvidia``. No signal ends such a read: its thread stays behind.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, Final, ParamSpec, TypeVar

from os_acc import native_threads
from os_acc.exception import HostStepFailed
from os_acc.host import attributes
from os_acc.objects.pci import PciAddress

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Seconds to wait for one read.
SECONDS: Final = 2.0
#: The cards that may be silent at a time; no other is read then. Together they cost a
#: caller less than the grace period (:mod:`os_acc.deadlines`).
MOST: Final = 4
#: Seconds until a card that was too slow is read again.
PAUSE: Final = 30.0

#: The last read of each card; guarded, as only one runs at a time.
_reads: dict[str, futures.Future[Any]] = {}
_guard = threading.Lock()
#: The cards that did not answer in time, and since when on the monotonic clock.
_silent: dict[str, float] = {}


def _forget() -> None:
    global _guard
    _guard = threading.Lock()
    _reads.clear()
    _silent.clear()


os.register_at_fork(after_in_child=_forget)


def answer(
    root: str,
    place: PciAddress | str,
    read: Callable[_P, _T],
    *args: _P.args,
    **kwargs: _P.kwargs,
) -> _T:
    """Return the result of a read, in a bounded time.

    One read of a card runs at a time.

    :param place: the function whose driver answers, or the name of a virtual device.
    :raises HostStepFailed: the driver does not answer, or as ``read``.
    :raises DeviceStuck: no thread can be started.
    """
    # Only greenlets of nova-compute's thread wait, also for a read of a plugin.
    call = functools.partial(read, *args, **kwargs)
    return native_threads.hand_over(_awaited, root, place, call).result()


def _awaited(
    root: str, place: PciAddress | str, call: Callable[[], _T]
) -> futures.Future[_T]:
    """Return a read that has ended."""
    card = place if isinstance(place, str) else str(attributes.pf_of(root, place))
    for each, since in list(_silent.items()):
        if _reads[each].done() and time.monotonic() >= since + PAUSE:
            _silent.pop(each, None)
    if card in _silent or len(_silent) >= MOST:
        raise _no_answer(place, card if card in _silent else ", ".join(sorted(_silent)))
    end = time.monotonic() + SECONDS
    reading = _begun(card, call, end)
    if reading is None or not _ends(reading, end):
        _silent[card] = time.monotonic()
        raise _no_answer(place, card)
    return reading


def _begun(card: str, call: Callable[[], _T], end: float) -> futures.Future[_T] | None:
    """Begin a read when the one before has ended; None: it does not end in time."""
    while True:
        with _guard:
            earlier = _reads.get(card)
            if earlier is None or earlier.done():
                reading = _reads[card] = native_threads.begin(call)
                return reading
        if not _ends(earlier, end):
            return None


def _ends(reading: futures.Future[Any], end: float) -> bool:
    return bool(futures.wait([reading], max(0.0, end - time.monotonic())).done)


def is_silent(root: str, place: PciAddress) -> bool:
    """Return whether a card did not answer when it was read before."""
    return bool(_silent) and str(attributes.pf_of(root, place)) in _silent


def _no_answer(place: PciAddress | str, cards: str) -> HostStepFailed:
    return HostStepFailed(
        f"the driver of {cards} does not return from a read",
        address=str(place),
        hint="see the kernel's log; reset the card, or reboot the host",
    )
