# SPDX-License-Identifier: Apache-2.0

"""The host's accelerators in Placement."""
