# SPDX-License-Identifier: Apache-2.0

"""What os_acc does on a host, said once and shown on two kernels.

The scenarios know :mod:`os_acc` and a :class:`~.host.HostUnderTest`, and
cannot tell whether that is a simulated kernel or a real one.
"""
