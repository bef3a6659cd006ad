# SPDX-License-Identifier: Apache-2.0

"""Scenarios of os_acc's behaviour on a host, run on two kernels.

The scenarios use :mod:`os_acc` and a :class:`~.host.HostUnderTest`, and cannot
distinguish a simulated kernel from a real one.
"""
