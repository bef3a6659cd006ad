# SPDX-License-Identifier: Apache-2.0

"""Where device profiles come from, and what becomes of one in a flavor."""
