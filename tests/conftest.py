# SPDX-License-Identifier: Apache-2.0

"""Plugins of every lane of tests."""

pytest_plugins = ("tests.shares", "tests.run_figures")
