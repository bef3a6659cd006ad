# SPDX-License-Identifier: Apache-2.0

"""Images in Glance, OpenStack's Image service."""
