# SPDX-License-Identifier: Apache-2.0

"""What this host's accelerators are in Placement."""
