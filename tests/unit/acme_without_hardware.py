# SPDX-License-Identifier: Apache-2.0

"""A plugin that checks for its hardware on import, which is too early."""

raise AssertionError("no hardware")
