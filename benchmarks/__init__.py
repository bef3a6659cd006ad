# SPDX-License-Identifier: Apache-2.0

"""Benchmarks of the library, each beside the least cost of the same work."""
