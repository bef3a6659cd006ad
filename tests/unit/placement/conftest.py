# SPDX-License-Identifier: Apache-2.0

"""Fixtures for the tests of publishing in Placement."""

import pytest

from os_acc.placement import api_tree, sync
from tests.unit.placement.placement_double import Double
from tests.unit.placement.publishing import Clock, Service


@pytest.fixture
def double():
    found = Double()
    yield found
    found.end()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Retry without a pause: no other client competes."""
    monkeypatch.setattr(sync, "_PAUSE", 0.0)


@pytest.fixture
def service(double):
    return Service(double)


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that advances only on request."""
    made = Clock()
    monkeypatch.setattr(api_tree, "now", lambda: int(made.now))
    return made
