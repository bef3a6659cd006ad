# SPDX-License-Identifier: Apache-2.0

"""Bitstream images: selection, policy, download, cache and verification."""
