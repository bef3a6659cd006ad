# SPDX-License-Identifier: Apache-2.0

"""Answers of a privileged call: plain values that survive the channel."""

from __future__ import annotations

import contextlib
import enum
import errno
from collections.abc import Iterator
from typing import Final, NamedTuple

from os_acc.privsep.kernel import COPIES, LOCKS

#: The step of a refusal for want of room for root's own files, not by the device.
FILES: Final = "the helper's files"
#: The error numbers of such a refusal.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class Outcome(enum.StrEnum):
    """The result of a privileged call for one device."""

    OK = "ok"
    #: The arguments are malformed.
    INVALID = "invalid"
    #: The function is not on the bus.
    GONE = "gone"
    #: The device or its IOMMU group is not the expected one.
    CHANGED = "changed"
    #: A process holds the device.
    IN_USE = "in-use"
    #: A function has VFs or mediated devices; ``step`` is the function, ``observed``
    #: describes them.
    IN_PARTS = "in-parts"
    #: This context lacks the capabilities to detect holders.
    UNSURE = "unsure"
    #: The kernel refused a write; ``errno`` is the error, ``step`` the attribute.
    REFUSED = "refused"
    #: The write succeeded, but the value read back differs.
    NO_EFFECT = "no-effect"
    #: The deadline passed; the write may still complete.
    STUCK = "stuck"
    #: An earlier write on this device has not completed yet.
    BUSY = "busy"
    #: A later operation has already used the device; ``observed`` is the lowest
    #: and the highest epoch that would be accepted.
    STALE = "stale"
    #: The epoch is far above those of all operations; ``observed`` as before.
    AHEAD = "ahead"
    #: The helper's record claims the function for another lease; ``observed`` is
    #: the uuid of that lease.
    CLAIMED = "claimed"
    #: Root's configuration does not allow it.
    DENIED = "denied"
    #: The code of the step raised an exception; ``observed`` describes it.
    FAILED = "failed"
    #: Not attempted: another device of the same call failed.
    UNREACHED = "unreached"


class CallResult(NamedTuple):
    """The answer for one device; a tuple, as msgpack carries it."""

    outcome: str
    errno: int = 0
    step: str = ""
    observed: str = ""


#: The answer for a device with which nothing went wrong.
OK: Final = CallResult(Outcome.OK)


class CallRefused(Exception):
    """A step ends with this answer; its arguments are those of :class:`CallResult`."""

    def __init__(
        self, outcome: Outcome, errno: int = 0, step: str = "", observed: str = ""
    ) -> None:
        self.result = CallResult(outcome, errno, step, observed)
        super().__init__(self.result)


def refused(error: OSError) -> CallResult:
    """Return the answer for an error of the kernel, with the name of the attribute."""
    path = str(error.filename or "")
    attribute = path.rpartition("/")[2]
    is_roots = any(f"/{each}/" in f"{path}/" for each in (COPIES, LOCKS))
    if is_roots and error.errno in NO_ROOM:
        attribute = FILES
    return CallResult(Outcome.REFUSED, error.errno or errno.EIO, attribute)


def unfit(number: int, step: str = "image", observed: str = "") -> CallRefused:
    """Return the refusal of an image.

    :param step: ``digest``: the digest does not match; ``image``: it cannot be read;
        ``signature``: root trusts no signer of it.
    """
    return CallRefused(Outcome.REFUSED, number, step, observed)


@contextlib.contextmanager
def after_programming() -> Iterator[None]:
    """Report refusals in this block as failures of the programming itself.

    The programming went to another card, or to none, and the region may hold anything.
    """
    try:
        yield
    except CallRefused as error:
        raise CallRefused(Outcome.REFUSED, errno.ENODEV, "programming") from error
