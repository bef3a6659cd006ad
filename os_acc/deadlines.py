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

"""How long a caller waits, and no longer.

An operation has one deadline on the clock of :func:`time.monotonic`. No step
of it begins after that, and no caller waits for one longer than the grace:
half of it for the answer of a step that began in time, the rest for putting
on record what came of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from os_acc import exception

#: Seconds after its deadline at which an operation has returned.
GRACE = 10.0
#: Seconds after the deadline that a step has for its answer. The kernel's own
#: time ends at the deadline, so that "stuck" can still be told.
ANSWER = 5.0


def left(deadline: float) -> float:
    """Seconds in which a step may begin.

    :raises DeviceStuck: there are none.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise exception.DeviceStuck(
            "no time is left for the next step",
            hint="the operation's own timeout has passed",
        )
    return seconds


@contextlib.contextmanager
def alone(
    lock: threading.Lock, deadline: float, busy: exception.OsAccError
) -> Iterator[None]:
    """Hold a lock that threads of this process share.

    :param busy: raised where another thread still has it at the deadline.
    """
    if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise busy
    try:
        yield
    finally:
        lock.release()


def patience(deadline: float, most: float) -> float:
    """Seconds to wait for a step that has begun.

    :param most: what it may take at any time.
    """
    return min(most, max(0.0, deadline + ANSWER - time.monotonic()))


def for_record(deadline: float, most: float) -> float:
    """When to stop waiting for the store, on the deadline's clock.

    :param most: seconds that it may take at any time.
    """
    return min(deadline + GRACE, time.monotonic() + most)
