# SPDX-License-Identifier: Apache-2.0

"""Epochs: the numbers that order the privileged calls for one device.

An epoch is about the time of day in microseconds. The helper refuses a call
whose epoch is below one that it has seen, and one whose epoch is far above:
it would outrank every call to come.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Self

#: How far an epoch may lie ahead, in microseconds.
DAY: Final = 86_400_000_000
#: The highest number that the store and the helper can record.
LIMIT: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class AcceptedEpochs:
    """The epochs that a call may carry.

    :ivar seen: the lowest one: the highest that was recorded so far.
    :ivar limit: the highest one.
    """

    seen: int
    limit: int

    @classmethod
    def at(cls, seen: int, clock: int) -> Self:
        """Those that are accepted at a time of day, in microseconds."""
        return cls(seen, min(max(seen, clock) + DAY, LIMIT))

    def nearest(self, epoch: int) -> int:
        """An epoch above all that were seen: this one, where it is accepted."""
        if self.seen < epoch <= self.limit:
            return epoch
        start = self.seen if epoch <= self.seen else max(self.seen, self.limit - DAY)
        return min(start + 1, self.limit)
