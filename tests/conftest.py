# SPDX-License-Identifier: Apache-2.0

"""Plugins and settings of every lane of tests."""

import hypothesis

pytest_plugins = ("tests.shares", "tests.run_figures")

# A busy machine delays any example. The other settings, in CI too, stay.
hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")
