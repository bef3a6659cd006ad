# SPDX-License-Identifier: Apache-2.0

"""Scenarios of os_acc's behaviour, run on the kernels of the lane and on a fake one.

The scenarios use :mod:`os_acc` and a :class:`~.host.HostUnderTest`, and cannot
distinguish a simulated kernel from a real one.
"""
