# SPDX-License-Identifier: Apache-2.0

"""The words of the field as typed, immutable values; no I/O here."""
