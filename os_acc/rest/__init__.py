# SPDX-License-Identifier: Apache-2.0

"""OpenStack's services over HTTP: options, sessions, retries and deadlines.

What it imports costs time: whoever may do without it imports it when a service
is first asked for something.
"""
