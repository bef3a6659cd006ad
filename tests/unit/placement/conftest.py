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


"""What the tests of publishing in Placement stand on."""

from __future__ import annotations

import pytest

from os_acc.placement import publisher
from tests.unit.placement.double import Double
from tests.unit.placement.publishing import Clock, Service


@pytest.fixture
def double():
    found = Double()
    yield found
    found.end()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Nobody else is there who would need a pause."""
    monkeypatch.setattr(publisher, "_PAUSE", 0.0)


@pytest.fixture
def service(double):
    return Service(double)


@pytest.fixture
def clock(monkeypatch):
    """Time stands still unless it is told to pass by."""
    made = Clock()
    monkeypatch.setattr(publisher, "_now", lambda: made.now)
    return made
