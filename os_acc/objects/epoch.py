# SPDX-License-Identifier: Apache-2.0

"""Epochs: the numbers that order the privileged calls for one device.

An epoch is approximately the time of day in microseconds. The helper rejects a
call whose epoch is below the highest recorded one. It also rejects an epoch far
in the future, which would block all later calls.
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
    """The range of epochs that a call may carry.

    :ivar seen: the lowest accepted epoch: the highest recorded so far.
    :ivar limit: the highest accepted epoch.
    """

    seen: int
    limit: int

    @classmethod
    def at(cls, seen: int, clock: int) -> Self:
        """Return the range at a time of day in microseconds."""
        return cls(seen, min(max(seen, clock) + DAY, LIMIT))

    def nearest(self, epoch: int) -> int:
        """Return this epoch if it is in range, otherwise one above ``seen``."""
        if self.seen < epoch <= self.limit:
            return epoch
        start = self.seen if epoch <= self.seen else max(self.seen, self.limit - DAY)
        return min(start + 1, self.limit)
