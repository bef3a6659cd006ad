# SPDX-License-Identifier: Apache-2.0

"""The concepts of the library as typed, immutable values; no I/O here."""
