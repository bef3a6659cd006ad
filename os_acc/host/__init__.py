# SPDX-License-Identifier: Apache-2.0

"""A read-only view of the Linux host, without any privilege.

Every path is below one injected root (``/`` on a real host).
"""
