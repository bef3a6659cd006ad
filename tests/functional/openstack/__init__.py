# SPDX-License-Identifier: Apache-2.0

"""The library against OpenStack's own services, on loopback."""
