# SPDX-License-Identifier: Apache-2.0

"""Replace state that a forked child must not use.

A child has none of its parent's threads: a lock that one of them held stays locked
in the child, and a call that one of them made never returns there.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """An object with locks, threads or connections of the current process."""

    def forget_parent(self) -> None:
        """Replace all of these; called in the child before any other code."""


_tracked: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def track(each: ForkAware) -> None:
    """Call an object's ``forget_parent`` in every child forked during its life."""
    _tracked.add(each)


def tracked() -> list[ForkAware]:
    """Return all live objects that are tracked."""
    return list(_tracked)


def _forget_parent() -> None:
    for each in tracked():
        each.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
