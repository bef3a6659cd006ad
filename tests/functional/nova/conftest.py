# SPDX-License-Identifier: Apache-2.0

"""Nova's own API in this process, as its own functional tests have it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

# Before anything of Nova's is imported, it is told to use threads, as it does
# in service; and its tests come first, which keep eventlet from being imported.
os.environ["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "true"
import nova.tests.functional
from nova import test
from nova.tests import fixtures

assert nova.tests.functional


class _Server(test.TestCase):  # type: ignore[misc]
    """The database, the policies and the API, without compute or scheduler."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(
            api_paste_config=f"{sys.prefix}/etc/nova/api-paste.ini", group="wsgi"
        )
        self.api = self.useFixture(fixtures.OSAPIFixture("v2.1")).admin_api

    def runTest(self) -> None:
        """Nothing: the tests are elsewhere."""


@pytest.fixture(scope="module")
def compute_api() -> Iterator[Any]:
    """An administrator's client of Nova's API; it has Nova's default flavors."""
    server = _Server()
    server.setUp()
    try:
        yield server.api
    finally:
        server.doCleanups()
