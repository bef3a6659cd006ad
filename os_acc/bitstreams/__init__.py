# SPDX-License-Identifier: Apache-2.0

"""Bitstreams: which image, whether it may be programmed, fetched and proved."""
