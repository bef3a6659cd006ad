# SPDX-License-Identifier: Apache-2.0

"""What a killed run has left behind does not pile up, and nobody else suffers."""

from __future__ import annotations

import os
import signal

from tests.stress import host_directory
from tests.stress.processes import Child


def owner(above: str, tell: int) -> None:
    """Own a directory, say so, and wait to be killed."""
    with host_directory.own(above) as directory:
        os.write(tell, os.path.basename(directory).encode())
        signal.pause()


def test_what_the_dead_left_is_taken_away(tmp_path):
    told, tell = os.pipe()
    child = Child(lambda: owner(str(tmp_path), tell))
    name = os.read(told, 100).decode()

    host_directory.clear(str(tmp_path))
    assert os.listdir(tmp_path) == [name]
    child.kill()
    assert child.wait().killed
    assert os.listdir(tmp_path) == [name]
    with host_directory.own(str(tmp_path)) as directory:
        assert os.listdir(tmp_path) == [os.path.basename(directory)]
    assert os.listdir(tmp_path) == []
    os.close(told)
    os.close(tell)
