# SPDX-License-Identifier: Apache-2.0

"""Plug and unplug: plan leases, prepare devices, give them back."""
