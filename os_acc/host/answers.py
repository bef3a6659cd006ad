# SPDX-License-Identifier: Apache-2.0

"""Reads that the driver of a device answers, and that may hang with the device.

The core of the kernel answers most attributes from its memory. A vendor's driver
answers those of the types of mediated devices, of NVIDIA's vGPUs, and of
``/proc/driver/nvidia``. No signal ends such a read: its thread stays behind. Until it
ends, no other read of this card begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, Final, ParamSpec, TypeVar

from os_acc import native_threads
from os_acc.exception import HostStepFailed
from os_acc.host import attributes
from os_acc.objects.pci import PciAddress

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Seconds to wait for one read. Those for all cards together are within the grace
#: period of an operation (:mod:`os_acc.deadlines`).
SECONDS: Final = 2.0
#: The cards that may hang at a time; no other is read then.
MOST: Final = 4

#: The reads that hang, by the card.
_hanging: dict[str, futures.Future[Any]] = {}
os.register_at_fork(after_in_child=_hanging.clear)


def answer(
    root: str,
    place: PciAddress | str,
    read: Callable[_P, _T],
    *args: _P.args,
    **kwargs: _P.kwargs,
) -> _T:
    """Return the result of a read, in a bounded time.

    :param place: the function whose driver answers, or the name of a virtual device.
    :raises HostStepFailed: the driver does not answer, or as ``read``.
    :raises DeviceStuck: no thread can be started.
    """
    for each, earlier in list(_hanging.items()):
        if earlier.done():
            _hanging.pop(each, None)
    card = _card(root, place) if _hanging else ""
    if card in _hanging or len(_hanging) >= MOST:
        raise _silent(place, [card] if card in _hanging else sorted(_hanging))
    reading = native_threads.begin(read, *args, **kwargs)
    if not futures.wait([reading], SECONDS).done:
        card = _card(root, place)
        _hanging[card] = reading
        raise _silent(place, [card])
    return reading.result()


def _card(root: str, place: PciAddress | str) -> str:
    return place if isinstance(place, str) else str(attributes.pf_of(root, place))


def _silent(place: PciAddress | str, cards: Sequence[str]) -> HostStepFailed:
    return HostStepFailed(
        f"the driver of {', '.join(cards)} does not return from a read",
        address=str(place),
        hint="see the kernel's log; reset the card, or reboot the host",
    )
