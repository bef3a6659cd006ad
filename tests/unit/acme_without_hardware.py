# SPDX-License-Identifier: Apache-2.0

"""A plugin whose vendor checks too early."""

raise AssertionError("no hardware")
