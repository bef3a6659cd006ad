# SPDX-License-Identifier: Apache-2.0

"""Every step of a flow that the host or the store sees.

A step is a transaction of the store or a write to the kernel, in the library or in
the helper's worker. It is counted before it happens.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from os_acc.privsep import kernel as privsep_kernel
from os_acc.store.database import Database
from os_acc.testing import FakeKernel

_NUMBER = 8


class Steps:
    """A counter of the steps in this process and its forks.

    It serves flows of one accelerator, which have their steps one after the other.

    :param at: the step, counted from 1, before which something happens; 0: none.
    """

    def __init__(
        self, root: str, at: int = 0, happens: Callable[[], object] = lambda: None
    ) -> None:
        self._root = root
        self._at = at
        self._happens = happens
        # Shared with children.
        self._count = mmap.mmap(-1, _NUMBER)
        self._is_watched = False

    @property
    def count(self) -> int:
        """Return the number of steps."""
        return int.from_bytes(self._count[:], "big")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Count the steps within the context."""
        transaction = Database.transaction
        steps = self

        class Watched(FakeKernel):
            def write(self, path: str, text: str) -> None:
                steps._step()
                super().write(path, text)

        def watched(database: Database, *given: Any, **options: Any) -> Any:
            steps._step()
            return transaction(database, *given, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Database, "transaction", watched)
            patch.setattr(privsep_kernel, "current", Watched(self._root))
            yield

    def _step(self) -> None:
        number = self.count + 1
        self._count[:] = number.to_bytes(_NUMBER, "big")
        if number == self._at:
            self._happens()


def kill_all() -> None:
    """Cut the power: kill this process and its workers."""
    os.killpg(0, 9)
