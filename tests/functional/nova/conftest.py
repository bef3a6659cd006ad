# SPDX-License-Identifier: Apache-2.0

"""Run Nova's own API in this process, as its own functional tests do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

# Set before any import of Nova: it uses threads, as in service, unless the environment
# asks for eventlet. These tests run first, and prevent its import.
os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "true")
import nova.tests.functional
from nova import test
from nova.tests import fixtures

from os_acc import native_threads
from tests.functional.nova import nova_cases, operations

assert nova.tests.functional
_asked = os.environ["OS_NOVA_DISABLE_EVENTLET_PATCHING"] == "false"
assert native_threads.is_needed() is _asked
pytest.register_assert_rewrite("tests.functional.nova.cloud")


class _Server(test.TestCase):  # type: ignore[misc]
    """The database, the policies and the API, without compute or scheduler."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(
            api_paste_config=f"{sys.prefix}/etc/nova/api-paste.ini", group="wsgi"
        )
        # By default, tests of Nova permit every call.
        self.useFixture(fixtures.RealPolicyFixture())
        served = self.useFixture(fixtures.OSAPIFixture("v2.1"))
        self.api, self.app = served.admin_api, served.app()

    def runTest(self) -> None:
        """Do nothing: the tests are in other classes."""


@pytest.fixture(autouse=True, scope="session")
def _readers_first() -> Iterator[None]:
    """Let new readers of a cell's database in while a writer waits.

    ``_run_periodics`` of Nova's tests holds a lock for readers, and waits for a thread
    of nova-compute that also reads. If Nova's API or scheduler wants to write in
    between, Nova's lock lets all three wait for ever.
    """
    with mock.patch.object(fixtures.ReaderWriterLock, "has_pending_writers", False):
        yield


@pytest.fixture(autouse=True, scope="session")
def _patience() -> Iterator[None]:
    with operations.patience():
        yield


@pytest.fixture(scope="module")
def _server() -> Iterator[_Server]:
    with nova_cases.running(_Server()) as server:
        yield server


@pytest.fixture(scope="module")
def compute_api(_server: _Server) -> Any:
    """Return an administrator's client of Nova's API, with Nova's default flavors."""
    return _server.api


@pytest.fixture(scope="module")
def compute_app(_server: _Server) -> Any:
    """Return the WSGI application of Nova's API."""
    return _server.app
