# SPDX-License-Identifier: Apache-2.0

"""What a privileged call answers: plain values that survive the channel."""

from __future__ import annotations

import contextlib
import enum
import errno
from collections.abc import Iterator
from typing import NamedTuple


class Outcome(enum.StrEnum):
    """How one device fared in a privileged call."""

    OK = "ok"
    #: The arguments are not what the entry point takes.
    INVALID = "invalid"
    #: No such function on the bus.
    GONE = "gone"
    #: Another device, or another IOMMU group, than the caller believes.
    CHANGED = "changed"
    #: Someone holds it.
    IN_USE = "in-use"
    #: This context may not look whether someone holds it.
    UNSURE = "unsure"
    #: The kernel refused a write; ``errno`` says how, ``step`` which.
    REFUSED = "refused"
    #: The write succeeded, but reading back shows something else.
    NO_EFFECT = "no-effect"
    #: The deadline passed; the write may still end.
    STUCK = "stuck"
    #: An earlier write on this device has not ended yet.
    BUSY = "busy"
    #: A later operation has already been here; ``observed`` is the lowest and
    #: the highest epoch that would be accepted.
    STALE = "stale"
    #: The epoch is far above those of all operations; ``observed`` as before.
    AHEAD = "ahead"
    #: The helper's record has it taken for another lease; ``observed`` is its
    #: uuid.
    CLAIMED = "claimed"
    #: Root's configuration does not allow it.
    DENIED = "denied"
    #: The step's own code raised; ``observed`` says what.
    FAILED = "failed"
    #: Another device of the same call failed, so this was not tried.
    UNREACHED = "unreached"


class CallResult(NamedTuple):
    """One device's answer; a tuple, as msgpack carries it."""

    outcome: str
    errno: int = 0
    step: str = ""
    observed: str = ""


class CallRefused(Exception):
    """A step ends here, with this answer."""

    def __init__(self, result: CallResult) -> None:
        super().__init__(result)
        self.result = result


@contextlib.contextmanager
def after_programming() -> Iterator[None]:
    """What is refused in here says that the hardware may hold anything.

    It is another card's, or nobody's, that was told to be programmed.
    """
    try:
        yield
    except CallRefused as refusal:
        answer = CallResult(Outcome.REFUSED, errno.ENODEV, "programming")
        raise CallRefused(answer) from refusal


class ImageUnfit(Exception):
    """An image that is not to be programmed.

    :ivar step: ``digest``: it is not what it has to be; ``image``: it cannot
        be read; ``signature``: root trusts no signer of it.
    """

    def __init__(self, number: int, step: str, observed: str = "") -> None:
        super().__init__(number, step, observed)
        self.errno = number
        self.step = step
        self.observed = observed
