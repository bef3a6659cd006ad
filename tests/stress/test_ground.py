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


"""What a killed run has left behind does not pile up, and nobody else suffers."""

from __future__ import annotations

import os
import signal

from tests.stress import ground
from tests.stress.processes import Child


def owner(above: str, tell: int) -> None:
    """Own a directory, say so, and wait to be killed."""
    with ground.own(above) as directory:
        os.write(tell, os.path.basename(directory).encode())
        signal.pause()


def test_what_the_dead_left_is_taken_away(tmp_path):
    told, tell = os.pipe()
    child = Child(lambda: owner(str(tmp_path), tell))
    name = os.read(told, 100).decode()

    ground.clear(str(tmp_path))
    assert os.listdir(tmp_path) == [name]
    child.kill()
    assert child.wait().killed
    assert os.listdir(tmp_path) == [name]
    with ground.own(str(tmp_path)) as directory:
        assert os.listdir(tmp_path) == [os.path.basename(directory)]
    assert os.listdir(tmp_path) == []
    os.close(told)
    os.close(tell)
