# SPDX-License-Identifier: Apache-2.0

"""Requests and allocations: parse and match them; no I/O."""
