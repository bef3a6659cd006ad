# SPDX-License-Identifier: Apache-2.0

"""OpenStack services over HTTP: options, sessions, retries and deadlines.

The imports of this package are slow; callers defer them to the first request.
"""
