# SPDX-License-Identifier: Apache-2.0

"""Tests against a real kernel; :mod:`.lane` boots their machine."""
