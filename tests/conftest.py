# SPDX-License-Identifier: Apache-2.0

"""Plugins and settings of every lane of tests."""

import gc
import os
from pathlib import Path

import hypothesis
import pytest

import os_acc

pytest_plugins = ("tests.shares", "tests.run_figures")

# A busy machine delays any example. The other settings, in CI too, stay.
hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")

CHECKOUT = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Register marks; check that a run on an installed wheel imports nothing else.

    :raises pytest.UsageError: os_acc comes from the checkout.
    """
    config.addinivalue_line("markers", "native_threads: see tests/under_eventlet.py")
    package = Path(os_acc.__file__).resolve()
    if os.environ.get("OS_ACC_INSTALLED") and package.is_relative_to(
        CHECKOUT / "os_acc"
    ):
        raise pytest.UsageError(f"not the installed os_acc: {package}")


def pytest_collection_finish() -> None:
    """Exempt all that pytest has collected from garbage collections.

    In a forked child, a garbage collection would copy all of it.
    """
    gc.freeze()
