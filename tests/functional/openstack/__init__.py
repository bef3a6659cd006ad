# SPDX-License-Identifier: Apache-2.0

"""Tests of the library against OpenStack's own services, on loopback."""
