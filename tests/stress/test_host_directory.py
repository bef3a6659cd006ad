# SPDX-License-Identifier: Apache-2.0

"""Directories of killed runs are removed; those of live processes stay."""

from __future__ import annotations

import os
import signal

from tests.stress import host_directory
from tests.stress.processes import Child


def owner(above: str, writable: int) -> None:
    """Own a directory, write its name, and wait to be killed."""
    with host_directory.own(above) as directory:
        os.write(writable, os.path.basename(directory).encode())
        signal.pause()


def test_what_the_dead_left_is_taken_away(tmp_path):
    readable, writable = os.pipe()
    child = Child(lambda: owner(str(tmp_path), writable))
    name = os.read(readable, 100).decode()

    host_directory.clear(str(tmp_path))
    assert os.listdir(tmp_path) == [name]
    child.kill()
    assert child.wait().killed
    assert os.listdir(tmp_path) == [name]
    with host_directory.own(str(tmp_path)) as directory:
        assert os.listdir(tmp_path) == [os.path.basename(directory)]
    assert os.listdir(tmp_path) == []
    os.close(readable)
    os.close(writable)
