# SPDX-License-Identifier: Apache-2.0

"""An upgrade of the store is rolled back after a kill before any statement."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import shutil
import signal
import sqlite3
from collections.abc import Callable

import pytest

from os_acc.objects.lease import Lease
from os_acc.store import readonly, schema
from tests.unit.store.conftest import make_lease
from tests.unit.store.store_files import (
    STEP,
    file_in,
    fill,
    reopened,
    rows,
    set_steps,
)

__all__ = ["make_lease"]


def is_killed(state_path: str, statement: int) -> bool:
    """Open the store in a child that dies before a statement of the upgrade.

    :returns: False if the upgrade has fewer statements.
    """
    child = os.fork()
    if not child:
        with contextlib.ExitStack() as last:
            last.callback(os._exit, 1)
            _upgrade(state_path, statement)
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.WIFSIGNALED(status)


def _upgrade(state_path: str, statement: int) -> None:
    upgrade, numbers = schema.upgrade, itertools.count()

    def count(_text: str) -> None:
        if next(numbers) == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    def traced(connection: sqlite3.Connection, path: str) -> None:
        connection.set_trace_callback(count)
        upgrade(connection, path)
        connection.set_trace_callback(None)
        schema.upgrade = upgrade

    schema.upgrade = traced
    reopened(state_path)


@pytest.mark.parametrize("next_version", [1, 2])
def test_a_killed_upgrade_is_rolled_back(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    make_lease: Callable[[int], Lease],
    next_version: int,
) -> None:
    pristine = tmp_path / "pristine"
    lease = fill(reopened(str(pristine)), make_lease)
    expected = readonly.read(str(pristine), 1)
    assert expected.leases == (lease,)
    statements = 0
    for statements in itertools.count():
        state = tmp_path / str(statements)
        shutil.copytree(pristine, state)
        with monkeypatch.context() as newer:
            set_steps(newer, STEP)
            if not is_killed(str(state), statements):
                break
            left = {each: each.read_bytes() for each in state.glob("os_acc.sqlite*")}
            assert readonly.read(str(state), 1) == expected
            assert {each: each.read_bytes() for each in left} == left
        if next_version > len(schema.STEPS):
            set_steps(monkeypatch, STEP)
        assert readonly.read(str(state), 1) == expected
        store = reopened(str(state))
        assert store.damaged == ()
        assert store.recorded_state().leases == expected.leases
        assert store.published_names() == expected.published_names
        assert rows(file_in(str(state)), "PRAGMA user_version") == [(next_version,)]
        monkeypatch.undo()
        shutil.rmtree(state)
    # BEGIN, the statements of the step, the version under its digest, two values
    # in the header, COMMIT; before the step, statements that only read.
    assert statements >= len(STEP) + 4
