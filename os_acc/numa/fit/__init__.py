# SPDX-License-Identifier: Apache-2.0

"""Fit a guest's NUMA cells, networks and devices to a host."""
